"""Paths that options name."""

from __future__ import annotations

import os
from pathlib import Path

from chatstack.errors import WiringError


def absolute_path(owner: str, **given: str | os.PathLike[str]) -> Path:
    """Return the path in that option from the root on: the same file, whoever changes the current folder later. Raises
    ``WiringError`` where that folder has been deleted, and for what no file can be called."""
    ((name, path),) = given.items()
    try:
        whole = Path(path).absolute()
        if b"\0" not in os.fsencode(whole):
            return whole
        told = "can name no file: leave out NUL characters"
    except OSError:
        told = "is relative to the current folder, which is gone: give an absolute path"
    except UnicodeEncodeError:
        told = "can name no file: leave out halves of characters (lone surrogates)"
    raise WiringError(f"{owner}: {name}={str(path)!r} {told}", layer=owner, parameter=name)
