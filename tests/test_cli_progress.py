"""The bar of the commands that read recordings."""

from __future__ import annotations

from pathlib import Path

import pytest

from chatstack.cli import main
from chatstack.cli.progress_bar import Progress
from tests.workbench.replay.conversations import talk, write_lines


def test_the_bar_moves_with_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_lines(tmp_path / "a.jsonl", *(talk(3, about=f"talk {number}") for number in range(30)))
    seen: list[int] = []
    moved = Progress.advance

    def advance(self: Progress, position: int) -> None:
        seen.append(position)
        moved(self, position)

    monkeypatch.setattr(Progress, "advance", advance)
    assert main(["replay", str(path), "--window", "1000"]) == 0

    assert seen == sorted(seen)
    assert len(set(seen)) > 1
    assert seen[-1] == path.stat().st_size
