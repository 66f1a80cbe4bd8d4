"""A streamed chat completion as the whole one that it is: what ``raw`` of its answer holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from chatstack.providers.extras import WireObject, as_list, as_object, without_nulls

_TOLD_WHOLE = frozenset({"id", "index", "role", "type"})
"""Texts of a delta that are no pieces: some servers repeat them with every chunk."""


class Pieces(list[str]):
    """A text in the pieces in which it came, to be joined once: appending to a text copies it each time."""


class _Calls(dict[object, WireObject]):
    """Calls by their index; a list in the end."""


class CompletionFold:
    """Folds chunks into one completion, with every choice and its log probabilities."""

    def __init__(self) -> None:
        self._fields: WireObject = {}
        self._choices: dict[int, WireObject] = {}

    def add(self, chunk: Mapping[str, object], calls: Sequence[int] = ()) -> None:
        """Fold in one chunk. ``calls`` tell to which calls of the message its fragments belong, as an index does not
        always. Raises ``InputError`` for one of the wrong shape."""
        self._fields.update(without_nulls(chunk))
        for each in as_list(chunk.get("choices") or (), "choices"):
            choice = as_object(each, "choices")
            index = choice.get("index")
            number = index if isinstance(index, int) else 0
            kept = self._choices.setdefault(number, {"message": {}})
            for name, value in choice.items():
                if name in ("delta", "message"):
                    _grow(cast("WireObject", kept["message"]), as_object(value or {}, name), () if number else calls)
                elif name == "logprobs":
                    kept[name] = grown(kept.get(name), value)
                elif value is not None:
                    kept[name] = value

    def whole(self) -> object:
        """Return the SDK's object for the same completion unstreamed."""
        from openai.types.chat import ChatCompletion

        choices = [{"index": index, "logprobs": None, **kept} for index, kept in sorted(self._choices.items())]
        fields = {**self._fields, "object": "chat.completion", "choices": whole(choices)}
        fields.pop("obfuscation", None)  # padding of a chunk
        return ChatCompletion.construct(**fields)  # type: ignore[arg-type]


def grown(held: object, value: object) -> object:
    """Merge a delta into a field: texts and lists grow in place, objects field by field, other values are replaced."""
    if value is None:
        return held
    if isinstance(value, str):
        if isinstance(held, Pieces):
            held.append(value)
            return held
        return Pieces([value])
    if isinstance(value, list):
        more = cast("list[object]", value)
        if isinstance(held, list) and not isinstance(held, Pieces):
            cast("list[object]", held).extend(more)
            return cast("object", held)
        return list(more)
    if isinstance(value, Mapping):
        fields = cast("dict[str, object]", held) if isinstance(held, dict) else {}
        for name, each in cast("Mapping[str, object]", value).items():
            fields[name] = grown(fields.get(name), each)
        return fields
    return value


def whole(held: object) -> object:
    """Return a merged value, its texts joined."""
    if isinstance(held, Pieces):
        return "".join(held)
    if isinstance(held, list):
        return [whole(each) for each in cast("list[object]", held)]
    if isinstance(held, _Calls):
        return [whole(each) for each in held.values()]
    if isinstance(held, dict):
        return {name: whole(each) for name, each in cast("dict[str, object]", held).items()}
    return held


def _grow(held: WireObject, delta: Mapping[str, object], calls: Sequence[int] = ()) -> None:
    for name, value in delta.items():
        if name == "tool_calls":
            known = cast("dict[object, WireObject]", held.get(name, _Calls()))
            held[name] = _grown_calls(known, as_list(value or (), name), calls)
        elif name in _TOLD_WHOLE:
            held[name] = value or held.get(name)
        elif name == "name" and value == whole(held.get(name)):
            continue  # told again with every piece
        elif isinstance(value, Mapping):
            held[name] = kept = cast("WireObject", found) if isinstance(found := held.get(name), dict) else {}
            _grow(kept, cast("Mapping[str, object]", value))
        else:
            held[name] = grown(held.get(name), value)


def _grown_calls(
    held: dict[object, WireObject], fragments: Sequence[object], calls: Sequence[int]
) -> dict[object, WireObject]:
    for at, each in enumerate(fragments):
        fields = dict(as_object(each, "tool_calls"))
        index = fields.pop("index", None)
        key = calls[at] if len(calls) == len(fragments) else index if isinstance(index, int) else object()
        _grow(held.setdefault(key, {}), fields)
    return held
