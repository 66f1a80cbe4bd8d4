"""The recipe: layers around a provider, immutable, built as often as wanted."""

from __future__ import annotations

import functools
import warnings
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, TypeVar, cast, get_origin, overload

from chatstack.client.checks import OwnCopy, check_client, send_to
from chatstack.client.closing import Closing, close
from chatstack.client.fronts import ChatFronts
from chatstack.client.hints import is_union
from chatstack.client.options import check_options, short_repr
from chatstack.client.protocol import LAYER_KINDS, ChatClient, LayerKind, chain, layer_kind, own_attribute
from chatstack.client.stream import ChatStream
from chatstack.client.sync import SyncClient
from chatstack.client.wiring import Resolver, name_of, nearest, shown, wire, wrong
from chatstack.errors import InputError, WiringError
from chatstack.stack.entries import LayerSource, LayerSpec, Named, check_source
from chatstack.stack.order import misplaced
from chatstack.stack.services import SharedServices, StackService, SupportsLayer
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.tracer import ModelTracer
from chatstack.values.mistakes import kind_of
from chatstack.values.requests import ChatRequest

P = ParamSpec("P")
T = TypeVar("T")


class LayerOrderWarning(UserWarning):
    """A warning of a layer order that is allowed, but hardly intended."""


class _NoProvider(ChatFronts):
    """The place of a provider in a recipe for ``wrap``, which has one."""

    __slots__ = ()

    def __repr__(self) -> str:
        return ""


NO_PROVIDER = _NoProvider()


def _names_its_arguments(kind: type[T]) -> type[T]:
    """Class decorator of the recipe: an unknown option raises ``WiringError`` with the remedy."""
    made = cast("Any", kind).__init__
    known = [each.name for each in fields(cast("Any", kind)) if each.init]

    @functools.wraps(made)
    def checked(self: object, *args: object, **options: object) -> None:
        for option in options:
            if option not in known:
                raise WiringError(f"ChatStack: unknown option {option!r}; {_where(option, known)}", parameter=option)
        made(self, *args, **options)

    cast("Any", kind).__init__ = checked
    return kind


def _where(option: str, known: list[str]) -> str:
    """Return where an option belongs that a recipe does not have."""
    if option == "telemetry":
        return "bind Telemetry in the container, or give it to the layers: build({Telemetry: telemetry}.get)"
    return f"{nearest(option, known)} Options of a layer are given to use()"


