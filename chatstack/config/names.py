"""Names in a config: resolving them to built-in things, then to plugins, and making services from them."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

from chatstack import plugins
from chatstack.client.protocol import ChatClient, EditsNatively
from chatstack.client.stream import ChatStream
from chatstack.client.wiring import name_of
from chatstack.config.imported import with_tools_imported
from chatstack.config.making import arguments, by, check_made, hidden_texts, made_of, taken, told_at
from chatstack.config.options import PROVIDER_OPTIONS, Option, provider_options, takes_tools
from chatstack.config.values import Config, check_keys, kind_of, nearest_to, shown, table
from chatstack.context.memory.memory import ContextMemory
from chatstack.errors import WiringError
from chatstack.providers.settings import check_base_url, check_settings
from chatstack.tokens.counter import TokenCounter
from chatstack.values.native import NativeEdit
from chatstack.values.requests import ChatRequest


@dataclass(frozen=True, slots=True)
class Allowed:
    """The allow-list for a config from outside, beside the built-in layers, strategies and counters.

    ``providers`` and ``stores`` are listed by their names in a config, ``plugins`` by the names of their distributions;
    a plugin's provider or store needs both. ``provider_options`` are those that it may set (``timeout_seconds``,
    ``window_tokens``), ``base_urls`` the addresses that a provider may have: the key of the environment is sent there.
    ``tools`` are names of the form ``package.module:function``; each is imported. ``Allowed()`` allows none of these.
    """

    providers: Collection[str] = ()
    stores: Collection[str] = ()
    plugins: Collection[str] = ()
    provider_options: Collection[str] = ()
    base_urls: Collection[str] = ()
    tools: Collection[str] = ()

    def __post_init__(self) -> None:
        for name in ("providers", "stores", "plugins", "provider_options", "base_urls", "tools"):
            given: object = getattr(self, name)
            if isinstance(given, str | bytes) or not isinstance(given, Collection):
                raise WiringError(f"Allowed: {name}={shown(given)} must be a list of names", parameter=name)
            for each in cast("Collection[object]", given):
                if not isinstance(each, str):
                    told = f"{shown(each)} is no name; a list of names is text only"
                    raise WiringError(f"Allowed: {name}: {told}", parameter=name)
        for each in self.provider_options:
            if each == "base_url" or each not in PROVIDER_OPTIONS:
                told = "list the addresses in base_urls" if each == "base_url" else nearest_to(each, PROVIDER_OPTIONS)
                raise WiringError(f"Allowed: provider_options: {shown(each)}; {told}", parameter="provider_options")


@dataclass(frozen=True, slots=True)
class Names:
    """One kind of thing that a config can name: the built-in ones, by module and attribute, and the entry point groups
    of plugins that offer more. A plugin cannot take the name of a built-in one."""

    kind: str
    built_in: Mapping[str, tuple[str, str]]
    groups: tuple[str, ...]
    allowed: Allowed | None = None

    def find(self, name: object, here: str) -> tuple[str, plugins.Offer | None]:
        """Return the name and the plugin's offer, None if it is built in. Imports nothing. Raises ``WiringError``."""
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
        by_class = {attribute: called for called, (_, attribute) in self.built_in.items()}
        if isinstance(name, str) and name in by_class:
            raise WiringError(f"{here}: {shown(name)} is called {by_class[name]!r} in a config")
        known = [*self.built_in, *plugins.names(self.groups, allowed=from_plugins)]
        raise WiringError(f"{here}: {shown(name)} is no {self.kind}; {nearest_to(name, known)}")

    def load(self, name: object, here: str) -> tuple[object, plugins.Offer | None]:
        """Import the object of that name; return it and its plugin offer, None if built in. Raises ``WiringError``."""
        found, offer = self.find(name, here)
        if offer is None:
            module, attribute = self.built_in[found]
            return getattr(importlib.import_module(module), attribute), None
        try:
            loaded = plugins.load(offer)
        except WiringError as error:
            raise WiringError(f"{here}: {self.kind} {error}") from error.__cause__
        with told_at(here, offer):
            is_one = callable(loaded) or hasattr(loaded, "as_layer")
        if not is_one:
            kind = kind_of(loaded)
            raise WiringError(f"{here}: {self.kind} {found!r} of {offer.source} is {kind}, which is no {self.kind}")
        return loaded, offer


