"""The administrator's switch: editing on or off, for all workers of this gateway, without a restart."""

from __future__ import annotations

import os
import time
from pathlib import Path

_SECONDS = 1.0
"""Time for which the last look at the file counts."""


class Switch:
    """A file that is there while editing is off. Without a folder it is this process's alone."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / "editing-off"
        self._is_off = False
        self._looked = float("-inf")

    @property
    def is_off(self) -> bool:
        """True while editing is off; a second old at most."""
        now = time.monotonic()
        if self._path is not None and now - self._looked >= _SECONDS:
            self._is_off, self._looked = self._path.exists(), now
        return self._is_off

    def turn(self, *, on: bool) -> None:
        """Turn editing on or off."""
        if self._path is not None:
            if on:
                self._path.unlink(missing_ok=True)
            else:
                os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600))
        self._is_off, self._looked = not on, time.monotonic()
