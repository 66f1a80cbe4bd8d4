"""A stack from a file or a dict: the same recipe that ``ChatStack(...).use(...)`` would make.

    provider = { use = "openai", model = "gpt-5-mini" }
    memory = { store = { use = "sqlite", path = "decisions.sqlite" }, scope = "tenant-7" }

    [[layers]]
    use = "ContextWindowGuard"
    max_context_tokens = 128_000
    prune_on_overflow = true
    counter = "tokenizer"

A layer is a name, or a table with ``use``, its options and, where two would be called the same, a ``name``. Where a
layer takes a counter, that is a name or a table with ``use`` and options; where it takes a client of its own, that is
a table with ``use`` and ``model``, as the provider is. Names are those of the tables below, then those that installed
plugins offer (``chatstack.plugins``). Functions, such as tools, come from code:
``from_config(path).override("FunctionInvoker", tools=[...])``. Everything is checked at once, so that an error says
where in the file it is.

What a config can never do: import a module by its path, read another file or a variable of the environment, say where
a provider is or which key it is asked with, name a tool, run anything. What it can do, unless ``allowed`` says
otherwise: have a provider called with the key that the environment has for it, have an installed plugin imported, and
have a store opened, which writes where the config says. So a config that somebody else wrote is read with
``from_config(config, provider, allowed=Allowed())``. It still decides about sizes, limits, placeholders and the prompt
of summaries: about what calls cost, and some of what a model reads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

from chatstack import plugins
from chatstack.client.protocol import ChatClient
from chatstack.client.services import SharedServices, SupportsLayer
from chatstack.client.stack import AT_MOST_ONE, ChatStack, LayerSource, LayerSpec
from chatstack.client.wiring import option_names, service_type, wire
from chatstack.config.files import opened
from chatstack.config.names import Allowed as Allowed
from chatstack.config.names import NamedProvider, Names, Services, by
from chatstack.config.options import REQUIRED, applying_layer, hints_of, names_of, options_of, takes_any
from chatstack.config.spellings import check_choices, in_our_spelling
from chatstack.config.values import (
    MESSAGE_CHARS,
    check_keys,
    converted,
    cut,
    key_shown,
    kind_of,
    nearest_to,
    shown,
    table,
)
from chatstack.errors import WiringError

Config: TypeAlias = Mapping[str, object]

LAYERS: Mapping[str, str] = {
    "ClearThenDrop": "chatstack.context.condensing",
    "ContextWindow": "chatstack.layers.window",
    "ContextWindowGuard": "chatstack.layers.guard",
    "FunctionInvoker": "chatstack.tools.invoker",
    "ModelTracer": "chatstack.telemetry.tracer",
    "OldestFirst": "chatstack.context.pruning",
    "ProgressReporter": "chatstack.layers.progress",
    "Summarizer": "chatstack.layers.summarizer",
    "ToolResultClearer": "chatstack.layers.clearer",
    "Truncate": "chatstack.context.truncating",
}
"""The layers that a config can name, and the modules that they are imported from when it does."""

PROVIDERS: Mapping[str, tuple[str, str]] = {
    "anthropic": ("chatstack.providers.anthropic", "AnthropicChatClient"),
    "openai": ("chatstack.providers.openai", "OpenAIChatClient"),
    "openai-responses": ("chatstack.providers.openai", "OpenAIResponsesClient"),
}

COUNTERS: Mapping[str, tuple[str, str]] = {
    "chars": ("chatstack.tokens.counter", "CharCounter"),
    "estimating": ("chatstack.tokens.estimating", "EstimatingCounter"),
    "table": ("chatstack.tokens.counter", "TableCounter"),
    "tokenizer": ("chatstack.tokens.counter", "TokenizerCounter"),
}

STORES: Mapping[str, tuple[str, str]] = {"sqlite": ("chatstack.stores.sqlite", "SQLiteStore")}

KEYS = ("provider", "memory", "layers", "trace_model_calls", "$schema")
"""What a config has at its top; ``$schema`` is for editors."""


def from_config(
    config: Config | str | os.PathLike[str], provider: ChatClient | None = None, *, allowed: Allowed | None = None
) -> ChatStack:
    """The recipe that a mapping, or a JSON, TOML or YAML file, describes: ``{"provider": {...}, "layers": [...]}``.

    A ``provider`` that is passed takes the place of the one in the config. A config from outside is read with what it
    is ``allowed`` to name; None is for one's own, which may name all that is installed. What a layer wants from a
    container is left to ``build(resolve)``; everything else is checked here. Raises ``WiringError``, which says where:
    ``pipeline.toml: layers[2].max_context_tokens: ...``.
    """
    return read(config, provider, allowed=allowed).stack


@dataclass(frozen=True, slots=True)
class Recipe:
    """A stack that was read, from where, and for each of its layers the plugin that it is from, None if built in."""

    where: str
    content: Config
    stack: ChatStack
    offers: tuple[plugins.Offer | None, ...]


def read(
    config: Config | str | os.PathLike[str],
    provider: ChatClient | None = None,
    *,
    allowed: Allowed | None = None,
    describe: bool = False,
) -> Recipe:
    """What ``from_config`` reads. With ``describe``, providers are only named, not made: that takes no SDK, no key."""
    where, content = opened(config)
    check_keys(content, KEYS, where)
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
            provider = NamedProvider("", "")
        else:
            raise WiringError(f"{where}: no provider: add one ({{use, model}}), or pass provider=...")
    memory = services.memory(content["memory"], f"{where}: memory") if "memory" in content else None
    traced = cast("bool", converted(content.get("trace_model_calls", True), bool, f"{where}: trace_model_calls"))
    layers = content.get("layers", [])
    if not isinstance(layers, (list, tuple)):
        raise WiringError(f"{where}: layers: expected a list, got {kind_of(layers)}")
    builder = _Builder(
        services,
        Names("layer", _homes(LAYERS), ("chatstack.layers", "chatstack.strategies"), allowed),
        ChatStack(provider, memory=memory, trace_model_calls=traced),
    )
    for index, entry in enumerate(cast("list[object]", layers)):
        builder.add(entry, f"{where}: layers[{index}]")
    return Recipe(where, content, builder.stack, tuple(builder.offers))


def _homes(layers: Mapping[str, str]) -> Mapping[str, tuple[str, str]]:
    return {name: (module, name) for name, module in layers.items()}


class _Builder:
    """A stack that grows by one layer after the other, each tried when it comes."""

    def __init__(self, services: Services, names: Names, stack: ChatStack) -> None:
        self.stack = stack
        self.offers: list[plugins.Offer | None] = []
        self._services = services
        self._names = names
        self._once: dict[str, str] = {}

    def add(self, entry: object, here: str) -> None:
        """The recipe with one more layer inside."""
        if not isinstance(entry, (str, Mapping)):
            raise WiringError(f"{here}: expected the name of a layer, or a table with 'use', got {kind_of(entry)}")
        given = {"use": entry} if isinstance(entry, str) else table(cast("object", entry), here)
        options = in_our_spelling(given, here)
        if "use" not in options:
            known = ", ".join(sorted(self._names.built_in))
            raise WiringError(f"{here}: has no 'use'; name a layer: {known}")
        use, name = options.pop("use"), options.pop("name", None)
        if "use" not in given:  # in another spelling, the options are a table of their own
            here = f"{here}.options"
        loaded, offer = self._names.load(use, f"{here}.use")
        source = cast("LayerSource", loaded)
        try:
            names_of(source)
        except (WiringError, TypeError, ValueError) as error:
            raise WiringError(f"{here}.use: {error}{by(offer)}") from error
        if name is not None and not (isinstance(name, str) and name):
            raise WiringError(f"{here}.name: expected text, got {shown(name)}")
        check_choices(str(use), options, here)
        checked = self._checked(source, options, here, name or str(use))
        try:
            stack = self.stack.use(source, name=name, **checked)
        except WiringError as error:
            raise WiringError(f"{here}: {_bare(error)}", layer=error.layer, parameter=error.parameter) from error
        self._check_once(stack.layers[-1], _try(stack.layers[-1], stack.provider, here, offer), here)
        self.stack = stack
        self.offers.append(offer)

    def _checked(self, source: LayerSource, options: Config, here: str, layer: str) -> dict[str, object]:
        """The options as the layer's type hints want them, or, of a strategy, those of the layer that applies it."""
        hints, known = hints_of(source), names_of(source)
        checked: dict[str, object] = {}
        for option in sorted(options, key=lambda each: each not in known):
            if option not in known and isinstance(source, type) and hasattr(source, "as_layer"):
                applying = applying_layer(cast("type[SupportsLayer]", source), checked)
                hints, known = {**hints_of(applying), **hints}, [*known, *option_names(applying)]
            if option not in known and not takes_any(source):
                raise WiringError(
                    f"{here}.{key_shown(option)}: unknown option of {key_shown(layer)}; {nearest_to(option, known)}",
                    layer=layer,
                    parameter=option,
                )
            value, place = options[option], f"{here}.{option}"
            checked[option] = (
                self._services.option(value, hints[option], place, layer=layer, option=option)
                if option in hints
                else value
            )
        if isinstance(source, type) and hasattr(source, "as_layer"):
            for each in options_of(source):
                if each.default is REQUIRED and each.name not in options and each.form != "service":
                    raise WiringError(f"{here}.{each.name}: is missing", layer=layer, parameter=each.name)
        return {option: checked[option] for option in options}

    def _check_once(self, spec: LayerSpec, layer: object, here: str) -> None:
        """Refuse a second tool loop, reporter or tracer, with its place."""
        kind = getattr(layer, "kind", "")
        if kind in AT_MOST_ONE:
            if kind in self._once:
                both = f"{self._once[kind]!r} and {spec.name!r}"
                raise WiringError(
                    f"{here}: two {AT_MOST_ONE[kind]} in one stack: {both}; leave one out", layer=spec.name
                )
            self._once[kind] = spec.name


