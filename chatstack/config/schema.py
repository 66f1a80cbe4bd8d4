"""A JSON schema of configs, for completion and checks in editors, generated from the signatures of what they can name.

``chatstack schema`` prints it, with the names that installed plugins offer. It accepts what ``from_config`` accepts,
and also what a schema cannot exclude: one value not less than another, two layers of one name, a number that is NaN.
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
from chatstack.client.hints import as_data, bare, takes_none
from chatstack.client.options import needs_one_of, one_of
from chatstack.client.protocol import layer_kind
from chatstack.client.wiring import name_of
from chatstack.config.imported import NAME
from chatstack.config.options import REQUIRED, Option, options_of, provider_options, service_options, takes_tools
from chatstack.config.recipes import COUNTERS, LAYERS, PROVIDERS, STORES
from chatstack.config.spellings import OPTIONS, TYPES, short_form
from chatstack.config.values import LARGEST, struct_in
from chatstack.context.memory.memory import ContextMemory
from chatstack.stack.recipe import AT_MOST_ONE

Schema: TypeAlias = dict[str, object]

_SHOWN = 80
"""Maximum length, in characters, of a default that the schema gives."""

_NAME: Schema = {"type": ["string", "null"], "minLength": 1}


def pipeline_schema(*, with_plugins: bool = False) -> Schema:
    """Return the schema, ``with_plugins`` also with the names that plugins offer; as no plugin is imported, their
    options are not known."""
    offered: Callable[[Sequence[str]], list[str]] = plugins.names if with_plugins else lambda _: []
    layers = {name: getattr(importlib.import_module(module), name) for name, module in LAYERS.items()}
    bare = [name for name in layers if not _required(options_of(layers[name])) and not needs_one_of(layers[name])]
    foreign = [each for each in offered(("chatstack.layers", "chatstack.strategies")) if each not in LAYERS]
    entries = [_one_of([*bare, *foreign]), *(_ref(name) for name in layers), *(_ref(name) for name in TYPES)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A chatstack pipeline: a provider, and the layers around it",
        **_table(
            {
                "$schema": {"type": "string"},
                "provider": _or_null(_ref("provider")),
                "memory": _ref("memory"),
                "layers": {
                    "type": "array",
                    "items": {"anyOf": [*entries, *_foreign(foreign)]},
                    "description": "Outermost first: the first one listed is the first to see a request.",
                    "allOf": [_at_most_one(name, source) for name, source in layers.items()],
                },
                "trace_model_calls": {"type": "boolean", "default": True},
            }
        ),
        "$defs": {
            "provider": _provider(offered(("chatstack.providers",))),
            "counter": _named(COUNTERS, offered(("chatstack.counters",))),
            "store": _named(STORES, offered(("chatstack.stores",))),
            "memory": _memory(),
            **{name: _layer(name, source) for name, source in layers.items()},
            **{name: _other_spelling(name, layer, layers[layer]) for name, layer in TYPES.items()},
        },
    }


def written(schema: Schema) -> str:
    """Return the schema as the text of a file."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _layer(name: str, source: object) -> Schema:
    options = options_of(source)
    properties = {"use": {"const": name}, "name": _NAME, **_properties(options, name)}
    return {"description": summary(source), **_table(properties, ["use", *_required(options)]), **_rules(name, source)}


def _other_spelling(name: str, layer: str, source: object) -> Schema:
    options = options_of(source)
    inside = {**_table(_properties(options, layer), _required(options)), **_rules(layer, source)}
    properties: Schema = {"type": {"const": name}, "name": _NAME, "options": inside}
    return {"description": f"Another spelling of {layer}.", **_table(properties, ["type"])}


def _rules(layer: str, source: object) -> Schema:
    """Return the constraints that concern several options of a layer."""
    twice = [{"not": {"required": [theirs, ours]}} for theirs, ours in OPTIONS.get(layer, {}).items()]
    one_of = [_has(each, {"not": {"type": "null"}}) for each in needs_one_of(source)]
    return {**({"allOf": twice} if twice else {}), **({"anyOf": one_of} if one_of else {})}


def _at_most_one(name: str, source: object) -> Schema:
    """Return the rule that a stack has at most one such layer; for most kinds, at most one without a name."""
    named: Schema = _has("name", {"type": "string"})
    unnamed: Schema = {} if layer_kind(source) in AT_MOST_ONE else {"not": named}
    types = [_has("type", {"const": each}) for each, layer in TYPES.items() if layer == name]
    tables = [{"type": "object", **each, **unnamed} for each in (_has("use", {"const": name}), *types)]
    return {"contains": {"anyOf": [{"const": name}, *tables]}, "minContains": 0, "maxContains": 1}


