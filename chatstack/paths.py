"""Paths that options name."""

from __future__ import annotations

import os
from pathlib import Path

from chatstack.errors import WiringError


def absolute_path(owner: str, **given: str | os.PathLike[str]) -> Path:
    """Return the path in that option from the root on: the same file, whoever changes the current folder later. Raises
    ``WiringError`` where that folder has been deleted."""
    ((name, path),) = given.items()
    try:
        return Path(path).absolute()
    except OSError as error:
        told = f"{name}={str(path)!r} is relative to the current folder, which is gone: give an absolute path"
        raise WiringError(f"{owner}: {told}", layer=owner, parameter=name) from error
