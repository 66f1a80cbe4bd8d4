"""Bad inputs, made of good ones: values exchanged where the input is JSON, and bytes exchanged anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

NASTY = (
    *(b"null", b"-1", b"0", b"1e999", b"NaN", b"true", b"{}", b"[]", b'""', b'"', b"\\", b"{", b"}", b"[", b"]", b","),
    *(b'"\\ud800"', b"\xff", b"\x00", b"\r\n", b"\n\n", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b":", b"data: ", b"event: "),
    *(b"9" * 5_000, b"[" * 3_000, b'{"a":' * 1_500, b"1" * 20, b"-" * 40),
    *(b"&a", b"*a", b"<<: ", b"!!python/name:os", b"'"),
)
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["c1", "m", "assistant", "user", "text", "tool_use", "\ud800", "1" * 30, "length", "error"])
)
_NAMES = st.text(max_size=4) | st.just("type")
_ANYTHING = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def bad_inputs(draw: st.DrawFn, seeds: tuple[bytes, ...]) -> bytes:
    """Draw an input that is a seed with a few changes, or nothing like it."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.binary(max_size=200))
    seed = draw(st.sampled_from(seeds))
    data = _with_values_exchanged(draw, seed) if kind < 7 else seed
    return _with_bytes_exchanged(draw, data) if kind >= 5 else data


def nested_deeply(seed: bytes) -> Iterator[bytes]:
    """Yield inputs that have objects in objects in the places of some values: what Python still reads, and more."""
    lines = seed.split(b"\n")
    for number, line in enumerate(lines):
        head, value = _json_in(line) or (b"", None)
        places = [path for path in _places(value) if path]
        for at in range(0, len(places), max(1, len(places) // 4)):
            for depth in (900, 5_000):
                changed = json.loads(json.dumps(value))
                _at(changed, places[at][:-1])[places[at][-1]] = "here"
                deep = b'{"a":' * depth + b"1" + b"}" * depth
                data = json.dumps(changed).encode().replace(b'"here"', deep)
                yield b"\n".join((*lines[:number], head + data, *lines[number + 1 :]))


def _with_bytes_exchanged(draw: st.DrawFn, data: bytes) -> bytes:
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 20)))
        between = draw(st.sampled_from((b"", data[start:end] * 2, *NASTY)) | st.binary(max_size=4))
        data = data[:start] + between + data[end:]
    return data


def _with_values_exchanged(draw: st.DrawFn, seed: bytes) -> bytes:
    """Exchange values in some of the lines that hold JSON, also as events of a stream have them."""
    lines = seed.split(b"\n")
    at = [number for number, line in enumerate(lines) if _json_in(line) is not None]
    for _ in range(draw(st.integers(1, 3)) if at else 0):
        number = draw(st.sampled_from(at))
        head, value = _json_in(lines[number]) or (b"", None)
        lines[number] = head + json.dumps(_exchanged(draw, value)).encode()
    return b"\n".join(lines)


def _json_in(line: bytes) -> tuple[bytes, Any] | None:
    head = b"data: " if line.startswith(b"data: ") else b""
    try:
        return head, json.loads(line[len(head) :])
    except (ValueError, RecursionError):
        return None


def _exchanged(draw: st.DrawFn, value: Any) -> Any:
    """Return the value with another one in a place of it: of its own, of elsewhere, or none."""
    places = _places(value)
    path = draw(st.sampled_from(places))
    other = _at(value, draw(st.sampled_from(places))) if draw(st.booleans()) else draw(_ANYTHING)
    if not path:
        return other
    inner = _at(value, path[:-1])
    if draw(st.integers(0, 4)) == 0:
        del inner[path[-1]]
    else:
        inner[path[-1]] = json.loads(json.dumps(other))
    return value


def _places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for name, each in inner for place in _places(each, (*path, name)))]


def _at(value: Any, path: tuple[str | int, ...]) -> Any:
    for name in path:
        value = value[name]
    return value
