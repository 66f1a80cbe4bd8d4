"""The clock by which prompt caches get cold."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from chatstack import ContextMemory
from chatstack.telemetry.caches import PromptCaches


@pytest.mark.skipif(not hasattr(time, "clock_gettime"), reason="there is no clock to choose")
@pytest.mark.parametrize("clock_of", [lambda: ContextMemory().clock, lambda: PromptCaches().clock])
def test_a_machine_that_slept_finds_its_caches_cold(
    clock_of: Callable[[], Callable[[], float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A laptop is closed for the night: the clock of the system goes on, ``time.monotonic`` does not."""
    slept, clock_gettime, clock = [0.0], time.clock_gettime, clock_of()
    monkeypatch.setattr(time, "clock_gettime", lambda which: clock_gettime(which) + slept[0])
    before = clock()
    slept[0] = 30_000.0
    assert 30_000 <= clock() - before < 30_060


def test_a_system_without_such_a_clock_has_the_one_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatstack.tokens.caching._CLOCK", None)
    assert abs(ContextMemory().clock() - time.monotonic()) < 60
