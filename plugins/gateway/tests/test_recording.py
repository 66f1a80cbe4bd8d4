"""A recording of exchanges holds whole lines, whatever becomes of its disk."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from asks import body, history
from test_fail_open import answer, ask
from upstreams import serving, upstream

from chatstack_gateway import Settings, Upstream


def until(is_so: Callable[[], bool]) -> None:
    """Wait for the thread that records."""
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_disk_that_gets_full_leaves_no_half_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with upstream(answer) as api, serving(Settings(Upstream(api.url), record=tmp_path)) as gateway:
        (path,) = tmp_path.iterdir()

        def asked(question: str) -> None:
            assert ask(gateway.url, "chat", body("chat", history(1, last=question))).status_code == 200

        def recorded() -> list[str]:
            rows = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
            return [row["request"]["messages"][-1]["content"] for row in rows]

        asked("first")
        until(lambda: recorded() == ["first"])
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, limits[1]))
        try:
            asked("too much")
            until(lambda: f"exchanges cannot be recorded in {path}: File too large" in caplog.messages)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        asked("later")
        until(lambda: recorded() == ["first", "later"])