def _provider(offered: Iterable[str]) -> Schema:
    """Return the schema of a provider: built-in ones with their own options, those of plugins with all options."""
    made = {name: getattr(importlib.import_module(module), each) for name, (module, each) in PROVIDERS.items()}
    options = {name: _properties(provider_options(make), name_of(make)) for name, make in made.items()}
    foreign = [each for each in offered if each not in PROVIDERS]
    everything = {key: value for each in options.values() for key, value in each.items()}
    uses: list[tuple[Schema, Schema]] = [({"const": name}, known) for name, known in options.items()]
    uses += [(_one_of(foreign), everything)] if foreign else []
    model: Schema = {"type": "string", "minLength": 1}
    return {"anyOf": [_table({"use": use, "model": model, **known}, ["use", "model"]) for use, known in uses]}


def _memory() -> Schema:
    """Return the schema of the memory, which has a scope exactly if it has a store."""
    options = [each for each in service_options(ContextMemory) if each.name != "store"]
    return {
        **_table({"store": _or_null(_ref("store")), **_properties(options, "ContextMemory")}),
        "if": _has("store", {"not": {"type": "null"}}),
        "then": {"properties": {"scope": {"minLength": 1}}, "required": ["scope"]},
        "else": {"properties": {"scope": {"const": ""}}},
    }


def _named(built_in: Mapping[str, tuple[str, str]], offered: Iterable[str]) -> Schema:
    """Return the schema of a name, or a table with ``use`` and options."""
    made = {name: getattr(importlib.import_module(module), each) for name, (module, each) in built_in.items()}
    options = {name: service_options(make) for name, make in made.items()}
    foreign = [each for each in offered if each not in built_in]
    tables = [
        {
            "description": summary(made[name]),
            **_table({"use": {"const": name}, **_properties(known, name_of(made[name]))}, ["use", *_required(known)]),
        }
        for name, known in options.items()
    ]
    bare = [*(name for name, known in options.items() if not _required(known)), *foreign]
    return {"anyOf": [*([_one_of(bare)] if bare else []), *tables, *_foreign(foreign)]}


def _foreign(names: Sequence[str]) -> list[Schema]:
    return [{"type": "object", "properties": {"use": _one_of(names)}, "required": ["use"]}] if names else []


def _properties(options: Iterable[Option], owner: str) -> Schema:
    """Return the options that a config can hold, in every spelling."""
    found: Schema = {}
    other = {ours: theirs for theirs, ours in OPTIONS.get(owner, {}).items()}
    for option in options:
        if (schema := _value(option)) is not None:
            found[option.name] = schema
            if option.name in other:
                found[other[option.name]] = schema
    return found


def _value(option: Option) -> Schema | None:
    """Return the schema of an option's value; None if a config cannot hold it."""
    if option.form == "clients":
        return {"type": "array", "items": _ref("provider"), "minItems": 1}
    if option.form in ("counter", "client"):
        schema = _ref("counter" if option.form == "counter" else "provider")
        return _or_null(schema) if takes_none(option.hint) else schema
    if option.form != "plain":
        return _nothing(option)
    if choice := one_of(option.hint):
        entries: Schema = {name: _plain(hint) for name, hint in choice.choices.items()}
        schema = {**_table(entries), "minProperties": 1, "maxProperties": 1}
    else:
        schema = _plain(option.hint)
    if isinstance(option.default, bool | int | float | str | dict) and len(str(cast("Any", option).default)) <= _SHOWN:
        schema["default"] = cast("Any", option).default
    return schema


def _nothing(option: Option) -> Schema | None:
    """Return the schema of an option that only code or a container can set: tools, an empty value, or None."""
    if takes_none(option.hint):
        return {"type": "null"}
    if takes_tools(option):
        told = "Where tools are imported from: package.module:function. Others are given in code."
        return {"type": "array", "items": {"type": "string", "pattern": NAME}, "description": told}
    if option.form == "code" and typing.get_origin(bare(option.hint)) in (Sequence, list, tuple):
        return {"type": "array", "maxItems": 0, "description": "Given in code."}
    return None


def _plain(hint: object) -> Schema:
    if (struct := struct_in(hint)) is not None:
        names = [each.name for each in msgspec.structs.fields(struct) if each.required]
        forms: list[Schema] = [{"type": "object", "required": names}]
        if (short := short_form(hint, {})) is not None:
            options = service_options(short)
            forms.append(_table(_properties(options, name_of(short)), _required(options)))
        return {"anyOf": [*forms, {"type": "null"}]}
    schema = cast("Schema", msgspec.json.schema(as_data(hint)))
    if "'integer'" in str(schema):
        schema["maximum"] = LARGEST
    return schema


def _required(options: Iterable[Option]) -> list[str]:
    return [each.name for each in options if each.default is REQUIRED and each.form in ("plain", "clients")]


def summary(source: object) -> str:
    """Return the first sentence of a class's docstring; "" if it has none of its own."""
    doc = inspect.getdoc(source) or ""
    if doc.startswith(f"{name_of(source)}("):  # the generated docstring of a dataclass
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


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _has(name: str, schema: Schema) -> Schema:
    """Return the schema of a table that has this key, with a value of this schema."""
    return {"required": [name], "properties": {name: schema}}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}
