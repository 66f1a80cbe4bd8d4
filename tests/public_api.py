"""The public names with their typed signatures, a line each: ``uv run python -m tests.public_api`` writes them down."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from scripts.reference import public_names

FILE = Path(__file__).with_name("public_api.txt")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_SET = re.compile(r"frozenset\(\{([^}]*)\}\)")


def lines() -> list[str]:
    """Return what is public: each name, its constructor or signature, and its public members."""
    return sorted({line for each in public_names() for line in _told(f"{each.home}.{each.name}", each.load())})


def _told(name: str, found: object) -> Iterator[str]:
    if inspect.isclass(found):
        bases = ", ".join(each.__name__ for each in found.__bases__ if each.__module__.startswith("chatstack"))
        yield f"{name}: class({bases}) {_signature(found)}"
        for member, value in sorted(vars(found).items()):
            if not member.startswith("_"):
                yield from _member(f"{name}.{member}", value)
    elif callable(found):
        yield f"{name}: {_signature(found)}"
    else:
        yield f"{name}: {_ADDRESS.sub('', repr(found))}"


def _member(name: str, value: object) -> Iterator[str]:
    if isinstance(value, property):
        yield f"{name}: property {_signature(value.fget)}"
    elif isinstance(value, staticmethod | classmethod):
        yield f"{name}: {type(value).__name__} {_signature(value.__func__)}"
    elif inspect.isroutine(value) and not inspect.ismethoddescriptor(value):
        yield f"{name}: {_signature(value)}"


def _signature(found: object) -> str:
    try:
        told = _ADDRESS.sub("", str(inspect.signature(found)))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # of a base class that is written in C
        return ""
    return _SET.sub(lambda found: f"frozenset({{{', '.join(sorted(found[1].split(', ')))}}})", told)


if __name__ == "__main__":
    FILE.write_text("\n".join(lines()) + "\n")
