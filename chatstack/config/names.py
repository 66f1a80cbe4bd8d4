"""What a config can name: built-in things, then what plugins offer; and the services that are made of such names."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import cast

from chatstack import plugins
from chatstack.client.protocol import ChatClient
from chatstack.client.stream import ChatStream
from chatstack.client.wiring import name_of, service_type
from chatstack.config.options import hints_of
from chatstack.config.values import (
    MESSAGE_CHARS,
    Config,
    check_keys,
    converted,
    cut,
    key_shown,
    kind_of,
    nearest_to,
    shown,
    table,
)
from chatstack.context.memory import ContextMemory
from chatstack.context.sharing import DecisionStore
from chatstack.errors import WiringError
from chatstack.tokens.counter import TokenCounter
from chatstack.values.requests import ChatRequest


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a config from outside may name beside the built-in layers, strategies and counters: only what is listed.

    ``providers`` and ``stores`` by the names that they have in a config, ``plugins`` by the names of their
    distributions; what a plugin offers needs both. ``Allowed()`` allows none.
    """

    providers: Collection[str] = ()
    stores: Collection[str] = ()
    plugins: Collection[str] = ()

    def __post_init__(self) -> None:
        for name in ("providers", "stores", "plugins"):
            given: object = getattr(self, name)
            if isinstance(given, str) or not isinstance(given, Collection):
                raise WiringError(f"Allowed: {name}={given!r} must be a list of names", parameter=name)


@dataclass(frozen=True, slots=True)
class Names:
    """One kind of thing that a config can name: the built-in ones, by module and attribute, and the groups of plugins
    that offer more. A plugin cannot take the name of a built-in one."""

    kind: str
    built_in: Mapping[str, tuple[str, str]]
    groups: tuple[str, ...]
    allowed: Allowed | None = None

    def find(self, name: object, here: str) -> tuple[str, plugins.Offer | None]:
        """The name, and who offers it, nobody if it is built in. Imports nothing; raises ``WiringError``."""
        restricted = {"provider": "providers", "store": "stores"}.get(self.kind)
        if self.allowed is not None and restricted is not None:
            names = cast("Collection[str]", getattr(self.allowed, restricted))
            if not isinstance(name, str) or name not in names:
                told = ", ".join(sorted(names)) or "none"
                raise WiringError(f"{here}: {shown(name)} is not allowed in this config; allowed: {told}")
        if isinstance(name, str) and name in self.built_in:
            return name, None
        from_plugins = None if self.allowed is None else self.allowed.plugins
        if isinstance(name, str):
            try:
                offer = plugins.find(self.groups, name, allowed=from_plugins)
            except WiringError as error:
                raise WiringError(f"{here}: {self.kind} {error}") from error
            if offer is not None:
                return name, offer
        known = [*self.built_in, *plugins.names(self.groups, allowed=from_plugins)]
        raise WiringError(f"{here}: {shown(name)} is no {self.kind}; {nearest_to(name, known)}")

    def load(self, name: object, here: str) -> tuple[object, plugins.Offer | None]:
        """What has that name, and who offers it. Raises ``WiringError``."""
        found, offer = self.find(name, here)
        if offer is None:
            module, attribute = self.built_in[found]
            return getattr(importlib.import_module(module), attribute), None
        try:
            loaded = plugins.load(offer)
        except WiringError as error:
            raise WiringError(f"{here}: {self.kind} {error}") from error.__cause__
        if not callable(loaded) and not hasattr(loaded, "as_layer"):
            kind = kind_of(loaded)
            raise WiringError(f"{here}: {self.kind} {found!r} of {offer.source} is {kind}, which is no {self.kind}")
        return loaded, offer


@dataclass(frozen=True, slots=True)
class NamedProvider:
    """A provider that a config names, and that was not made: for looking at a stack without anybody's key."""

    use: str
    model: str

    async def send(self, request: ChatRequest, /) -> ChatStream:
        raise WiringError(f"{self!r} is only described, and answers nothing")

    def __repr__(self) -> str:
        return f"{self.use} {self.model!r}"


