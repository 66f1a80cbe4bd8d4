"""A stack from a file or a dict: the same recipe that ``ChatStack(...).use(...)`` would make.

    provider = { use = "openai", model = "gpt-5-mini", timeout_seconds = 30 }
    memory = { store = { use = "sqlite", path = "decisions.sqlite" }, scope = "tenant-7" }

    [[layers]]
    use = "ContextWindowGuard"
    max_context_tokens = 128_000
    prune_on_overflow = true
    counter = "tokenizer"

A layer is a name, or a table with ``use``, its options and, where two would be called the same, a ``name``. Where a
layer takes a counter, that is a name or a table with ``use`` and options; where it takes a client of its own, that is
a table with ``use`` and ``model``, as the provider is, and where it takes several, a list of those. Beside these a
provider has its ``base_url``, ``timeout_seconds``, ``max_retries``, ``stall_seconds``, ``window_tokens``,
``max_tokens_field``, ``cache`` and ``cloud``, as in code. Names are those of the tables below, then those that
installed plugins offer (``chatstack.plugins``). Tools are named by where they are imported from: ``tools =
["my_app.tools:get_weather"]``; other functions come from code: ``from_config(path).override("FunctionInvoker",
approve=...)``. Everything is checked at once, so that an error says where in the file it is. YAML is read as its
version 1.2 has it: ``yes`` is text, and ``017`` seventeen.

What a config can never do: read another file or a variable of the environment, say which key a provider is asked with,
hold an object. What it can do, unless ``allowed`` says otherwise: have a provider called, wherever it says, with the
key that the environment has for it, have an installed plugin or a tool's module imported, and have a store opened,
which writes where the config says. So a config that somebody else wrote is read with
``from_config(config, provider, allowed=Allowed())``. It still decides about sizes, limits, placeholders and the prompt
of summaries: about what calls cost, and some of what a model reads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from chatstack import plugins
from chatstack.client.protocol import ChatClient, layer_kind
from chatstack.client.wiring import name_of, service_type, wire
from chatstack.config.files import opened
from chatstack.config.making import check_made, hidden_texts, told_at
from chatstack.config.names import Allowed as Allowed
from chatstack.config.names import NamedEditor, Names, Services
from chatstack.config.options import (
    REQUIRED,
    Option,
    applying_layer,
    is_strategy,
    own_options,
    takes_any,
    unhinted,
)
from chatstack.config.spellings import OPTIONS, Entry, entry_of
from chatstack.config.values import Config, check_keys, converted, key_shown, kind_of, nearest_to, shown, table
from chatstack.errors import WiringError
from chatstack.providers import registry
from chatstack.stack.entries import LayerSource, LayerSpec
from chatstack.stack.recipe import AT_MOST_ONE, ChatStack
from chatstack.stack.services import SharedServices, SupportsLayer

LAYERS: Mapping[str, str] = {
    "Budget": "chatstack.layers.budget",
    "ClearThenDrop": "chatstack.context.strategies.condensing",
    "ContextWindow": "chatstack.layers.window",
    "ContextWindowGuard": "chatstack.layers.guard",
    "Fallback": "chatstack.layers.fallback",
    "FunctionInvoker": "chatstack.tools.invoker",
    "ModelTracer": "chatstack.telemetry.tracer",
    "OldestFirst": "chatstack.context.strategies.pruning",
    "ProgressReporter": "chatstack.layers.progress",
    "Summarizer": "chatstack.layers.summarizer",
    "ToolResultClearer": "chatstack.layers.clearer",
    "ToolResultShaper": "chatstack.layers.shaper",
    "Truncate": "chatstack.context.strategies.truncating",
}
"""The layers that a config can name, and the modules that they are imported from when it does."""

PROVIDERS: Mapping[str, tuple[str, str]] = {
    name: (entry.module, entry.class_name) for name, entry in registry.PROVIDERS.items()
}

COUNTERS: Mapping[str, tuple[str, str]] = {
    "chars": ("chatstack.tokens.counter", "CharCounter"),
    "estimating": ("chatstack.tokens.estimating", "EstimatingCounter"),
    "table": ("chatstack.tokens.counter", "TableCounter"),
    "tokenizer": ("chatstack.tokens.counter", "TokenizerCounter"),
}

STORES: Mapping[str, tuple[str, str]] = {"sqlite": ("chatstack.stores.sqlite", "SQLiteStore")}

_MOST_LAYERS = 100
"""Maximum number of layers: no real stack has so many, and each is made once while the config is read."""
KEYS = ("provider", "memory", "layers", "trace_model_calls", "$schema")
"""The keys at the top of a config; ``$schema`` is for editors."""


def from_config(
    config: Config | str | os.PathLike[str], provider: ChatClient | None = None, *, allowed: Allowed | None = None
) -> ChatStack:
    """Read the recipe from a mapping, or a JSON, TOML or YAML file: ``{"provider": {...}, "layers": [...]}``.

    A ``provider`` that is passed replaces the one in the config. Pass ``allowed`` for a config from outside, to limit
    what it can name; the default, None, is for your own configs, which may name all that is installed. Services from a
    container are left to ``build(resolve)``; everything else is checked here. Raises ``WiringError`` with the place:
    ``pipeline.toml: layers[2].max_context_tokens: ...``.
    """
    return read(config, provider, allowed=allowed).stack


@dataclass(frozen=True, slots=True)
class Recipe:
    """A stack read from a config, with its source, and for each layer its kind, and the plugin's offer, None if built
    in."""

    where: str
    content: Config
    stack: ChatStack
    offers: tuple[plugins.Offer | None, ...]
    kinds: tuple[str, ...]


def read(
    config: Config | str | os.PathLike[str],
    provider: ChatClient | None = None,
    *,
    allowed: Allowed | None = None,
    describe: bool = False,
) -> Recipe:
    """Read a recipe for ``from_config``. With ``describe``, providers are named, not made: no SDK or key is needed."""
    if allowed is not None and not isinstance(allowed, Allowed):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise WiringError(f"from_config: allowed is {kind_of(allowed)}; pass an Allowed(...)", parameter="allowed")
    where, content = opened(config)
    check_keys(content, KEYS, where)
    converted(content.get("$schema", ""), str, f"{where}: $schema")
    services = Services(
        Names("provider", PROVIDERS, ("chatstack.providers",), allowed),
        Names("counter", COUNTERS, ("chatstack.counters",), allowed),
        Names("store", STORES, ("chatstack.stores",), allowed),
        describe,
    )
    if provider is None:
        if content.get("provider") is not None:
            provider = services.provider(content["provider"], f"{where}: provider")
        elif describe:
            provider = NamedEditor("", "")
        else:
            raise WiringError(f"{where}: no provider: add one ({{use, model}}), or pass provider=...")
    memory = services.memory(content["memory"], f"{where}: memory") if "memory" in content else None
    traced = cast("bool", converted(content.get("trace_model_calls", True), bool, f"{where}: trace_model_calls"))
    layers = content.get("layers", [])
    if not isinstance(layers, (list, tuple)):
        raise WiringError(f"{where}: layers: expected a list, got {kind_of(layers)}")
    if len(cast("Sequence[object]", layers)) > _MOST_LAYERS:
        raise WiringError(f"{where}: layers: {len(cast('Sequence[object]', layers))} of them, {_MOST_LAYERS} at most")
    homes = {name: (module, name) for name, module in LAYERS.items()}
    names = Names("layer", homes, ("chatstack.layers", "chatstack.strategies"), allowed)
    builder = _Builder(services, names, ChatStack(provider, memory=memory, trace_model_calls=traced))
    for index, entry in enumerate(cast("list[object]", layers)):
        builder.add(entry, f"{where}: layers[{index}]")
    return Recipe(where, content, builder.stack, tuple(builder.offers), tuple(builder.kinds))


class _Builder:
    """A builder that adds one layer after the other to a stack, and makes each once to check it."""

    def __init__(self, services: Services, names: Names, stack: ChatStack) -> None:
        self.stack = stack
        self.offers: list[plugins.Offer | None] = []
        self.kinds: list[str] = []
        self._services = services
        self._names = names
        self._once: dict[str, str] = {}

    def add(self, entry: object, here: str) -> None:
        """Add one more layer, inside those before it. Raises ``WiringError``."""
        if not isinstance(entry, (str, Mapping)):
            raise WiringError(f"{here}: expected the name of a layer, or a table with 'use', got {kind_of(entry)}")
        read = entry_of({"use": entry} if isinstance(entry, str) else table(cast("object", entry), here), here)
        if "use" not in read.options:
            known = ", ".join(sorted(self._names.built_in))
            raise WiringError(f"{here}: has no 'use'; name a layer: {known}")
        use, name = read.options.pop("use"), read.options.pop("name", None)
        loaded, offer = self._names.load(use, f"{read.here}.use")
        source = cast("LayerSource", loaded)
        if name is not None and not (isinstance(name, str) and name):
            raise WiringError(f"{here}.name: expected text, got {shown(name)}")
        layer = name or str(use)
        checked, known_options = self._checked(source, read, layer, offer)
        with told_at(here, offer, layer=layer):
            stack = self.stack.with_layer(source, name, checked)
        made = _try(stack.layers[-1], stack.provider, read, offer, known_options)
        with told_at(here, offer):
            kind = layer_kind(made)
        self._check_once(stack.layers[-1], kind, here)
        self.stack = stack
        self.offers.append(offer)
        self.kinds.append(kind)

    def _checked(
        self, source: LayerSource, entry: Entry, layer: str, offer: plugins.Offer | None
    ) -> tuple[dict[str, object], dict[str, Option]]:
        """Convert the options to the type hints of the layer or, for a strategy, also of the layer that applies it;
        return them and all options known by name."""
        with told_at(f"{entry.here}.use", offer):
            known, is_open = {each.name: each for each in own_options(source)}, takes_any(source)
        own, checked = set(known), dict[str, object]()
        for name in sorted(entry.options, key=lambda each: each not in own):
            if name not in own and is_strategy(source):
                with told_at(entry.here, offer):
                    applying = applying_layer(cast("type[SupportsLayer[...]]", source), checked)
                    known = {**{each.name: each for each in own_options(applying)}, **known}
            if name not in known and not is_open:
                names = [*known, *OPTIONS.get(name_of(source), ())]
                told = f"unknown option of {key_shown(layer)}; {nearest_to(name, names)}"
                told = _SHARED.get(name, told) if "services" in known else told
                raise WiringError(f"{entry.place(name)}: {told}", layer=layer, parameter=name)
            option = known.get(name, unhinted(name))
            checked[name] = self._services.option(option, entry.options[name], entry.place(name), layer=layer)
        for name in own if is_strategy(source) else ():
            if known[name].default is REQUIRED and name not in checked and known[name].form != "service":
                raise WiringError(f"{entry.place(name)}: is missing", layer=layer, parameter=name)
        return {name: checked[name] for name in entry.options}, known

    def _check_once(self, spec: LayerSpec, kind: object, here: str) -> None:
        """Refuse a second tool loop, reporter or tracer, with its place."""
        if isinstance(kind, str) and kind in AT_MOST_ONE:
            if kind in self._once:
                both = f"{self._once[kind]!r} and {spec.name!r}"
                raise WiringError(
                    f"{here}: two {AT_MOST_ONE[kind]} in one stack: {both}; leave one out", layer=spec.name
                )
            self._once[kind] = spec.name


_SHARED = {
    "memory": "all layers of a stack share one memory; put it at the top of the config, beside 'layers'",
    "telemetry": "all layers of a stack share one telemetry; build the stack with a container that has it",
}
"""Remedies for options that are parts of the layers' services, as far as people look for them in a layer."""


def _try(
    spec: LayerSpec, provider: ChatClient, entry: Entry, offer: plugins.Offer | None, known: Mapping[str, Option]
) -> object:
    """Make the layer once, around the provider alone, so that its errors get their place in the file.

    Returns the layer, or its source if the container has to give it something.
    """
    spelt = {name: entry.theirs.get(name, name) for name in (*known, *spec.options)}
    hidden = hidden_texts(spec.options, known)
    with told_at(entry.here, offer, made_by=spec.source, layer=spec.name, spelt=spelt, hidden=hidden):
        try:
            factory, options = spec.factory()
            resolve = SharedServices().behind(None)
            made = wire(factory, provider, options, name=spec.name, resolve=resolve, has_resolver=False)
        except WiringError as error:
            wanted = known.get(error.parameter)
            if wanted is None or wanted.default is not REQUIRED or wanted.name in spec.options:
                raise
            if wanted.form != "clients" and service_type(wanted.hint) not in (None, Any):
                return spec.source  # a service: whoever builds the stack has the container
            raise WiringError("is missing", layer=spec.name, parameter=wanted.name) from error
    check_made(made, entry.here, offer, wanted="layer", methods=("send",))
    return made
