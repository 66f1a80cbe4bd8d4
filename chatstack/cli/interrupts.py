"""Interrupts that are not lost, whatever ran when they came."""

from __future__ import annotations

import _thread
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from sys import UnraisableHookArgs

_AGAIN_SECONDS = 0.01


@contextmanager
def interrupts_kept() -> Generator[None]:
    """Deliver an interrupt again that came within a callback where Python ignores every exception.

    Such callbacks are finalizers and those of weak references. Without this a command would go on to its end, after a
    traceback that says "Exception ignored".
    """
    before = sys.unraisablehook

    def hook(unraisable: UnraisableHookArgs) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            before(unraisable)
            return
        again = threading.Timer(_AGAIN_SECONDS, _thread.interrupt_main)  # after the callback has ended
        again.daemon = True
        again.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
