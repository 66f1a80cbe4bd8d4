"""A workspace in a folder that others change, lock, fork and are killed in: nothing leads out, nothing is half done."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from chatstack import FolderWorkspace, WorkspaceError
from chatstack.loop.paths import PARTIAL

pytestmark = pytest.mark.slow

SECRET = "what lies outside"
ENOUGH = 500
"""Swaps, and what was done and refused meanwhile."""


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    (folder / "below").mkdir(parents=True)
    for name in ("file", "below/file"):
        (folder / name).write_text(SECRET)
    return folder


@contextmanager
def meanwhile(*works: Callable[[], object]) -> Iterator[None]:
    """These are done again and again, each in a thread of its own."""
    ended = threading.Event()
    raised: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            while not ended.is_set():
                work()
        except BaseException as error:
            raised.append(error)
            raise

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        ended.set()
        for each in threads:
            each.join(300)
    assert raised == []


def tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


# Swapped while others read and write


def swaps(place: Path, real: Path, target: Path) -> Callable[[], bool]:
    """What stands in that place is a folder or file, then a link, then nothing, and so on."""

    def swap() -> bool:
        """Whether there was a link. Others may make and remove what stands there at any moment."""
        steps = (
            lambda: place.rename(real),
            lambda: place.symlink_to(target),
            lambda: time.sleep(0.0002),
            lambda: place.unlink(),
            lambda: real.rename(place),
            lambda: real.unlink(),
            lambda: shutil.rmtree(real),
        )
        return [succeeds(each) for each in steps][1]

    return swap


def swaps_at_once(place: Path, link: Path, target: Path) -> Callable[[], bool]:
    """The same without a moment in which nothing is there, where the system can exchange two names."""
    exchange = getattr(ctypes.CDLL(None), "renameat2", None)
    if exchange is None:
        pytest.skip("this system cannot exchange two names")
    names = os.fsencode(place), os.fsencode(link)

    def swap() -> bool:
        if not place.is_symlink() and not link.is_symlink():  # a writer may have replaced it, as it may
            succeeds(link.unlink)
            succeeds(lambda: link.symlink_to(target))
        return exchange(-100, names[0], -100, names[1], 2) == 0 and place.is_symlink()

    return swap


def succeeds(work: Callable[[], object]) -> bool:
    try:
        work()
    except OSError:
        return False
    return True


def works_at(workspace: FolderWorkspace, path: str, texts: set[str], counts: dict[str, int]) -> Callable[[], None]:
    """Everything that can be done with that file. What is read, and what came of it, is kept."""

    def counted(work: Callable[[], object]) -> object:
        try:
            found = work()
        except WorkspaceError as error:
            counts[type(error).__name__] = counts.get(type(error).__name__, 0) + 1
            return None
        counts["done"] = counts.get("done", 0) + 1
        return found

    def work() -> None:
        for _ in range(10):
            text = counted(lambda: workspace.read(path))
            if isinstance(text, str):
                texts.add(text)
        counted(lambda: workspace.write(path, "inside"))
        counted(lambda: workspace.compare_and_exchange(path, SECRET, "stolen"))
        counted(lambda: workspace.compare_and_exchange(path, None, "inside"))
        counted(lambda: workspace.exists(path))
        workspace.list()  # whatever is going on
        workspace.digest()
        if random.random() < 0.2:
            counted(lambda: workspace.delete(path))

    return work


def of(counts: list[dict[str, int]], what: str) -> int:
    return sum(each.get(what, 0) for each in counts)


@pytest.mark.parametrize("path", ["d/file", "d/below/file", "file"])
@pytest.mark.parametrize("at_once", [True, False], ids=["exchanged", "renamed"])
def test_a_name_that_is_swapped_for_a_link_never_leads_out(root: Path, outside: Path, path: str, at_once: bool) -> None:
    workspace = FolderWorkspace(root)
    workspace.write(path, "inside")
    place = root / path.split("/")[0]
    target = outside if place.is_dir() else outside / "file"
    make = swaps_at_once if at_once else swaps
    swap = make(place, root / "other", target)
    before, texts = tree(outside), set[str]()
    swapped: list[bool] = []
    counts: list[dict[str, int]] = [{}, {}]
    with meanwhile(lambda: swapped.append(swap()), *(works_at(workspace, path, texts, each) for each in counts)):
        while min(sum(swapped), of(counts, "done"), of(counts, "WorkspaceError")) < ENOUGH:
            time.sleep(0.05)
    assert tree(outside) == before
    assert texts == {"inside"}


def test_a_root_that_is_swapped_for_a_link_stays_the_one_that_was_opened(root: Path, outside: Path) -> None:
    workspace = FolderWorkspace(root)
    workspace.write("file", "inside")
    root.rename(root.with_name("moved"))
    root.symlink_to(outside)
    assert workspace.read("file") == "inside"
    workspace.write("new", "1")
    workspace.delete("file")
    assert workspace.compare_and_exchange("below/file", None, "2")
    assert workspace.list() == ["below/file", "new"]
    assert tree(outside) == {"file": SECRET, "below/file": SECRET}
    assert tree(root.with_name("moved")) == {"below/file": "2", "new": "1"}


# Several processes


COUNTS = """
    import sys, threading
    from chatstack import FolderWorkspace
    def count():
        workspace = FolderWorkspace(sys.argv[1])
        for _ in range(int(sys.argv[2])):
            while True:
                seen = workspace.read("count")
                if workspace.compare_and_exchange("count", seen, str(int(seen) + 1)):
                    break
    threads = [threading.Thread(target=count) for _ in range(4)]
    for each in threads: each.start()
    for each in threads: each.join()
