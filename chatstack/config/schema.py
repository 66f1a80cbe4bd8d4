"""A JSON schema of configs, for editors that complete and check; made of the signatures of what a config can name.

``pipeline.schema.json`` beside this file is the one of what is built in; ``chatstack schema`` adds the names that
installed plugins offer. It says what there is and of which type. What only a layer can tell (a share above 1, say) is
told by ``from_config`` and ``chatstack inspect``.
"""

from __future__ import annotations

import importlib
import inspect
import json
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgspec

from chatstack import plugins
from chatstack.client.wiring import name_of
from chatstack.config.options import REQUIRED, Option, options_of, service_options
from chatstack.config.recipes import COUNTERS, LAYERS, PROVIDERS, STORES
from chatstack.config.spellings import CHOICES, OPTIONS, TYPES
from chatstack.config.values import without_paths
from chatstack.context.memory import ContextMemory

Schema: TypeAlias = dict[str, object]

_SHOWN = 80
"""Characters of a default that an editor shows."""

SHIPPED = "pipeline.schema.json"
"""The file beside this one."""


def pipeline_schema(*, with_plugins: bool = False) -> Schema:
    """The schema, with the names of the plugins that may be loaded if asked for; of those, the options are not known,
    for nothing of them is imported."""
    offered: Callable[[Sequence[str]], list[str]] = plugins.names if with_plugins else lambda _: []
    layers = {name: getattr(importlib.import_module(module), name) for name, module in LAYERS.items()}
    bare = [name for name in layers if not _required(options_of(layers[name]))]
    foreign = [each for each in offered(("chatstack.layers", "chatstack.strategies")) if each not in LAYERS]
    entries = [_one_of([*bare, *foreign]), *(_ref(name) for name in layers), *(_ref(name) for name in TYPES)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A chatstack pipeline: a provider, and the layers around it",
        **_table(
            {
                "$schema": {"type": "string"},
                "provider": _ref("provider"),
                "memory": _ref("memory"),
                "layers": {
                    "type": "array",
                    "items": {"anyOf": [*entries, *_foreign(foreign)]},
                    "description": "Outermost first: the first one listed is the first to see a request.",
                },
                "trace_model_calls": {"type": "boolean", "default": True},
            }
        ),
        "$defs": {
            "provider": _table(
                {
                    "use": _one_of([*PROVIDERS, *offered(("chatstack.providers",))]),
                    "model": {"type": "string", "minLength": 1},
                },
                ["use", "model"],
            ),
            "counter": _named(COUNTERS, offered(("chatstack.counters",))),
            "store": _named(STORES, offered(("chatstack.stores",))),
            "memory": {
                **_table({"store": _ref("store"), **_properties(service_options(ContextMemory), "ContextMemory")}),
                "dependentRequired": {"store": ["scope"], "scope": ["store"]},
            },
            **{name: _layer(name, source) for name, source in layers.items()},
            **{name: _other_spelling(name, layer, layers[layer]) for name, layer in TYPES.items()},
        },
    }


def written(schema: Schema) -> str:
    """The schema as the text of a file."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _layer(name: str, source: object) -> Schema:
    options = options_of(source)
    properties = {"use": {"const": name}, "name": {"type": "string", "minLength": 1}, **_properties(options, name)}
    return {"description": summary(source), **_table(properties, ["use", *_required(options)])}


def _other_spelling(name: str, layer: str, source: object) -> Schema:
    properties: Schema = {
        "type": {"const": name},
        "name": {"type": "string", "minLength": 1},
        "options": _table(_properties(options_of(source), layer), _required(options_of(source))),
    }
    return {"description": f"Another spelling of {layer}.", **_table(properties, ["type"])}


def _named(built_in: Mapping[str, tuple[str, str]], offered: Iterable[str]) -> Schema:
    """A name, or a table with ``use`` and options."""
    made = {name: getattr(importlib.import_module(module), each) for name, (module, each) in built_in.items()}
    options = {name: service_options(make) for name, make in made.items()}
    foreign = [each for each in offered if each not in built_in]
    tables = [
        {
            "description": summary(made[name]),
            **_table({"use": {"const": name}, **_properties(known, name)}, ["use", *_required(known)]),
        }
        for name, known in options.items()
    ]
    bare = [*(name for name, known in options.items() if not _required(known)), *foreign]
    return {"anyOf": [*([_one_of(bare)] if bare else []), *tables, *_foreign(foreign)]}


def _foreign(names: Sequence[str]) -> list[Schema]:
    return [{"type": "object", "properties": {"use": _one_of(names)}, "required": ["use"]}] if names else []


def _properties(options: Iterable[Option], owner: str) -> Schema:
    """The options that a config can hold, in every spelling."""
    found: Schema = {}
    other = {ours: theirs for theirs, ours in OPTIONS.get(owner, {}).items()}
    for option in options:
        if (schema := _value(option, owner)) is not None:
            found[option.name] = schema
            if option.name in other:
                found[other[option.name]] = schema
    return found


def _value(option: Option, owner: str) -> Schema | None:
    if option.form == "client":
        return _ref("provider")
    if option.form == "counter":
        return _ref("counter")
    if option.form != "plain":
        return None
    if names := CHOICES.get(owner, {}).get(option.name):
        inside = cast("tuple[object, ...]", typing.get_args(option.hint))[1]
        schema = {**_table(dict.fromkeys(names, _plain(inside))), "minProperties": 1, "maxProperties": 1}
    else:
        schema = _plain(option.hint)
    if isinstance(option.default, bool | int | float | str | dict) and len(str(cast("Any", option).default)) <= _SHOWN:
        schema["default"] = cast("Any", option).default
    return schema


def _plain(hint: object) -> Schema:
    schema = cast("Schema", msgspec.json.schema(without_paths(hint)))
    if schema == {"anyOf": [{"type": "integer"}, {"type": "number"}]}:
        return {"type": "number"}
    return schema


def _required(options: Iterable[Option]) -> list[str]:
    return [each.name for each in options if each.default is REQUIRED and each.form == "plain"]


def summary(source: object) -> str:
    """The first sentence of what a class says about itself; "" if it says nothing."""
    doc = inspect.getdoc(source) or ""
    if doc.startswith(f"{name_of(source)}("):  # what dataclasses make up
        return ""
    paragraph = doc.partition("\n\n")[0].replace("``", "")
    sentence, dot, _ = " ".join(paragraph.split()).partition(". ")
    return sentence + (dot.strip() if not sentence.endswith(".") else "")


def _table(properties: Schema, required: Sequence[str] = ()) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        **({"required": list(required)} if required else {}),
        "additionalProperties": False,
    }


def _one_of(names: Sequence[str]) -> Schema:
    return {"enum": list(dict.fromkeys(names))}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}