@dataclass(frozen=True, slots=True)
class NamedProvider:
    """A placeholder for a provider that a config names, to describe a stack without an SDK or a key."""

    use: str
    model: str
    options: Config = field(default_factory=dict[str, object], hash=False)

    async def send(self, request: ChatRequest, /) -> ChatStream:
        raise WiringError(f"{self!r} is only described, and answers nothing")

    def __repr__(self) -> str:
        told = {**self.options}
        address = urlsplit(str(told.pop("base_url", None) or ""))  # without what may be a password in it
        where = f" at {address.hostname}{f':{address.port}' if address.port else ''}" if address.hostname else ""
        return f"{self.use} {self.model!r}{where}{''.join(f', {name}={value!r}' for name, value in told.items())}"


@dataclass(frozen=True, slots=True, repr=False)
class NamedEditor(NamedProvider):
    """A placeholder for a provider whose API edits on its side, as built-in ones of that class do, or may do so."""

    built_in: type[EditsNatively] | None = None

    def native_problem(self, edit: NativeEdit, /) -> str:
        return "" if self.built_in is None else self.built_in.native_problem(cast("EditsNatively", self), edit)

    async def edits_natively(self, edit: NativeEdit, model: str = "") -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Services:
    """A factory for what a config describes beside layers: providers, counters, the memory and its store.

    With ``describe``, providers are only named. Equal descriptions of a counter give one object, so that its counts are
    shared.
    """

    providers: Names
    counters: Names
    stores: Names
    describe: bool = False
    _counters: list[tuple[object, Config, TokenCounter]] = field(
        default_factory=list[tuple[object, Config, TokenCounter]]
    )
    """The counters made so far, each with its factory and options."""

    def provider(self, section: object, here: str) -> ChatClient:
        """Make the client for ``{"use": ..., "model": ..., ...options}``; its key comes from the environment."""
        if isinstance(section, str):
            name = shown(section) if section in self.providers.built_in else "..."
            raise WiringError(f"{here}: expected a table, got text; write {{use = {name}, model = ...}}")
        content = dict(table(section, here))
        if "use" not in content:
            raise WiringError(f"{here}: has no 'use'; name a provider: {', '.join(sorted(self.providers.built_in))}")
        use, model = content.pop("use"), content.pop("model", None)
        name, offer = self.providers.find(use, f"{here}.use")
        if not isinstance(model, str) or not model:
            misspelt = difflib.get_close_matches("model", map(str, content), n=1) if model is None else []
            told = f"expected the name of a model, got {shown(model)}{''.join(f'; is it {x!r}?' for x in misspelt)}"
            raise WiringError(f"{here}.model: {told}", parameter="model")
        if self.describe and offer is not None and not content:
            return NamedEditor(name, model)
        make, _ = self.providers.load(name, f"{here}.use")
        known = {each.name: each for each in provider_options(make)}
        if "api_key" in content and "api_key" not in known:
            told = (
                "unknown key 'api_key'; a config holds no keys: leave it to the provider's variable of the environment"
            )
            raise WiringError(f"{here}: {told}", parameter="api_key")
        check_keys(content, ("use", "model", *known), here)
        given = {each: self._provider_option(known[each], value, here) for each, value in content.items()}
        hidden = hidden_texts(given, known)
        with told_at(here, offer, made_by=make, spelt={each: each for each in known}, hidden=hidden):
            if self.describe:
                if offer is None:
                    _check_provider(make, model, given)
                return _described(name, model, given, make, is_built_in=offer is None)
            made = cast("Callable[..., object]", make)(model, **given)
        check_made(made, here, offer, wanted="chat client", methods=("send",))
        return cast("ChatClient", made)

    def _provider_option(self, option: Option, value: object, here: str) -> object:
        """Convert an option of a provider. Raises ``WiringError`` if this config may not set it."""
        allowed, place = self.providers.allowed, f"{here}.{option.name}"
        if allowed is not None:
            is_address = option.name == "base_url"
            listed = isinstance(value, str) and value in allowed.base_urls
            if not (listed if is_address else option.name in allowed.provider_options):
                told = "this address" if is_address else "this option"
                raise WiringError(f"{place}: {told} is not allowed in this config", parameter=option.name)
        return taken(option, value, place)

    def counter(self, section: object, here: str) -> TokenCounter:
        """Make the counter for a name or ``{"use": name, ...options}``, or return the equal one made before."""
        name, options, place = _used(section, here)
        make, offer = self.counters.load(name, place)
        given = arguments(make, options, here, offer)
        for known_make, known_given, known in self._counters:
            if known_make is make and _are_alike(known_given, given):
                return known
        made = made_of(make, given, here, offer, wanted="TokenCounter", methods=("count_text",))
        if not isinstance(made, TokenCounter):
            raise WiringError(f"{here}: {kind_of(made)} was made, which is no TokenCounter{by(offer)}")
        self._counters.append((make, given, made))
        return made

    def memory(self, section: object, here: str) -> ContextMemory:
        """Make the context memory, with its store if there is one."""
        content = dict(table(section, here))
        store = content.pop("store", None)
        given = arguments(ContextMemory, content, here, None)
        if store is not None:
            given["store"] = self._store(store, f"{here}.store")
        return cast("ContextMemory", made_of(ContextMemory, given, here, None, wanted="ContextMemory", methods=()))

    def _store(self, section: object, here: str) -> object:
        name, options, place = _used(section, here)
        make, offer = self.stores.load(name, place)
        given = arguments(make, options, here, offer)
        return made_of(make, given, here, offer, wanted="DecisionStore", methods=("find", "put", "forget", "aclose"))

    def option(self, option: Option, value: object, here: str, *, layer: str) -> object:
        """Convert the value of a layer's option: make the service it names where one is wanted, else check the data."""
        if takes_tools(option):
            allowed = self.providers.allowed
            value = with_tools_imported(value, None if allowed is None else allowed.tools, here)
        is_spelt = _is_spelt(value)
        if is_spelt and option.form == "counter":
            return self.counter(value, here)
        if is_spelt and option.form == "client":
            return self.provider(value, here)
        if is_spelt and (option.form == "clients" or takes_tools(option)):
            entry = "'package.module:function'" if takes_tools(option) else "{use = ..., model = ...}"
            told = f"expected a list, got {kind_of(value)}; write {option.name} = [{entry}]"
            raise WiringError(f"{here}: {told}", layer=layer, parameter=option.name)
        if option.form == "clients" and isinstance(value, list | tuple):
            each_at = [(f"{here}[{number}]", each) for number, each in enumerate(cast("Sequence[object]", value))]
            value = [self.provider(each, place) if _is_spelt(each) else each for place, each in each_at]
        return taken(option, value, here, layer=layer)


