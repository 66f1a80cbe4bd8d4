"""An interrupt ends a command wherever it comes, within a finalizer too."""

from __future__ import annotations

import signal
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest

from chatstack.cli.interrupts import interrupts_kept


class Thing:
    pass


@pytest.fixture
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def dropped(error: BaseException) -> None:
    """Raise an error where Python ignores it: in the callback of a weak reference."""

    def callback(_: object) -> None:
        raise error

    thing = Thing()
    reference = weakref.ref(thing, callback)
    del thing
    assert reference() is None


def worked_on() -> None:
    """Work for a while, interrupted at the start."""
    dropped(KeyboardInterrupt())
    for _ in range(2_000):
        threading.Event().wait(0.01)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_within_a_callback_arrives_after_it() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts_kept():
        worked_on()


@pytest.mark.usefixtures("interruptible")
def test_one_that_is_lost_twice_arrives_in_the_end() -> None:
    came = 0

    def lost(number: int, frame: object) -> None:
        nonlocal came
        came += 1
        if came == 1:
            dropped(KeyboardInterrupt())
        else:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, lost)
    with pytest.raises(KeyboardInterrupt), interrupts_kept():
        worked_on()

    assert came == 2


def test_other_errors_there_are_reported_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(unraisable.exc_value))
    before, error = sys.unraisablehook, ValueError("of a callback")

    with interrupts_kept():
        dropped(error)

    assert told == [error]
    assert sys.unraisablehook is before