@_names_its_arguments
@dataclass(frozen=True, slots=True, repr=False, eq=False)
class ChatStack(OwnCopy):
    """An immutable recipe of layers around a provider. The first layer used is the outermost.

    Every ``use``, ``override`` and ``without`` returns a new recipe; all of them share the services that keep decisions
    and learnt values (the context memory among them), so decisions outlive a built client.

    ``trace_model_calls=False`` builds no ``ModelTracer``: for a client of your own that hands each request to another
    stack, which counts the call by itself.
    """

    provider: ChatClient = NO_PROVIDER
    _: KW_ONLY
    memory: StackService | None = None
    trace_model_calls: bool = True
    layers: tuple[LayerSpec, ...] = ()
    services: SharedServices = field(default_factory=SharedServices)

    def __post_init__(self) -> None:
        check_options(self)
        if type(self.layers) is not tuple or not all(isinstance(each, LayerSpec) for each in self.layers):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise wrong("ChatStack", "layers", self.layers, "a tuple of LayerSpec; use(...) adds a layer")
        check_client(self.provider, "ChatStack", "provider")
        memory = self.memory
        if memory is not None and (isinstance(memory, type) or not getattr(memory, "shared_by_stack", False)):
            is_class = "the class " if isinstance(memory, type) else "a "
            told = f"memory is {is_class}{name_of(memory)}; pass a ContextMemory()"
            raise WiringError(f"ChatStack: {told}", parameter="memory")

    @overload
    def use(
        self, layer: Callable[Concatenate[ChatClient, P], ChatClient], /, *args: P.args, **options: P.kwargs
    ) -> ChatStack: ...

    @overload
    def use(self, strategy: Callable[P, SupportsLayer[...]], /, *args: P.args, **options: P.kwargs) -> ChatStack: ...

    @overload
    def use(self, strategy: SupportsLayer[P], /, *args: P.args, **options: P.kwargs) -> ChatStack: ...

    def use(self, source: Any, /, *args: object, **options: Any) -> ChatStack:
        """Add a layer inside those before it, with its own options by name: a layer's class or factory, a strategy, or
        a strategy's class. ``named("...", source)`` in its place gives it a name."""
        if args:
            raise WiringError(f"use: {shown(args[0])}: options are given by name: .use({name_of(source)}, ...=...)")
        name = options.pop("name", None)
        if name is not None:
            told = f".use({name_of(source)}, name={name!r}) is deprecated: .use(named({name!r}, {name_of(source)}))"
            warnings.warn(told, DeprecationWarning, stacklevel=2)
        return self.with_layer(source, name, options)

    def with_layer(self, source: LayerSource, name: str | None, options: Mapping[str, object]) -> ChatStack:
        """Add a layer like ``use``, with its name and options as data, as they are read from a config."""
        source, name = _unwrapped(source, name)
        check_source("use", source)
        spec = LayerSpec(name or name_of(source), source, options)
        return self._with((*self.layers, spec))

    def override(self, name: str, source: LayerSource | None = None, **options: object) -> ChatStack:
        """Return the recipe with one layer changed: other options, or something else in its place.

        The layer keeps its name, unless ``source`` brings one: ``named("...", source)``.
        """
        position = self._position(name, "override")
        old = self.layers[position]
        source, called = _unwrapped(old.source if source is None else source, name)
        check_source("override", source)
        kept = dict(old.options) if source is old.source else {}
        new = LayerSpec(called or name, source, {**kept, **options})
        return self._with((*self.layers[:position], new, *self.layers[position + 1 :]))

    def without(self, name: str) -> ChatStack:
        """Return the recipe with one layer left out."""
        position = self._position(name, "without")
        return self._with(self.layers[:position] + self.layers[position + 1 :])

    def build(self, resolve: Resolver | None = None) -> BuiltClient:
        """Make a client: new layers around the provider. ``resolve`` gives them what their type hints ask for.

        Raises ``WiringError``, naming layer and parameter, for a stack that cannot work.
        """
        if self.provider is NO_PROVIDER:
            raise WiringError(
                "ChatStack: no provider; ChatStack(provider), or wrap(client, stack)", parameter="provider"
            )
        _check_resolver(resolve)
        resolver = self.services.behind(resolve, *(() if self.memory is None else (self.memory,)))
        made: list[tuple[str, ChatClient]] = []
        client = self.provider
        for spec in reversed(self._specs()):
            (factory, options), inner = spec.factory(), client
            client = wire(factory, inner, options, name=spec.name, resolve=resolver, has_resolver=resolve is not None)
            if client is not inner:
                made.append((spec.name, client))
        names, layers = [name for name, _ in reversed(made)], [layer for _, layer in reversed(made)]
        kinds = [_kind_in_stack(name, layer) for name, layer in zip(names, layers, strict=True)]
        _check_at_most_one(names, kinds)
        for told in misplaced(names, layers):
            cast("Telemetry", resolver(Telemetry)).warn("layer_order", told, {}, span_name="build_stack")
            warnings.warn(told, LayerOrderWarning, stacklevel=2)
        return BuiltClient(client, tuple(layers), tuple(names), self.provider)

    def build_sync(self, resolve: Resolver | None = None) -> SyncClient:
        """Make a client for code without ``await``: scripts, Django, notebooks. See ``SyncClient``."""
        return SyncClient(self.build(resolve))

    @asynccontextmanager
    async def open(self, resolve: Resolver | None = None) -> AsyncGenerator[BuiltClient, None]:
        """Build a client for the length of a block; its layers are closed at the end. The provider stays open."""
        async with self.build(resolve) as client:
            yield client

    def __reduce__(self) -> tuple[object, ...]:
        if self.memory is not None:
            told = "memory cannot be pickled; make the recipe in each process, with a memory over one store"
            raise WiringError(f"ChatStack: {told}", parameter="memory")
        return functools.partial(ChatStack, trace_model_calls=self.trace_model_calls, layers=self.layers), (
            self.provider,
        )

    if not TYPE_CHECKING:  # or a type checker would accept any attribute

        def __getattr__(self, name: str) -> object:
            told = f"'ChatStack' object has no attribute {name!r}"
            if hasattr(ChatFronts, name):
                told += "; a stack is a recipe, and what build() gives is a client"
            raise AttributeError(told, name=name, obj=self)

    def __repr__(self) -> str:
        return "".join([f"ChatStack({self.provider!r})", *(f"\n    .{spec!r}" for spec in self.layers)])

    def _specs(self) -> tuple[LayerSpec, ...]:
        has_tracer = any(spec.source is ModelTracer for spec in self.layers) or any(
            isinstance(each, ModelTracer) for each in chain(self.provider)
        )
        if has_tracer or not self.trace_model_calls:
            return self.layers
        return (*self.layers, LayerSpec("ModelTracer", ModelTracer))

    def _position(self, name: str, verb: str) -> int:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            called = name_of(name)
            told = f"{verb}: pass the layer's name: {called!r}"
            raise WiringError(told, layer=called)
        for position, spec in enumerate(self.layers):
            if spec.name == name:
                return position
        hint = nearest(name, (spec.name for spec in self.layers))
        raise WiringError(f"{verb}: no layer {name!r} in this stack; {hint}", layer=name)

    def _with(self, layers: tuple[LayerSpec, ...]) -> ChatStack:
        names = [spec.name for spec in layers]
        called = next((name for name in names if names.count(name) > 1), None)
        if called is not None:
            raise WiringError(
                f"layer {called!r}: there is one of that name already; use named('...', ...), or name in a file",
                layer=called,
                parameter="name",
            )
        return replace(self, layers=layers)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BuiltClient(OwnCopy, Closing, ChatFronts):
    """A whole stack as one client, with both fronts, made by ``build``.

    Closing it ends the layers' background work, never the provider. It is its own copy, and cannot be pickled.
    """

    inner: ChatClient
    layers: tuple[object, ...]
    names: tuple[str, ...]
    provider: ChatClient

    kind: ClassVar[LayerKind] = "stack"

    async def send(self, request: ChatRequest, /) -> ChatStream:
        if not isinstance(request, ChatRequest):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"send: expected a ChatRequest, got {kind_of(request)}; get_response(...) takes messages")
        return await send_to(self.inner, request)

    async def aclose(self) -> None:
        """End the background work of the layers, outermost first. One that fails does not keep the others open."""
        await self._close_from(0)

    async def _close_from(self, position: int) -> None:
        if position == len(self.layers):
            return
        try:
            if own_attribute(self.layers[position], "aclose") is not None:
                await close(self.layers[position])
        except BaseException as error:
            error.add_note(f"while closing layer {self.names[position]!r}")
            raise
        finally:
            await self._close_from(position + 1)

    def __repr__(self) -> str:
        lines = [_layer_repr(layer) for layer in (*self.layers, self.provider)]
        return "\n".join(f"{'  ' * depth}{'└ ' if depth else ''}{line}" for depth, line in enumerate(lines))