def _try(spec: LayerSpec, provider: ChatClient, here: str, offer: plugins.Offer | None) -> object:
    """Make the layer once, around the provider alone, so that what it refuses is told with its place in the file.

    Gives the layer, or what it would be made by, if the container has to give it something.
    """
    try:
        factory, options = spec.factory()
        resolve = SharedServices().behind(None)
        return wire(factory, provider, options, name=spec.name, resolve=resolve, has_resolver=False)
    except WiringError as error:
        missing = error.parameter not in spec.options and error.parameter in names_of(spec.source)
        if missing and service_type(hints_of(spec.source).get(error.parameter)) is not None:
            return spec.source  # a service: whoever builds the stack has the container
        told = "is missing" if missing else _bare(error)
        place = f"{here}.{error.parameter}" if error.parameter else here
        raise WiringError(f"{place}: {told}{by(offer)}", layer=spec.name, parameter=error.parameter) from error
    except (Exception, SystemExit) as error:
        if offer is None and not isinstance(error, TypeError | ValueError):
            raise
        told = plugins.told(error) if offer is not None else cut(str(error), MESSAGE_CHARS)
        raise WiringError(f"{here}: {told}{by(offer)}", layer=spec.name) from error


def _bare(error: WiringError) -> str:
    """What it says, without naming the layer: the place in the file does."""
    told = str(error).removeprefix(f"layer {error.layer!r}: ").removeprefix(f"{error.layer}: ")
    return cut(told, MESSAGE_CHARS)