@dataclass(frozen=True, slots=True)
class Services:
    """Makes what a config describes beside layers: providers, counters, the memory and its store.

    With ``describe``, providers are only named. What is counted alike is one object, so that it is counted once.
    """

    providers: Names
    counters: Names
    stores: Names
    describe: bool = False
    _counters: list[tuple[object, Config, TokenCounter]] = field(
        default_factory=list[tuple[object, Config, TokenCounter]]
    )

    def provider(self, section: object, here: str) -> ChatClient:
        """The client that ``{"use": ..., "model": ...}`` describes; it has its address and key from its environment."""
        content = table(section, here)
        check_keys(content, ("use", "model"), here)
        use, model = content.get("use"), content.get("model")
        name, offer = self.providers.find(use, f"{here}.use")
        if not isinstance(model, str) or not model:
            raise WiringError(f"{here}.model: expected the name of a model, got {shown(model)}", parameter="model")
        if self.describe:
            return NamedProvider(name, model)
        make, _ = self.providers.load(name, f"{here}.use")
        made = called(lambda: cast("Callable[[str], object]", make)(model), here, make, offer)
        if not callable(getattr(made, "send", None)):
            raise _wrong_kind(made, "chat client", here, offer)
        return cast("ChatClient", made)

    def counter(self, section: object, here: str) -> TokenCounter:
        """The counter of that name, or of ``{"use": name, ...options}``."""
        name, options, place = _used(section, here)
        for known_name, known_options, known in self._counters:
            if known_name == name and known_options == options:
                return known
        make, offer = self.counters.load(name, place)
        made = _make(make, options, here, offer)
        if not isinstance(made, TokenCounter):
            raise _wrong_kind(made, "TokenCounter", here, offer)
        self._counters.append((name, options, made))
        return made

    def memory(self, section: object, here: str) -> ContextMemory:
        """The context memory, with its store if there is one."""
        content = dict(table(section, here))
        objects: dict[str, object] = {}
        if "store" in content:
            objects["store"] = self._store(content.pop("store"), f"{here}.store")
        return cast("ContextMemory", _make(ContextMemory, content, here, None, objects))

    def _store(self, section: object, here: str) -> DecisionStore:
        name, options, place = _used(section, here)
        make, offer = self.stores.load(name, place)
        made = _make(make, options, here, offer)
        if not callable(getattr(made, "find", None)) or not callable(getattr(made, "put", None)):
            raise _wrong_kind(made, "DecisionStore", here, offer)
        return cast("DecisionStore", made)

    def option(self, value: object, hint: object, here: str, *, layer: str, option: str) -> object:
        """The value of a layer's option: what a name stands for where a service is wanted, else plain data, checked."""
        kind = service_type(hint)
        if kind is not None and _is_spelt(value):
            if issubclass(kind, TokenCounter):
                return self.counter(value, here)
            if ChatClient in kind.__mro__:
                return self.provider(value, here)
            if issubclass(kind, ContextMemory):
                raise WiringError(
                    f"{here}: all layers of a stack share one memory; put it at the top of the config, beside 'layers'",
                    layer=layer,
                    parameter=option,
                )
        return converted(value, hint, here, layer=layer, parameter=option)


def _is_spelt(value: object) -> bool:
    """Whether it is a name or a table, and not yet the object itself."""
    return isinstance(value, str | Mapping)


def by(offer: plugins.Offer | None) -> str:
    """Whose it is, at the end of an error; "" for what is built in."""
    return f" (plugin {offer.source})" if offer is not None else ""


def called(make: Callable[[], object], here: str, made_by: object, offer: plugins.Offer | None) -> object:
    """What the constructor gives. What it raises becomes a ``WiringError`` with its place in the config, and, where it
    is a plugin's, with the plugin's distribution."""
    try:
        return make()
    except WiringError as error:
        text = cut(str(error).removeprefix(f"{name_of(made_by)}: "), MESSAGE_CHARS)
        place = f"{here}.{error.parameter}" if error.parameter and error.parameter != "api_key" else here
        raise WiringError(f"{place}: {text}{by(offer)}", layer=error.layer, parameter=error.parameter) from error
    except Exception as error:
        if offer is None and not isinstance(error, TypeError | ValueError):
            raise
        raise WiringError(
            f"{here}: {plugins.told(error) if offer else cut(str(error), MESSAGE_CHARS)}{by(offer)}"
        ) from error


def _used(section: object, here: str) -> tuple[object, Config, str]:
    """The name in ``name`` or ``{"use": name, ...options}``, the options, and where the name stands."""
    if isinstance(section, str):
        return section, {}, here
    content = dict(table(section, here))
    if "use" not in content:
        raise WiringError(f"{here}: has no 'use': what is it to be?")
    return content.pop("use"), content, f"{here}.use"


def _make(
    make: object, options: Config, here: str, offer: plugins.Offer | None, objects: Config | None = None
) -> object:
    """Call it with options from a config, checked against its signature, and with objects that were made of others."""
    constructor = cast("Callable[..., object]", make)
    parameters = inspect.signature(constructor).parameters
    known = {name for name, each in parameters.items() if each.kind is not each.VAR_KEYWORD}
    hints, given = hints_of(make), dict(objects or {})
    for name, value in options.items():
        if name not in known and len(known) == len(parameters):
            raise WiringError(
                f"{here}.{key_shown(name)}: unknown option of {name_of(make)}; {nearest_to(name, known)}",
                parameter=name,
            )
        given[name] = converted(value, hints[name], f"{here}.{name}", parameter=name) if name in hints else value
    for name, each in parameters.items():
        if (
            each.default is each.empty
            and name not in given
            and each.kind
            in (
                each.KEYWORD_ONLY,
                each.POSITIONAL_OR_KEYWORD,
            )
        ):
            raise WiringError(f"{here}.{name}: is missing", parameter=name)
    return called(lambda: constructor(**given), here, make, offer)


def _wrong_kind(made: object, wanted: str, here: str, offer: plugins.Offer | None) -> WiringError:
    return WiringError(f"{here}: {kind_of(made)} was made, which is no {wanted}{by(offer)}")