def _layer_repr(layer: object) -> str:
    """Return the repr of a layer without the client that it wraps."""
    fields = getattr(type(layer), "__dataclass_fields__", None)
    if fields is None:
        return repr(layer) if getattr(layer, "inner", None) is None else type(layer).__name__
    return short_repr(layer)


AT_MOST_ONE: Mapping[str, str] = MappingProxyType(
    {"tool_loop": "tool loops", "reporter": "progress reporters", "tracer": "model tracers"}
)
"""The kinds of layers of which a stack has one at most, with their plurals for errors."""


_ADAPTERS: Mapping[str, str] = MappingProxyType(
    {
        "injectq": "pass chatstack.di.injectq.resolver(container)",
        "dependency_injector": "use chat_client of chatstack.di.dependency_injector",
    }
)
"""The remedy for a container that makes instances of types which nobody has bound, by its package."""


def _check_resolver(resolve: object) -> None:
    """Raise ``WiringError`` for a container in place of the function that asks it."""
    container = getattr(resolve, "__self__", resolve)
    remedy = _ADAPTERS.get(type(container).__module__.partition(".")[0], "")
    if resolve is not None and (remedy or not callable(resolve)):
        has_get = callable(getattr(resolve, "get", None))
        remedy = remedy or ("pass services.get, a function" if has_get else "pass a function")
        told = f"build: resolve: expected a function from a type to an instance, got {_told(resolve)}; {remedy}"
        raise WiringError(told, parameter="resolve")


def _told(resolve: object) -> str:
    """Return the type of a container, and the name of its method."""
    container = getattr(resolve, "__self__", None)
    return type(resolve).__name__ if container is None else f"{type(container).__name__}.{name_of(resolve)}"


def _kind_in_stack(name: str, layer: object) -> str:
    """Return the kind of a layer. Raises ``WiringError`` for an unknown kind, which would silently have no effect."""
    kind, told = layer_kind(layer), own_attribute(layer, "kind")
    if not kind and isinstance(told, str) and told:
        hint = nearest(told, LAYER_KINDS)
        raise WiringError(f"layer {name!r}: kind={told!r} is no kind of layer; {hint}", layer=name, parameter="kind")
    return kind


def _unwrapped(source: object, name: str | None) -> tuple[LayerSource, str | None]:
    """Return a layer's source and its name; one given by ``named`` wins."""
    if isinstance(source, Named):
        name, source = source.name, source.source
    generic = None if is_union(source) else get_origin(source)  # the class of Mine[int]
    return cast("LayerSource", generic or source), name


def _check_at_most_one(names: list[str], kinds: list[str]) -> None:
    for kind, word in AT_MOST_ONE.items():
        found = [name for name, each in zip(names, kinds, strict=True) if each == kind]
        if len(found) > 1:
            raise WiringError(f"two {word} in one stack: {' and '.join(found)}; leave one out", layer=found[1])
