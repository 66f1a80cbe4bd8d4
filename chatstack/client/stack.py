"""The recipe: layers around a provider, immutable, built as often as wanted."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, TypeAlias, cast

from chatstack.client.closing import Closing
from chatstack.client.fronts import ChatFronts
from chatstack.client.protocol import LAYER_KINDS, ChatClient, LayerKind, chain, is_client, layer_kind
from chatstack.client.services import SharedServices, StackService, SupportsLayer
from chatstack.client.stream import ChatStream
from chatstack.client.wiring import Layer, Resolver, check_options, name_of, nearest, option_names, wire
from chatstack.errors import WiringError
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.tracer import ModelTracer
from chatstack.values.requests import ChatRequest

LayerSource: TypeAlias = Layer | SupportsLayer | type[SupportsLayer]
"""What ``use`` takes: a layer's class or factory, a strategy, or a strategy's class."""


class LayerOrderWarning(UserWarning):
    """A stack whose order is allowed, but hardly meant."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One entry of a recipe."""

    name: str
    source: LayerSource
    options: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    def __repr__(self) -> str:
        options = "".join(f", {name}={self._shown(name, value)}" for name, value in self.options.items())
        called = f", name={self.name!r}" if self.name != name_of(self.source) else ""
        return f"use({name_of(self.source)}{called}{options})"

    def _shown(self, name: str, value: object) -> str:
        """An option, unless it may be a secret: what a layer's own repr keeps to itself, or text for a factory."""
        fields = getattr(self.source, "__dataclass_fields__", None)
        if fields is None:
            return repr(value) if value is None or isinstance(value, bool | int | float) else "..."
        return repr(value) if name not in fields or fields[name].repr else "..."

    def factory(self) -> tuple[Layer, Mapping[str, object]]:
        """The layer's factory, and the options that are left for it."""
        source = self.source
        if isinstance(source, type) and hasattr(source, "as_layer"):
            return self._of_strategy(cast("type[SupportsLayer]", source))
        if not isinstance(source, type) and hasattr(source, "as_layer"):
            return cast("SupportsLayer", source).as_layer(), self.options
        return cast("Layer", source), self.options

    def _of_strategy(self, strategy: type[SupportsLayer]) -> tuple[Layer, Mapping[str, object]]:
        """A strategy's class: it takes the options that it knows, the layer that applies it the others."""
        known = list(inspect.signature(strategy).parameters)
        own = {name: value for name, value in self.options.items() if name in known}
        left = {name: value for name, value in self.options.items() if name not in known}
        try:
            layer = strategy(**own).as_layer()
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                raise
            check_options(left, [], self.name, also=known)  # what is missing may have been misspelt
            raise WiringError(f"layer {self.name!r}: {error}", layer=self.name) from error
        check_options(left, option_names(layer), self.name, also=known)
        return layer, left


@dataclass(frozen=True, slots=True, repr=False)
class ChatStack:
    """An immutable recipe of layers around a provider. The first layer used is the outermost.

    Every ``use``, ``override`` and ``without`` gives a new recipe; all of them share the services that keep what has
    been decided and learnt (the context memory among them), so decisions outlive a built client.
    """

    provider: ChatClient
    _: KW_ONLY
    memory: StackService | None = None
    trace_model_calls: bool = True
    layers: tuple[LayerSpec, ...] = ()
    services: SharedServices = field(default_factory=SharedServices)

    def __post_init__(self) -> None:
        kind = name_of(self.provider)
        if isinstance(self.provider, type):
            raise WiringError(f"ChatStack: provider is the class {kind} itself; pass an instance", parameter="provider")
        if not is_client(self.provider):
            raise WiringError(
                f"ChatStack: provider is a {kind}, which has no send(); pass a chat client", parameter="provider"
            )
        if self.memory is not None:
            if isinstance(self.memory, type) or not getattr(self.memory, "shared_by_stack", False):
                is_class = "the class " if isinstance(self.memory, type) else "a "
                told = f"memory is {is_class}{name_of(self.memory)}; pass a ContextMemory()"
                raise WiringError(f"ChatStack: {told}", parameter="memory")
            self.services.add(self.memory)

    def use(self, source: LayerSource, *, name: str | None = None, **options: object) -> ChatStack:
        """The recipe with one more layer, inside those before it."""
        _check_source("use", source)
        called = name or name_of(source)
        if any(spec.name == called for spec in self.layers):
            raise WiringError(
                f"layer {called!r}: there is one of that name already; pass name='...' to tell them apart",
                layer=called,
                parameter="name",
            )
        return self._with((*self.layers, LayerSpec(called, source, MappingProxyType(options))))

    def override(self, name: str, source: LayerSource | None = None, **options: object) -> ChatStack:
        """The recipe with one layer changed: other options, or something else in its place."""
        position = self._position(name, "override")
        if source is not None:
            _check_source("override", source)
        old = self.layers[position]
        kept = dict(old.options) if source is None or source is old.source else {}
        new = LayerSpec(name, source or old.source, MappingProxyType({**kept, **options}))
        return self._with((*self.layers[:position], new, *self.layers[position + 1 :]))

    def without(self, name: str) -> ChatStack:
        """The recipe with one layer left out."""
        position = self._position(name, "without")
        return self._with(self.layers[:position] + self.layers[position + 1 :])

    def build(self, resolve: Resolver | None = None) -> BuiltClient:
        """A client: the layers made anew around the provider. ``resolve`` gives them what their type hints ask for.

        Raises ``WiringError``, naming layer and parameter, for whatever cannot work.
        """
        resolver = self.services.behind(resolve)
        specs = self._specs()
        made: list[object] = []
        client = self.provider
        for spec in reversed(specs):
            factory, options = spec.factory()
            client = wire(factory, client, options, name=spec.name, resolve=resolver, has_resolver=resolve is not None)
            made.append(client)
        made.reverse()
        names = [spec.name for spec in specs]
        kinds = [_kind_in_stack(name, layer) for name, layer in zip(names, made, strict=True)]
        _check_at_most_one(names, kinds)
        for misplaced in _misplaced(names, kinds):
            cast("Telemetry", resolver(Telemetry)).warn("layer_order", misplaced, {}, span_name="build_stack")
            warnings.warn(misplaced, LayerOrderWarning, stacklevel=2)
        return BuiltClient(client, tuple(made), tuple(names), self.provider)

    @asynccontextmanager
    async def open(self, resolve: Resolver | None = None) -> AsyncGenerator[BuiltClient, None]:
        """Fresh layers for one conversation, closed at the end. The provider stays open."""
        async with self.build(resolve) as client:
            yield client

    if not TYPE_CHECKING:  # a type checker knows by itself

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
        for position, spec in enumerate(self.layers):
            if spec.name == name:
                return position
        hint = nearest(name, (spec.name for spec in self.layers))
        raise WiringError(f"{verb}: no layer {name!r} in this stack; {hint}", layer=name)

    def _with(self, layers: tuple[LayerSpec, ...]) -> ChatStack:
        return replace(self, layers=layers)


