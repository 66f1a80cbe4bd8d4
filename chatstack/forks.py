"""Renewal of locks and threads in a forked child, where a lock of the parent's may be held for ever."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """An object with state that a fork must not share."""

    def after_fork(self) -> None:
        """Renew that state in the child, where the parent's threads do not exist."""
        ...


_all: WeakSet[Forked] = WeakSet()


def renewed_in_child(each: Forked) -> None:
    """Call ``after_fork`` of the object in every forked child from now on; the object is held weakly."""
    _all.add(each)


def at_fork(**hooks: Callable[[], object]) -> None:
    """Register the hooks of a module, as ``os.register_at_fork`` takes them, where that exists."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**hooks)


def _after_fork() -> None:
    for each in tuple(_all):
        each.after_fork()


at_fork(after_in_child=_after_fork)