def _described(name: str, model: str, given: Config, make: object, *, is_built_in: bool) -> NamedProvider:
    """Return the placeholder for a provider. Only the class can say that its API edits nothing, a function cannot."""
    if isinstance(make, type) and not issubclass(make, EditsNatively):
        return NamedProvider(name, model, given)
    return NamedEditor(name, model, given, cast("type[EditsNatively]", make) if is_built_in else None)


def _check_provider(make: object, model: str, given: Config) -> None:
    """Check the arguments of a built-in provider without making it, which would take an SDK and a key."""
    owner, options = name_of(make), dict(given)
    if options.pop("base_url", None) is not None:
        check_base_url(owner, given["base_url"])
    for name in ("max_tokens_field", "cache", "cloud"):  # only their types can be wrong, and these are checked
        options.pop(name, None)
    defaults = {"timeout_seconds": None, "max_retries": None, "stall_seconds": None, "window_tokens": None}
    check_settings(owner, model=model, **{**defaults, **options})


def _is_spelt(value: object) -> bool:
    """Return True if the value is a name or a table, not the object itself."""
    return isinstance(value, str | Mapping)


def _are_alike(one: object, other: object) -> bool:
    """Return True if two values are equal and of one type, recursively: unlike ``==``, it tells ``True`` from ``1``."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        ours, theirs = cast("Config", one), cast("Config", other)
        return ours.keys() == theirs.keys() and all(_are_alike(ours[name], theirs[name]) for name in ours)
    if isinstance(one, (list, tuple)):
        items, others = cast("Sequence[object]", one), cast("Sequence[object]", other)
        return len(items) == len(others) and all(map(_are_alike, items, others))
    return one == other


def _used(section: object, here: str) -> tuple[object, Config, str]:
    """Split ``name`` or ``{"use": name, ...options}`` into the name, the options, and the place of the name."""
    if isinstance(section, str):
        return section, {}, here
    content = dict(table(section, here))
    if "use" not in content:
        raise WiringError(f"{here}: has no 'use': what is it to be?")
    return content.pop("use"), content, f"{here}.use"
