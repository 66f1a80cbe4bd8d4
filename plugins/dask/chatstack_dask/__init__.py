"""Replays on Dask: ``chatstack replay --on dask`` and ``chatstack tune --on dask``."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import cast

from chatstack.errors import ChatStackError, InputError
from chatstack.workbench.replay.parallel import cores, uninterrupted
from dask import config
from distributed import Client, LocalCluster
from distributed.cfexecutor import ClientExecutor

__all__ = ["WITHOUT_WORKERS_SECONDS", "DaskWorkers", "workers"]

WITHOUT_WORKERS_SECONDS = 60.0
"""How long a replay waits while the cluster has no worker, before it gives up."""
_CONNECT_SECONDS = 10
_CLOSE_SECONDS = 20
_ASK_SECONDS = 1.0
"""How often the scheduler is asked how many workers there are."""
_CONFIG = {"distributed.scheduler.worker-ttl": None}
"""Work holds a worker's interpreter for seconds; without a heartbeat it is not dead."""


@contextmanager
def workers(address: str = "", jobs: int | None = None) -> Generator[DaskWorkers]:
    """Open Dask: the cluster at an address, or ``jobs`` workers of its own on this machine, one for each core.

    Raises ``InputError`` for ``jobs`` of a cluster, ``ChatStackError`` if the cluster cannot be reached.
    """
    if address:
        if jobs is not None:
            raise InputError(f"--jobs {jobs}: the cluster at {address} has its own number of workers")
        with _connected(address) as client:
            yield DaskWorkers(client)
        return
    with _cluster(jobs) as cluster, Client(cluster, set_as_default=False) as client:
        yield DaskWorkers(client)


class DaskWorkers:
    """The workers of a Dask cluster."""

    def __init__(self, client: Client, *, without_workers_seconds: float = WITHOUT_WORKERS_SECONDS) -> None:
        self.client = client
        self._executor = ClientExecutor(client, pure=False)
        self._patience = without_workers_seconds
        self._count = 0
        self._asked = self._seen = time.monotonic()
        self._count = self._threads()

    def submit(self, work: Callable[[bytes], bytes], batch: bytes, /) -> Future[bytes]:
        """Have a worker call ``work(batch)``; another one does, if the first dies."""
        return cast("Future[bytes]", self._executor.submit(work, batch))

    def count(self) -> int:
        """Return the number of threads of all workers. Raises ``ChatStackError`` where there is none for a minute."""
        now = time.monotonic()
        if now - self._asked >= _ASK_SECONDS or not self._count:
            self._asked, self._count = now, self._threads()
        if self._count:
            self._seen = now
        elif now - self._seen > self._patience:
            raise ChatStackError(f"Dask: for {self._patience:g} seconds there has been no worker")
        return self._count

    def _threads(self) -> int:
        try:
            return sum(cast("dict[str, int]", self.client.nthreads()).values())
        except (OSError, TimeoutError) as error:
            raise ChatStackError(f"Dask: the scheduler cannot be reached any more: {error}") from error


@contextmanager
def _cluster(jobs: int | None) -> Generator[LocalCluster]:
    """Start a cluster of processes on this machine, one thread each, which only this process can reach.

    An interrupt of the command, which a terminal sends to all, reaches this process alone, and this one ends the
    others.
    """
    with config.set(_CONFIG), uninterrupted():
        cluster = LocalCluster(
            n_workers=jobs or cores(),
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            security=True,
            silence_logs=logging.ERROR,
        )
    try:
        yield cluster
    except BaseException:  # an interrupt, or an error: do not wait for running batches
        _kill(cluster)
        raise
    finally:
        with _hushed():
            _close(cluster)


def _close(cluster: LocalCluster) -> None:
    try:
        cluster.close(timeout=_CLOSE_SECONDS)
    except TimeoutError:
        _kill(cluster)


def _kill(cluster: LocalCluster) -> None:
    for nanny in cluster.workers.values():
        nanny.auto_restart = False
        pid: object = getattr(nanny, "pid", None)
        if isinstance(pid, int):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def _hushed() -> Generator[None]:
    """Keep what Dask logs of connections that are closed off the terminal."""
    loggers = [logging.getLogger(name) for name in ("distributed", "tornado.application")]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)


@contextmanager
def _connected(address: str) -> Generator[Client]:
    try:
        client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ChatStackError(f"Dask: no scheduler at {address}: {error}") from error
    with client:
        yield client
