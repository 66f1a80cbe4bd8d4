"""Structured output: the JSON schema of a type for the provider, and the value from the answer's text."""

from __future__ import annotations

import copy
import functools
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgspec

from chatstack.client.constraints import as_msgspec_says, check_models, is_bounded_by_msgspec, is_pydantics
from chatstack.client.json_schemas import Schema, add_types, described, schemas_in
from chatstack.client.loose_json import decoded_as, unfenced
from chatstack.errors import InputError, OutputError
from chatstack.values.requests import OutputSchema
from chatstack.values.responses import ChatResponse, ParsedResponse
from chatstack.values.thoughts import without_thought

T = TypeVar("T")

_ROOT = "value"
"""Name of the field that wraps a value which is no object (a union, a list, a number): providers want an object."""
_UNWRAPPED = f"expected an object with the one field `{_ROOT}`"
_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_PLACE = re.compile(r"at `([^`]+)`")
_BOUND = (
    r" (?:(?:[<>]=?|that's a multiple of) [-+.e0-9]+|of (?:at (?:least|most) )?length (?:[<>]= )?[0-9]+(?: to [0-9]+)?"
    r"|matching regex (?:'.*'|\".*\")|with (?:a|no) timezone component)"
)
"""Pattern of the words for a bound: these alone, as a class may raise anything."""
_EXPECTED = re.compile(rf"^Expected `([a-z0-9 |-]+)`({_BOUND})?")
_MISSING = re.compile(r"^Object missing required field `([^`]+)`")
_STRICT_WORDS = frozenset(
    {"type", "title", "description", "enum", "const", "anyOf", "$ref", "$defs", "properties", "required", "items"}
    | {"additionalProperties", "minItems", "maxItems", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    | {"multipleOf", "pattern", "format"}
)
_STRICT_FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"})
"""String formats that OpenAI's strict mode takes; it refuses a schema with any other format or keyword."""
_NOT_READ = {"length": "was cut off by a limit", "refused": "was refused"}
_WHY = {"tool_calls": "is a call of tools, and ", "paused": "was paused, and "}


@dataclass(frozen=True, slots=True)
class OutputShape:
    """Schema and decoder of an output type: a dataclass, ``TypedDict`` or ``msgspec.Struct``, a pydantic model, or any
    type or union that these libraries know."""

    schema: OutputSchema
    _read: Callable[[str], object]

    def parsed(self, answer: ChatResponse) -> ParsedResponse[object]:
        """Return the same answer with its value in ``parsed``. Raises ``OutputError``, which keeps the text."""
        reason = answer.finish_reason or ""
        if reason in _NOT_READ:
            raise self._wrong(_NOT_READ[reason], answer)
        said = without_thought(answer.text, is_json=True)
        try:
            value = self._value_of(said)
        except Exception as error:
            is_json = _is_json(unfenced(said) or "") or _is_json(said)
            why = f"does not fit{self._misfit(error)}" if is_json else "is not JSON"
            raise self._wrong(f"{_WHY.get(reason, '')}{why}", answer) from error
        fields: dict[str, Any] = {**msgspec.structs.asdict(answer), "parsed": value}
        return ParsedResponse(**fields)

    def _value_of(self, text: str) -> object:
        """Return the value of an answer, also one in a code fence."""
        try:
            return self._read(text)
        except Exception:
            inner = unfenced(text)
            if inner is None or _is_json(text):
                raise
        return self._read(inner)

    def _misfit(self, error: Exception) -> str:
        """Return the path and the fault that an error of msgspec's or pydantic's names, never the answer's own text; ""
        for others."""
        pydantic: Any = sys.modules.get("pydantic")
        if pydantic is None or not isinstance(error, pydantic.ValidationError):
            return _told_by_msgspec(str(error))
        first = cast("Any", error).errors(include_context=False, include_input=False)[0]
        names = self.schema.schema  # what it does not have is a key of the answer's
        parts = [
            f"[{each}]" if isinstance(each, int) else f".{each}" if f'"{each}"' in names else "[...]"
            for each in first["loc"]
        ]
        path = f"at `${''.join(parts)}`" if parts else ""
        fault = first["type"] if "url" in first else ""  # others are a class's own
        return "".join(f": {each}" for each in (path, fault) if each)

    def _wrong(self, why: str, answer: ChatResponse) -> OutputError:
        return OutputError(f"output_type={self.schema.name}: the answer {why}", text=answer.text, response=answer)


def _told_by_msgspec(told: str) -> str:
    if told == _UNWRAPPED:
        return f": {told}"
    place, expected, missing = _PLACE.search(told), _EXPECTED.search(told), _MISSING.search(told)
    path = f"at `{place[1]}`" if place else ""
    fault = f"expected {expected[1]}{expected[2] or ''}" if expected else f"missing `{missing[1]}`" if missing else ""
    return "".join(f": {each}" for each in (path, fault) if each)


def shape_of(kind: object) -> OutputShape:
    """Return the shape for that type. Raises ``InputError`` for one that has no JSON schema."""
    if isinstance(kind, str):  # a forward reference, which nothing would resolve
        raise InputError(f"output_type: expected a class, got text {kind!r}")
    try:
        return _shape_of(kind)
    except Exception as error:  # an annotation is code, so it may raise anything
        told = str(error).split("\n")[0].rstrip(".")
        raise InputError(f"output_type={kind!r} cannot be described as JSON ({told})") from error


@functools.lru_cache(maxsize=256)
def _shape_of(kind: Any) -> OutputShape:
    if inspect.isroutine(kind):  # pydantic would call it
        raise TypeError("a function is no type")
    check_models(kind)
    name = _NAME.sub("_", getattr(kind, "__name__", ""))[:64] or "answer"
    schema, read = _by_pydantic(kind) or _by_msgspec(as_msgspec_says(kind))
    is_object = schema.get("type") == "object" and "properties" in schema
    if not is_object:
        definitions = schema.pop("$defs", None)
        schema = {"type": "object", "properties": {_ROOT: schema}, "required": [_ROOT]}
        if definitions:
            schema["$defs"] = definitions
    add_types(schema)
    is_strict = _close(schema) and _is_small(schema)
    text = msgspec.json.encode(schema).decode()
    return OutputShape(OutputSchema(name, text, strict=is_strict), read if is_object else _unwrapping(read))


def _by_pydantic(kind: Any) -> tuple[Schema, Callable[[str], Any]] | None:
    """Return schema and decoder by pydantic, only if it is installed and the type is, or contains, one of its models
    or constraints, or is one that msgspec cannot tell apart: a union of dataclasses."""
    if not is_pydantics(kind):  # which msgspec would misread
        try:
            msgspec.json.schema(kind)
        except (TypeError, RecursionError) as error:  # the latter for a type alias that names itself
            if is_bounded_by_msgspec(kind):
                raise TypeError(f"pydantic reads no msgspec.Meta, and msgspec says: {error}") from error
        else:
            return None
    elif is_bounded_by_msgspec(kind):
        return None
    try:
        import pydantic  # only for such a type
    except ImportError:
        return None
    try:
        adapter = pydantic.TypeAdapter(kind)
        schema: Schema = adapter.json_schema()
    except pydantic.errors.PydanticUserError as error:
        if is_pydantics(kind):  # with a Struct, of which pydantic knows nothing
            return None
        raise TypeError(str(error)) from error
    return _inlined(schema), lambda text: adapter.validate_json(text)


def _by_msgspec(kind: Any) -> tuple[Schema, Callable[[str], Any]]:
    schema, definitions = described(kind)
    if definitions:
        schema["$defs"] = definitions
    return _inlined(schema), functools.partial(decoded_as, kind)


def _inlined(schema: Schema) -> Schema:
    """Return the schema with its root reference inlined, as providers want it; a root that refers to itself is also
    kept in the definitions."""
    definitions = cast("dict[str, Schema]", schema.get("$defs", {}))
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if name not in definitions:
        return schema
    rest = {key: value for key, value in definitions.items() if key != name}
    own = copy.deepcopy(definitions[name])
    if f'"#/$defs/{name}"' in msgspec.json.encode([own, rest]).decode():
        rest[name] = definitions[name]
    if rest:
        own["$defs"] = rest
    return own


def _close(schema: Schema) -> bool:
    """Normalise a schema for providers, with the same meaning: objects allow no other properties, unions are ``anyOf``,
    and optional values are null instead of absent.

    Return True if it then fits strict modes: every property required, no free keys, no keyword that they lack.
    """
    schema.pop("discriminator", None)  # of OpenAPI; the members say the same by a constant
    if "oneOf" in schema:
        schema["anyOf"] = schema.pop("oneOf")
    if "$ref" in schema and len(schema) > 1:
        schema["anyOf"] = [{"$ref": schema.pop("$ref")}]
    properties = cast("dict[str, Schema] | None", schema.get("properties"))
    if properties is not None:
        schema["additionalProperties"] = False
        required = set(cast("list[str]", schema.get("required", [])))
        for name, each in properties.items():
            if each.get("default", ...) is None:
                del each["default"]
                required.add(name)
        schema["required"] = [name for name in properties if name in required]
    below = [*(properties or {}).values(), *cast("dict[str, Schema]", schema.get("$defs", {})).values()]
    for word in ("anyOf", "prefixItems"):
        below += cast("list[Schema]", schema.get(word, []))
    inner: list[object] = [schema.get("items"), schema.get("additionalProperties")]
    below += [cast("Schema", each) for each in inner if isinstance(each, dict)]
    return all([_is_strict(schema), *(_close(each) for each in below)])


def _is_strict(schema: Schema) -> bool:
    """Return True if a schema, without those inside it, fits strict modes."""
    kind = schema.get("type")
    return (
        schema.keys() <= _STRICT_WORDS
        and not schema.keys().isdisjoint({"type", "anyOf", "$ref"})
        and schema.get("format", "uuid") in _STRICT_FORMATS
        and "(?" not in schema.get("pattern", "")  # lookarounds are not supported
        and (kind != "array" or isinstance(schema.get("items"), dict))
        and (kind != "object" or schema.get("required", None) == list(schema.get("properties", [])))
    )


def _is_small(schema: Schema) -> bool:
    """Return True for a schema of the size that OpenAI's strict mode takes: up to 5,000 properties and 1,000 values of
    enums, 120,000 characters in the names of both, and 15,000 in an enum of more than 250 values."""
    properties: list[str] = []
    values: list[str] = []
    left = [schema]
    while left:
        each = left.pop()
        own = [str(value) for value in each.get("enum", ())]
        if len(own) > 250 and sum(map(len, own)) > 15_000:
            return False
        values += own
        properties += each.get("properties", ())
        left += schemas_in(each)
    return len(properties) <= 5_000 and len(values) <= 1_000 and sum(map(len, properties + values)) <= 120_000


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True


def _unwrapping(read: Callable[[str], T]) -> Callable[[str], T]:
    def unwrapped(text: str) -> T:
        try:
            fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        except msgspec.ValidationError:  # no object: models that are not held to the schema leave it out
            return read(text)
        if fields.keys() != {_ROOT}:
            raise ValueError(_UNWRAPPED)
        return read(bytes(fields[_ROOT]).decode())

    return unwrapped
