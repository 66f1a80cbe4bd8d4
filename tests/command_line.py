"""What the tests of the command line share: how a failing command is read, and text that is not to reach a terminal."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

from chatstack.cli import main

HOSTILE = "\x1b[31mred\x1b[0m \x1b]0;title\x07\x9b2J\x1b]52;c;cGFzdGU=\x1b\\ \u202egnp.exe\u202c \x08\x00end"
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 2) -> str:
    """The one line on stderr of a command that fails."""
    assert main([str(each) for each in arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert CONTROLS.search(captured.err.removesuffix("\n")) is None
    return captured.err.removesuffix("\n")


def without_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if only the files of the package were there, as in a copy, a zip file, or a frozen app."""

    def from_name(name: str) -> metadata.Distribution:
        if name == "chatstack-core":
            raise metadata.PackageNotFoundError(name)
        return found(name)

    found = metadata.Distribution.from_name
    monkeypatch.setattr(metadata.Distribution, "from_name", from_name)
