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
import reprlib
import stat
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias, cast

import msgspec

from chatstack.client.protocol import ChatClient
from chatstack.client.services import SharedServices
from chatstack.client.stack import ChatStack, LayerSource, LayerSpec
from chatstack.client.wiring import Layer, nearest, option_names, service_type, wire
from chatstack.errors import WiringError
from chatstack.spellings import in_our_spelling

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

_VALUE_CHARS = 80
"""How much of a value an error shows."""
_MESSAGE_CHARS = 400
"""How much of what somebody else says about it: a layer, a reader."""
_LARGEST_YAML = 1_000_000


def from_config(config: Config | str | os.PathLike[str], provider: ChatClient | None = None) -> ChatStack:
    """The recipe that a mapping, or a JSON, TOML or YAML file, describes: ``{"provider": {...}, "layers": [...]}``.

    A ``provider`` that is passed takes the place of the one in the config. What a layer wants from a container is left
    to ``build(resolve)``; everything else is checked here. Raises ``WiringError``, which says where:
    ``pipeline.toml: layers[2].max_context_tokens: ...``.
    """
    where, content = _opened(config)
    _check_keys(content, ("provider", "layers"), where)
    stack = ChatStack(provider if provider is not None else _provider(content.get("provider"), where))
    layers = content.get("layers", [])
    if not isinstance(layers, (list, tuple)):
        raise WiringError(f"{where}: layers: expected a list, got {_kind(layers)}")
    for index, entry in enumerate(cast("list[object]", layers)):
        stack = _with_layer(stack, entry, f"{where}: layers[{index}]")
    return stack


def _opened(config: object) -> tuple[str, Config]:
    """What to call it in errors, and what it says."""
    if isinstance(config, Mapping):
        return "config", cast("Config", config)
    path: object = os.fspath(cast("os.PathLike[str]", config)) if isinstance(config, os.PathLike) else config
    if not isinstance(path, str):
        raise WiringError(f"from_config: expected a mapping or the path of a file, got {_kind(path)}")
    return path, _read(Path(path))


def _provider(section: object, where: str) -> ChatClient:
    if section is None:
        raise WiringError(f"{where}: no provider: add one ({{use, model}}), or pass provider=...")
    here = f"{where}: provider"
    content = _table(section, here)
    _check_keys(content, ("use", "model"), here)
    use, model = content.get("use"), content.get("model")
    if not isinstance(use, str) or use not in PROVIDERS:
        raise WiringError(f"{here}.use: {shown(use)} is no provider; {_nearest(use, PROVIDERS)}")
    if not isinstance(model, str) or not model:
        raise WiringError(f"{here}.model: expected the name of a model, got {shown(model)}", parameter="model")
    module, name = PROVIDERS[use]
    make = cast("Callable[[str], ChatClient]", getattr(importlib.import_module(module), name))
    return make(model)


