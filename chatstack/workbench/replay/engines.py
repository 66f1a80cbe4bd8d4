"""Engines: workers of somebody else's, perhaps on other machines, that a replay gives its batches to.

A distribution offers one by an entry point in ``chatstack.engines``, whose target is an ``Engine``:

    [project.entry-points."chatstack.engines"]
    threads = "acme_threads:workers"

    @contextmanager
    def workers(address: str, jobs: int | None) -> Iterator[Workers]:
        with ThreadPoolExecutor(jobs) as pool:
            yield Pool(pool, jobs)  # with submit and count

What it carries are bytes: it needs to know nothing of a replay, and its workers only need ``chatstack`` installed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeAlias, cast

from chatstack import plugins
from chatstack.errors import InputError, WiringError

GROUP = "chatstack.engines"
"""The entry point group in which other distributions offer engines."""


class Workers(Protocol):
    """Workers, while their engine is open."""

    def submit(self, work: Callable[[bytes], bytes], batch: bytes, /) -> Future[bytes]:
        """Have a worker call ``work(batch)``; both can be pickled.

        A worker that dies loses nothing: its batches are given to another one, so ``work`` may be called more than
        once. An exception of the future ends the replay.
        """
        ...

    def count(self) -> int:
        """Return how many batches can be worked at now; asked again and again, as workers may come and go."""
        ...


Engine: TypeAlias = Callable[[str, int | None], AbstractContextManager[Workers]]
"""A function from an address, "" for workers of its own on this machine, and the number of those (None: one for each
core). Leaving the context ends the workers that it started, also in the midst of work."""


@contextmanager
def workers_of(asked: str, jobs: int | None = None) -> Generator[Workers]:
    """Open the engine that ``--on`` names, as ``NAME`` or ``NAME=ADDRESS``.

    Raises ``InputError`` for a name that nobody offers, ``WiringError`` if it cannot be loaded or is none.
    """
    name, _, address = asked.partition("=")
    offer = plugins.find((GROUP,), name)
    if offer is None:
        known = ", ".join(plugins.names((GROUP,)))
        there = f"there is {known}" if known else "none is installed; chatstack-dask offers 'dask'"
        raise InputError(f"--on {name!r}: no engine has that name: {there}")
    engine = plugins.load(offer)
    if not callable(engine):
        raise WiringError(f"{name!r} of {offer.source} is no engine: it cannot be called")
    with cast("Engine", engine)(address, jobs) as workers:
        yield workers
