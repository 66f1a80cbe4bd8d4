"""A stack from a file or a dict: the same recipe that ``ChatStack(...).use(...)`` would make.

    provider = { use = "openai", model = "gpt-5-mini" }

    [[layers]]
    use = "ContextWindowGuard"
    max_context_tokens = 128_000
    prune_on_overflow = true

A layer is a name, or a table with ``use``, its options and, where two would be called the same, a ``name``. Nothing
is imported but what the tables below name, and a provider gets its address and its key from its own environment,
never from here. Everything is checked at once, so that an error says where in the file it is.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import tomllib
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias, cast

import msgspec

from chatstack.client.protocol import ChatClient
from chatstack.client.services import SharedServices
from chatstack.client.stack import ChatStack, LayerSource, LayerSpec
from chatstack.client.wiring import nearest, service_type, wire
from chatstack.errors import WiringError

Config: TypeAlias = Mapping[str, object]

LAYERS: Mapping[str, str] = {
    "ContextWindowGuard": "chatstack.layers.guard",
    "FunctionInvoker": "chatstack.tools.invoker",
    "ModelTracer": "chatstack.telemetry.tracer",
    "ProgressReporter": "chatstack.layers.progress",
}
"""The layers that a config can name, and the modules that they are imported from when it does."""

PROVIDERS: Mapping[str, tuple[str, str]] = {
    "anthropic": ("chatstack.providers.anthropic", "AnthropicChatClient"),
    "openai": ("chatstack.providers.openai", "OpenAIChatClient"),
    "openai-responses": ("chatstack.providers.openai", "OpenAIResponsesClient"),
}


def from_config(config: Config | str | os.PathLike[str], provider: ChatClient | None = None) -> ChatStack:
    """The recipe that a mapping, or a JSON, TOML or YAML file, describes: ``{"provider": {...}, "layers": [...]}``.

    A ``provider`` that is passed takes the place of the one in the config. What a layer wants from a container is left
    to ``build(resolve)``; everything else is checked here. Raises ``WiringError``, which says where:
    ``pipeline.toml: layers[2].max_context_tokens: ...``.
    """
    if isinstance(config, Mapping):
        where, content = "config", config
    else:
        where, content = os.fspath(config), _read(Path(config))
    _check_keys(content, ("provider", "layers"), where)
    stack = ChatStack(provider if provider is not None else _provider(content.get("provider"), where))
    layers = content.get("layers", [])
    if not isinstance(layers, (list, tuple)):
        raise WiringError(f"{where}: layers: expected a list, got {_kind(layers)}")
    for index, entry in enumerate(cast("list[object]", layers)):
        stack = _with_layer(stack, entry, f"{where}: layers[{index}]")
    return stack


def _provider(section: object, where: str) -> ChatClient:
    if section is None:
        raise WiringError(f"{where}: no provider: add one ({{use, model}}), or pass provider=...")
    here = f"{where}: provider"
    content = _table(section, here)
    _check_keys(content, ("use", "model"), here)
    use, model = content.get("use"), content.get("model")
    if not isinstance(use, str) or use not in PROVIDERS:
        raise WiringError(f"{here}.use: {use!r} is no provider; {nearest(str(use), PROVIDERS)}")
    if not isinstance(model, str) or not model:
        raise WiringError(f"{here}.model: expected the name of a model, got {model!r}", parameter="model")
    module, name = PROVIDERS[use]
    make = cast("Callable[[str], ChatClient]", getattr(importlib.import_module(module), name))
    return make(model)


def _with_layer(stack: ChatStack, entry: object, here: str) -> ChatStack:
    if not isinstance(entry, (str, Mapping)):
        raise WiringError(f"{here}: expected the name of a layer, or a table with 'use', got {_kind(entry)}")
    options: dict[str, object] = {"use": entry} if isinstance(entry, str) else dict(_table(cast("object", entry), here))
    if "use" not in options:
        raise WiringError(f"{here}: has no 'use'; name a layer: {', '.join(sorted(LAYERS))}")
    use, name = options.pop("use"), options.pop("name", None)
    if not isinstance(use, str) or use not in LAYERS:
        raise WiringError(f"{here}.use: {use!r} is no layer; {nearest(str(use), LAYERS)}")
    if name is not None and not (isinstance(name, str) and name):
        raise WiringError(f"{here}.name: expected text, got {name!r}")
    source = cast("LayerSource", getattr(importlib.import_module(LAYERS[use]), use))
    checked = _checked_options(source, options, here, name or use)
    try:
        stack = stack.use(source, name=name, **checked)
    except WiringError as error:
        raise WiringError(f"{here}: {_bare(error)}", layer=error.layer, parameter=error.parameter) from error
    _try(stack.layers[-1], stack.provider, here)
    return stack


def _checked_options(source: LayerSource, options: Config, here: str, layer: str) -> dict[str, object]:
    """The options as the layer's type hints want them: lists as tuples where it says so, and no text for a number."""
    hints = _hints(source)
    known = _option_names(source)
    checked: dict[str, object] = {}
    for option, value in options.items():
        if option not in known:
            raise WiringError(
                f"{here}.{option}: unknown option of {layer}; {nearest(option, known)}", layer=layer, parameter=option
            )
        try:
            checked[option] = msgspec.convert(value, type=hints[option]) if option in hints else value
        except msgspec.ValidationError as error:
            told = str(error).replace("`", "")
            raise WiringError(
                f"{here}.{option}: {told[:1].lower()}{told[1:]}: {value!r}", layer=layer, parameter=option
            ) from error
        except TypeError:  # a hint that msgspec has no rule for: the layer itself checks such a value
            checked[option] = value
    return checked


