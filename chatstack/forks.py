"""What holds locks or threads makes them anew in a forked child: the parent's may be held there for ever."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """Something with state that a fork must not share."""

    def after_fork(self) -> None:
        """Called in the child: nothing of the parent's threads is there any more."""
        ...


_all: WeakSet[Forked] = WeakSet()


def renewed_in_child(each: Forked) -> None:
    """From now on, ``after_fork`` is called in every child, as long as something else holds the object."""
    _all.add(each)


def at_fork(**hooks: Callable[[], object]) -> None:
    """Register the hooks of a module, as ``os.register_at_fork`` takes them, where that exists."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**hooks)


def _after_fork() -> None:
    for each in tuple(_all):
        each.after_fork()


at_fork(after_in_child=_after_fork)
