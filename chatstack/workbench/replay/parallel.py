"""A replay on all cores, or on more machines: batches of conversations go to workers, and their outcomes are added up.

Input is read here, no faster than it is replayed, so memory does not grow with it. Figures do not depend on the number
of workers, except those of CPU time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import resource_tracker
from typing import TypeAlias, cast

from chatstack import plugins
from chatstack.errors import ChatStackError, InputError
from chatstack.workbench.replay.engines import Workers
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.reading.recordings import BrokenLine, Recording
from chatstack.workbench.replay.running import Replay
from chatstack.workbench.replay.setup import Setup
from chatstack.workbench.replay.work import Batch, Work, versions

_BATCH_MESSAGES = 400
_BATCH_BYTES = 4_000_000
"""Approximate size of a batch, by messages or by bytes, whichever comes first: some tenths of a second of work."""
_WAKE_SECONDS = 0.5
_WAITING = 2
"""Batches per worker, running or queued."""

OnProgress: TypeAlias = Callable[[int], None]


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def uninterrupted() -> Generator[None]:
    """Delay an interrupt while processes are started.

    They inherit the mask, and so do threads that start them: a new process is not interrupted before it can exit
    without a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it starts with the first process otherwise, and clears the mask then
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def replay(
    setup: Setup,
    items: Iterable[Recording | BrokenLine],
    *,
    jobs: int = 1,
    workers: Workers | None = None,
    on_progress: OnProgress | None = None,
) -> Outcome:
    """Replay all items in ``jobs`` processes; with one, in this process. Or by ``workers``, if there are any.

    ``on_progress`` is called repeatedly with the number of conversations done. With more than one process, the main
    module must be importable (``if __name__ == "__main__":``), and the setup must be picklable. Raises ``WiringError``
    when a policy's stack cannot be built, ``ChatStackError`` when the setup cannot be pickled, a process was killed or
    the workers failed, ``InputError`` for a shared memory in several processes.
    """
    if setup.shared_memory and (jobs != 1 or workers is not None):
        raise InputError(f"a shared memory is in one process, not in {'workers' if workers else f'{jobs=}'}")
    first = Replay(setup)  # built here in any case, to report a stack that cannot be built before a process starts
    outcome = asyncio.run(first.run(()))
    batches = _batches(items, outcome)
    told = on_progress or _ignore
    if jobs == 1 and workers is None:
        with _interrupted_at_once(), asyncio.Runner() as runner:
            for batch in batches:
                outcome.merge(runner.run(first.run(batch)), setup.stories)
                told(outcome.conversations)
            runner.run(first.aclose())
        return outcome
    asyncio.run(first.aclose())
    work = Work(_pickled(setup), versions())
    with _processes(jobs) if workers is None else nullcontext(workers) as given:
        for part in _done(given, work, batches, setup):
            outcome.merge(part, setup.stories)
            told(outcome.conversations)
    return outcome


def _done(workers: Workers, work: Work, batches: Iterator[Batch], setup: Setup) -> Iterator[Outcome]:
    """Yield the outcomes of the batches as they are done; read no more batches than can be queued."""
    waiting: set[Future[bytes]] = set()

    def done() -> Iterator[Outcome]:
        # With a timeout: an interrupt that comes right before a thread begins to wait is noticed when it wakes.
        ended, _ = concurrent.futures.wait(waiting, _WAKE_SECONDS, concurrent.futures.FIRST_COMPLETED)
        waiting.difference_update(ended)
        return map(_outcome_of, ended)

    for batch in batches:
        try:
            given = pickle.dumps(batch)
        except RecursionError:  # too deeply nested to be pickled, though not to be read
            yield asyncio.run(Replay(setup).run(batch))
            continue
        waiting.add(workers.submit(work, given))
        while len(waiting) >= max(1, workers.count()) * _WAITING:
            yield from done()
    while waiting:
        workers.count()  # where there is none any more, this says so
        yield from done()


def _outcome_of(future: Future[bytes]) -> Outcome:
    try:
        answer = future.result()
    except (BrokenProcessPool, ChatStackError):
        raise
    except (Exception, concurrent.futures.CancelledError) as error:
        raise ChatStackError(f"a worker failed: {plugins.told(error)}") from error
    found = cast("Outcome | ChatStackError", pickle.loads(answer))
    if isinstance(found, ChatStackError):
        raise found
    return found


@contextmanager
def _processes(jobs: int) -> Generator[Workers]:
    """Open a pool of processes; on an error, or an interrupt, end them in the midst of their work."""
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with _started(jobs):
        pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin)
    try:
        yield _Processes(pool, jobs)
    except BrokenProcessPool as error:
        raise ChatStackError(
            f"a process of the replay ended by itself, perhaps for want of memory; try fewer than {jobs} jobs"
        ) from error
    except BaseException:  # an interrupt, or an error: do not wait for running batches
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    finally:
        with suppress(RuntimeError):  # its own thread could not be started, and is not to be waited for
            pool.shutdown(cancel_futures=True)


@contextmanager
def _started(jobs: int) -> Generator[None]:
    """Raise ``ChatStackError`` where the system lets no more processes, threads or files be opened."""
    try:
        yield
    except BrokenProcessPool:
        raise
    except (OSError, RuntimeError) as error:
        told = f"a process of the replay cannot be started ({error}); try fewer than {jobs} jobs"
        raise ChatStackError(told) from error


class _Processes:
    """A pool of processes on this machine."""

    def __init__(self, pool: ProcessPoolExecutor, jobs: int) -> None:
        self._pool = pool
        self._jobs = jobs

    def submit(self, work: Callable[[bytes], bytes], batch: bytes, /) -> Future[bytes]:
        with _started(self._jobs), uninterrupted():
            return self._pool.submit(work, batch)

    def count(self) -> int:
        return self._jobs


def _pickled(setup: Setup) -> bytes:
    try:
        return pickle.dumps(setup)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ChatStackError(
            f"the setup of a replay cannot be given to other processes: {error}; make the stack of each policy by a "
            "function of a module, or run with jobs=1"
        ) from error


@contextmanager
def _interrupted_at_once() -> Generator[None]:
    """Raise an interrupt where it comes: a running loop would only cancel its task, which never awaits here."""
    if threading.current_thread() is not threading.main_thread() or (
        signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    signal.signal(signal.SIGINT, lambda number, frame: signal.default_int_handler(number, frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _batches(items: Iterable[Recording | BrokenLine], outcome: Outcome) -> Iterator[Batch]:
    """Yield the numbered recordings in batches; broken lines are recorded at once."""
    batch: Batch = []
    messages = size_bytes = 0
    for number, item in enumerate(items, 1):
        if isinstance(item, BrokenLine):
            outcome.note(number, item)
            continue
        batch.append((number, item))
        messages += _messages_in(item)
        size_bytes += item.size_bytes
        if messages >= _BATCH_MESSAGES or size_bytes >= _BATCH_BYTES:
            yield batch
            batch, messages, size_bytes = [], 0, 0
    if batch:
        yield batch


def _messages_in(recording: Recording) -> int:
    listed = recording.body.get("messages", recording.body.get("input"))
    return len(cast("list[object]", listed)) if isinstance(listed, list) else 1


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupt of the command ends its processes without a traceback
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    warnings.simplefilter("ignore")  # warnings of the stacks: the parent process has shown them
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Exit with the parent, even if it is killed and cannot shut the pool down."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _ignore(conversations: int) -> None: ...