def _try(spec: LayerSpec, provider: ChatClient, here: str) -> None:
    """Make the layer once, around the provider alone, so that what it refuses is told with its place in the file."""
    try:
        factory, options = spec.factory()
        wire(factory, provider, options, name=spec.name, resolve=SharedServices().behind(None), has_resolver=False)
    except WiringError as error:
        missing = error.parameter not in spec.options and error.parameter in _option_names(spec.source)
        if missing and service_type(_hints(spec.source).get(error.parameter)) is not None:
            return  # a service: whoever builds the stack has the container
        told = "is missing" if missing else _bare(error)
        place = f"{here}.{error.parameter}" if error.parameter else here
        raise WiringError(f"{place}: {told}", layer=spec.name, parameter=error.parameter) from error
    except (TypeError, ValueError) as error:
        raise WiringError(f"{here}: {error}", layer=spec.name) from error


def _option_names(source: LayerSource) -> list[str]:
    """What can be set on a layer: its parameters, without the client that it wraps."""
    parameters = list(inspect.signature(cast("Callable[..., object]", source)).parameters)
    return parameters if hasattr(source, "as_layer") else parameters[1:]


def _hints(source: LayerSource) -> dict[str, object]:
    try:
        return typing.get_type_hints(source.__init__ if isinstance(source, type) else source)  # type: ignore[misc]
    except (NameError, TypeError):
        return {}


def _bare(error: WiringError) -> str:
    """What it says, without naming the layer: the place in the file does."""
    return str(error).removeprefix(f"layer {error.layer!r}: ").removeprefix(f"{error.layer}: ")


def _read(path: Path) -> Config:
    readers: dict[str, Callable[[str], object]] = {
        ".json": json.loads,
        ".toml": tomllib.loads,
        ".yaml": _yaml,
        ".yml": _yaml,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise WiringError(f"{path}: expected a file that ends in {', '.join(readers)}")
    try:
        return _table(reader(path.read_text(encoding="utf-8-sig")), str(path))
    except OSError as error:
        raise WiringError(f"{path}: cannot be read: {error.strerror or error}") from error
    except RecursionError as error:
        raise WiringError(f"{path}: nested too deeply") from error
    except ValueError as error:  # what the JSON and TOML readers and the decoder raise
        raise WiringError(f"{path}: not valid {path.suffix[1:].upper()}: {error}") from error


def _yaml(text: str) -> object:
    try:
        import yaml
    except ImportError as error:
        raise WiringError("reading YAML needs an extra: pip install 'chatstack-core[yaml]'") from error
    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark is not None else ""
        raise ValueError(f"{line}{error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _table(value: object, where: str) -> Config:
    if not isinstance(value, Mapping):
        raise WiringError(f"{where}: expected a table of names and values, got {_kind(value)}")
    for key in cast("Mapping[object, object]", value):
        if not isinstance(key, str):
            raise WiringError(f"{where}: {key!r} is not a name; keys are text")
    return cast("Config", value)


def _check_keys(content: Config, known: tuple[str, ...], where: str) -> None:
    for key in content:
        if key not in known:
            raise WiringError(f"{where}: unknown key {key!r}; {nearest(str(key), known)}", parameter=str(key))


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