def _with_layer(stack: ChatStack, entry: object, here: str) -> ChatStack:
    if not isinstance(entry, (str, Mapping)):
        raise WiringError(f"{here}: expected the name of a layer, or a table with 'use', got {_kind(entry)}")
    given = {"use": entry} if isinstance(entry, str) else _table(cast("object", entry), here)
    options = in_our_spelling(given, here)
    if "use" not in options:
        raise WiringError(f"{here}: has no 'use'; name a layer: {', '.join(sorted(LAYERS))}")
    use, name = options.pop("use"), options.pop("name", None)
    if not isinstance(use, str) or use not in LAYERS:
        raise WiringError(f"{here}.use: {shown(use)} is no layer; {_nearest(use, LAYERS)}")
    if name is not None and not (isinstance(name, str) and name):
        raise WiringError(f"{here}.name: expected text, got {shown(name)}")
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
                f"{here}.{_cut(option)}: unknown option of {layer}; {_nearest(option, known)}",
                layer=layer,
                parameter=option,
            )
        try:
            checked[option] = msgspec.convert(value, type=hints[option]) if option in hints else value
        except msgspec.ValidationError as error:
            told = _cut(str(error).replace("`", ""))  # it quotes text, however long
            raise WiringError(
                f"{here}.{option}: {told[:1].lower()}{told[1:]}: {shown(value)}", layer=layer, parameter=option
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
        raise WiringError(f"{here}: {_cut(str(error), _MESSAGE_CHARS)}", layer=spec.name) from error


def _option_names(source: LayerSource) -> list[str]:
    """What can be set on a layer: its parameters, without the client that it wraps."""
    if hasattr(source, "as_layer"):
        return list(inspect.signature(cast("Callable[..., object]", source)).parameters)
    layer: object = source
    return option_names(cast("Layer", layer))


def _hints(source: LayerSource) -> dict[str, object]:
    try:
        return typing.get_type_hints(source.__init__ if isinstance(source, type) else source)  # type: ignore[misc]
    except (NameError, TypeError):
        return {}


def _bare(error: WiringError) -> str:
    """What it says, without naming the layer: the place in the file does."""
    told = str(error).removeprefix(f"layer {error.layer!r}: ").removeprefix(f"{error.layer}: ")
    return _cut(told, _MESSAGE_CHARS)


def _read(path: Path) -> Config:
    readers: dict[str, Callable[[str], object]] = {
        ".json": json.loads,
        ".toml": tomllib.loads,
        ".yaml": _yaml,
        ".yml": _yaml,
    }
    text = _text(path)
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise WiringError(f"{path}: expected a file that ends in {', '.join(readers)}")
    if not text.strip():
        raise WiringError(f"{path}: is empty")
    try:
        return _table(reader(text), str(path))
    except RecursionError as error:
        raise WiringError(f"{path}: nested too deeply") from error
    except ValueError as error:  # what the JSON and TOML readers raise
        told = _cut(str(error), _MESSAGE_CHARS)
        raise WiringError(f"{path}: not valid {path.suffix[1:].upper()}: {told}") from error


def _text(path: Path) -> str:
    """What the file says. Only a regular file is opened: opening a pipe waits until somebody writes to it."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise WiringError(f"{path}: not a file")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise WiringError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise WiringError(f"{path}: not UTF-8 text: byte {error.start + 1} is wrong") from error
    except ValueError as error:  # a null character in the path
        raise WiringError(f"{path}: cannot be read: {error}") from error


def _yaml(text: str) -> object:
    try:
        import yaml
    except ImportError as error:
        raise WiringError("reading YAML needs an extra: pip install 'chatstack-core[yaml]'") from error
    try:
        found: object = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark is not None else ""
        raise ValueError(f"{line}{error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    _check_size(found)
    return found


def _check_size(value: object) -> None:
    """Refuse aliases of aliases: a few lines of them stand for more than any layer could look at, or show."""
    waiting, size = [value], 0
    while waiting:
        each = waiting.pop()
        size += 1 + (len(each) if isinstance(each, (str, bytes)) else 0)
        if size > _LARGEST_YAML:
            raise ValueError(f"larger than {_LARGEST_YAML:,} characters once its aliases are written out")
        if isinstance(each, dict):
            waiting.extend(cast("dict[object, object]", each))
            waiting.extend(cast("dict[object, object]", each).values())
        elif isinstance(each, (list, tuple, set)):
            waiting.extend(cast("list[object]", each))


def _table(value: object, where: str) -> Config:
    if not isinstance(value, Mapping):
        raise WiringError(f"{where}: expected a table of names and values, got {_kind(value)}")
    for key in cast("Mapping[object, object]", value):
        if not isinstance(key, str):
            raise WiringError(f"{where}: {shown(key)} is not a name; keys are text")
    return cast("Config", value)


def _check_keys(content: Config, known: tuple[str, ...], where: str) -> None:
    for key in content:
        if key not in known:
            raise WiringError(f"{where}: unknown key {shown(key)}; {_nearest(key, known)}", parameter=str(key))


def _kind(value: object) -> str:
    name = type(value).__name__
    return "nothing" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


class _Shortened(reprlib.Repr):
    """A repr that looks only at what it shows, however large the value is."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = _VALUE_CHARS

    def repr_int(self, x: int, level: int) -> str:
        """A number as it is, unless it is one that Python would refuse to write."""
        return repr(x) if x.bit_length() <= 8 * _VALUE_CHARS else f"a number of {x.bit_length():,} bits"


def shown(value: object) -> str:
    """A value as an error shows it: its repr, in at most 80 characters."""
    return _cut(_Shortened().repr(value))


def _nearest(name: object, known: Iterable[str]) -> str:
    """A hint for a misspelt name; what is no name, or far too long for one, is not compared."""
    return nearest(name if isinstance(name, str) and len(name) <= _VALUE_CHARS else "", known)


def _cut(text: str, characters: int = _VALUE_CHARS) -> str:
    return text if len(text) <= characters else f"{text[: characters - 3]}..."
