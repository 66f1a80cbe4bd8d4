"""Read config files: JSON, TOML and YAML, as plain data only."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from chatstack.config.values import MESSAGE_CHARS, Config, cut, first_twice, kind_of, table
from chatstack.errors import WiringError

_LARGEST = 1_000_000
"""Maximum size in characters, of a file and of its content with all aliases expanded."""
_LARGEST_YAML = 100_000
"""Maximum size in characters of a YAML file: its reader is a hundred times slower than those of JSON and TOML."""
_LONGEST_CHAIN = 1_000
_MOST_CHAINED = 5_000_000
"""Maximum sum, over all lines, of the squared number of dots or colons: the readers take quadratic time for them."""


def opened(config: object) -> tuple[str, Config]:
    """Return the name of a config for errors, and its content. Raises ``WiringError`` for a file without a config."""
    if isinstance(config, Mapping):
        return "config", table(cast("object", config), "config")
    path: object = os.fspath(cast("os.PathLike[str]", config)) if isinstance(config, os.PathLike) else config
    if not isinstance(path, str):
        raise WiringError(f"from_config: expected a mapping or the path of a file, got {kind_of(path)}")
    return path, _read(Path(path))


def _read(path: Path) -> Config:
    readers: dict[str, Callable[[str], object]] = {
        ".json": _json,
        ".toml": _toml,
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
        return table(reader(text), str(path))
    except RecursionError as error:
        raise WiringError(f"{path}: nested too deeply") from error
    except ValueError as error:  # what the JSON and TOML readers raise
        told = cut(str(error), MESSAGE_CHARS)
        raise WiringError(f"{path}: not valid {path.suffix[1:].upper()}: {told}") from error


def _text(path: Path) -> str:
    """Return the text of a file. Only a regular file is opened: opening a pipe would block until it is written to."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise WiringError(f"{path}: not a file")
        if found.st_size > _LARGEST:
            raise WiringError(f"{path}: {found.st_size:,} bytes; a config has {_LARGEST:,} at most")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise WiringError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise WiringError(f"{path}: not UTF-8 text: byte {error.start + 1} is wrong") from error
    except ValueError as error:  # a null character in the path
        raise WiringError(f"{path}: cannot be read: {error}") from error


def _check_cheap(text: str) -> None:
    """Refuse text that takes the readers quadratic time: keys of a thousand dots, numbers of a thousand colons."""
    steps = 0
    for number, line in enumerate(text.splitlines(), start=1):
        chain = max(line.count("."), line.count(":"))
        if chain > _LONGEST_CHAIN:
            raise ValueError(f"line {number}: more than {_LONGEST_CHAIN:,} dots or colons")
        steps += chain * chain
        if steps > _MOST_CHAINED:
            raise ValueError(f"line {number}: too many lines up to here have hundreds of dots or colons")


def _toml(text: str) -> object:
    _check_cheap(text)
    return tomllib.loads(text)


def _json(text: str) -> object:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if twice := first_twice(name for name, _ in pairs):
            raise ValueError(twice)
        return dict(pairs)

    return cast("object", json.loads(text, object_pairs_hook=unique))


def _yaml(text: str) -> object:
    if len(text) > _LARGEST_YAML:
        raise ValueError(f"{len(text):,} characters; a config in YAML has {_LARGEST_YAML:,} at most")
    _check_cheap(text)
    try:
        import yaml

        from chatstack.config.reader import Reader
    except ImportError as error:
        raise WiringError("reading YAML needs an extra: pip install 'chatstack-core[yaml]'") from error
    try:
        found = cast("object", yaml.load(text, Loader=Reader))
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark is not None else ""
        raise ValueError(f"{line}{error.problem or error.context}") from None  # it quotes the file
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    _check_size(found)
    return found


def _check_size(value: object) -> None:
    """Refuse a value that is too large with its aliases expanded: a few lines of nested aliases can be enormous."""
    waiting, size = [value], 0
    while waiting:
        each = waiting.pop()
        size += 1 + (len(each) if isinstance(each, str) else 0)
        if size > _LARGEST:
            raise ValueError(f"larger than {_LARGEST:,} characters once its aliases are written out")
        if isinstance(each, dict):
            waiting.extend(cast("dict[object, object]", each))
            waiting.extend(cast("dict[object, object]", each).values())
        elif isinstance(each, list):
            waiting.extend(cast("list[object]", each))