"""


def started(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], text=True)


def test_threads_of_several_processes_that_count_lose_nothing(root: Path) -> None:
    FolderWorkspace(root).write("count", "0")
    processes = [started(COUNTS, root, 100) for _ in range(3)]
    assert [each.wait(300) for each in processes] == [0, 0, 0]
    assert FolderWorkspace(root).read("count") == "1200"


KILLED = """
    import sys, itertools
    from chatstack import FolderWorkspace
    workspace = FolderWorkspace(sys.argv[1])
    for number in itertools.count():
        workspace.write("a/file", str(number % 10) * 300_000)
        workspace.write(f"a/{number % 50}", "x")
"""


def test_a_writer_that_is_killed_leaves_a_whole_file_and_nothing_that_counts(root: Path) -> None:
    workspace = FolderWorkspace(root, max_files=51)
    workspace.write("a/file", "0" * 300_000)
    left = 0
    for number in range(25):
        process = started(KILLED, root)
        seen = workspace.read("a/file")
        deadline = time.monotonic() + 300
        while workspace.read("a/file") == seen and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(0.0004 * number)
        process.send_signal(signal.SIGKILL)
        process.wait(300)
        left += (root / "a" / PARTIAL).exists()
        text = workspace.read("a/file")
        assert text == text[0] * 300_000
        assert not [path for path in workspace.list() if PARTIAL in path]
        workspace.write("b", "the lock is free")
        assert not (root / "a" / PARTIAL).exists()
        workspace.delete("b")
    (root / "a" / PARTIAL).write_text("left" * 1_000_000)  # for sure
    assert workspace.list("a/file") == []
    workspace.write("a/file", "x" * 900_000)
    assert not (root / "a" / PARTIAL).exists()
    print(f"{left} of 25 were killed while they wrote")


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_that_was_forked_meanwhile_works_and_holds_nothing_up(root: Path) -> None:
    workspace = FolderWorkspace(root)
    workspace.write("count", "0")

    def write() -> None:
        workspace.write("a", "x" * 10_000)

    def child() -> None:
        for _ in range(20):
            while not workspace.compare_and_exchange("count", (seen := workspace.read("count")), str(int(seen) + 1)):
                pass

    fork = multiprocessing.get_context("fork")
    with meanwhile(write, write):
        children = [fork.Process(target=child) for _ in range(10)]
        for each in children:
            each.start()
        for each in children:
            each.join(300)
    assert [each.exitcode for each in children] == [0] * 10
    assert workspace.read("count") == "200"


DIES = """
    import os, signal, sys, threading, time
    from chatstack import FolderWorkspace
    workspace = FolderWorkspace(sys.argv[1])
    def write():
        while True:
            workspace.write("a", "x" * 500_000)
    for _ in range(4):
        threading.Thread(target=write, daemon=True).start()
    time.sleep(0.2)
    for _ in range(5):
        child = os.fork()
        if child == 0:
            time.sleep(15)
            os._exit(0)
        print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks with threads")
def test_a_child_keeps_no_lock_of_a_parent_that_was_killed(root: Path) -> None:
    ran = subprocess.Popen([sys.executable, "-c", textwrap.dedent(DIES), str(root)], stdout=subprocess.PIPE, text=True)
    assert ran.stdout is not None
    children = [int(ran.stdout.readline()) for _ in range(5)]
    assert ran.wait(300) == -signal.SIGKILL
    try:
        FolderWorkspace(root).write("b", "1")
    finally:
        ran.stdout.close()
        for each in children:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