def _check_source(verb: str, source: object) -> None:
    if isinstance(source, type) or (callable(source) and not is_client(source)) or hasattr(source, "as_layer"):
        return
    kind = type(source).__name__
    if is_client(source):
        raise WiringError(
            f"{verb}: a {kind} that is made already cannot wrap the layers behind it; pass its class and its options: "
            f".{verb}({kind}, ...)",
            layer=kind,
        )
    raise WiringError(f"{verb}: {source!r} is not a layer: pass its class, a factory, or a strategy")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BuiltClient(Closing, ChatFronts):
    """What ``build`` returns: the whole stack as one client, with both fronts.

    Closing it ends the layers' background work, never the provider.
    """

    inner: ChatClient
    layers: tuple[object, ...]
    names: tuple[str, ...]
    provider: ChatClient

    kind: ClassVar[LayerKind] = "stack"

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(request)

    async def aclose(self) -> None:
        """End what the layers do in the background."""
        async with AsyncExitStack() as closing:
            for layer in reversed(self.layers):
                close = getattr(layer, "aclose", None)
                if close is not None:
                    closing.push_async_callback(close)

    def __repr__(self) -> str:
        lines = [layer_repr(layer) for layer in (*self.layers, self.provider)]
        return "\n".join(f"{'  ' * depth}{'└ ' if depth else ''}{line}" for depth, line in enumerate(lines))


def layer_repr(layer: object) -> str:
    """A layer by itself, without what it wraps; a value of its own kind of repr is left to it."""
    fields = getattr(type(layer), "__dataclass_fields__", None)
    if fields is None:
        return repr(layer) if getattr(layer, "inner", None) is None else type(layer).__name__
    shown = [
        f"{name}={value!r}"
        for name, each in fields.items()
        if each.repr and name != "inner" and (value := getattr(layer, name)) != each.default and value is not None
    ]
    return f"{type(layer).__name__}({', '.join(shown)})"


AT_MOST_ONE: Mapping[str, str] = MappingProxyType(
    {"tool_loop": "tool loops", "reporter": "progress reporters", "tracer": "model tracers"}
)
"""The kinds of layers of which a stack has one at most, and what several of them are called."""


_WRONG_PLACES: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("context", "outside"): "it sees a turn's first request only, so a long loop can still overflow",
        ("fallback", "outside"): "its other clients are asked without tools",
        ("budget", "inside"): "it sees one round at a time, so a turn can still exceed it",
    }
)
"""By kind of layer and side of the tool loop: what is wrong with it there."""


def _kind_in_stack(name: str, layer: object) -> str:
    """The kind of a layer; refuses a name that no kind has, as it would silently mean nothing."""
    kind, told = layer_kind(layer), cast("object", getattr(layer, "kind", ""))
    if not kind and isinstance(told, str) and told:
        hint = nearest(told, LAYER_KINDS)
        raise WiringError(f"layer {name!r}: kind={told!r} is no kind of layer; {hint}", layer=name, parameter="kind")
    return kind


def _check_at_most_one(names: list[str], kinds: list[str]) -> None:
    for kind, word in AT_MOST_ONE.items():
        found = [name for name, each in zip(names, kinds, strict=True) if each == kind]
        if len(found) > 1:
            raise WiringError(f"two {word} in one stack: {' and '.join(found)}; leave one out", layer=found[1])


def _misplaced(names: list[str], kinds: list[str]) -> Iterator[str]:
    """What is said of layers that stand on the wrong side of the tool loop."""
    if "tool_loop" not in kinds:
        return
    loop = kinds.index("tool_loop")
    there = names[loop]
    for position, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        side, move = ("outside", "behind") if position < loop else ("inside", "before")
        why = _WRONG_PLACES.get((kind, side))
        if why:
            yield f"layer {name!r} is {side} the tool loop {there!r}: {why}; move it {move} {there!r}"
