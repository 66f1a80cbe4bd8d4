"""The work that a replay gives away: a setup, and a function from a batch to its outcome, as bytes."""

from __future__ import annotations

import asyncio
import pickle
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import TypeAlias, cast

from chatstack.errors import ChatStackError
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.reading.recordings import Recording
from chatstack.workbench.replay.running import Replay
from chatstack.workbench.replay.setup import Setup

Batch: TypeAlias = list[tuple[int, Recording]]
"""Recordings with their numbers."""
_DISTRIBUTIONS = ("chatstack-core", "bpe-openai", "genai-prices")
"""Distributions that figures depend on: how it is edited, counted and priced."""


@lru_cache(maxsize=1)
def versions() -> Mapping[str, str]:
    """Return the installed versions of what figures depend on."""
    return {name: _version_of(name) for name in _DISTRIBUTIONS}


def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "none"


class _Worker:
    """The stacks of one setup."""

    def __init__(self, setup: bytes) -> None:
        self.setup = setup
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whoever gave the work has shown those of the stacks
            self._replay = Replay(cast("Setup", pickle.loads(setup)))

    def work(self, batch: Batch) -> Outcome:
        return asyncio.run(self._replay.run(batch))  # a loop of its own: nobody tells when a thread has done its last


class _Here(threading.local):
    """The worker of a thread: an engine may have several in one process."""

    worker: _Worker | None = None


_here = _Here()


@dataclass(frozen=True, slots=True)
class Work:
    """A function from a pickled batch to its pickled outcome, or to the ``ChatStackError`` that ends the replay.

    ``setup`` is pickled; stacks are built once for as long as it stays the same. ``versions`` are those of the machine
    that asks: with others the figures would differ.
    """

    setup: bytes = field(repr=False)
    versions: Mapping[str, str]

    def __call__(self, batch: bytes) -> bytes:
        found: Outcome | ChatStackError
        try:
            self._check_versions()
            found = self._worker().work(cast("Batch", pickle.loads(batch)))
        except ChatStackError as error:
            found = error
        return pickle.dumps(found)

    def _check_versions(self) -> None:
        here = versions()
        for name, wanted in self.versions.items():
            if here[name] != wanted:
                raise ChatStackError(f"a worker has another version of {name}: {here[name]}, and here it is {wanted}")

    def _worker(self) -> _Worker:
        worker = _here.worker
        if worker is None or worker.setup != self.setup:
            worker = _here.worker = _Worker(self.setup)
        return worker
