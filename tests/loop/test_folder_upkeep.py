"""What a folder costs: what has not changed is not read again for a digest, and no descriptor is left open."""

from __future__ import annotations

import gc
import os
import random
import sys
import time
from pathlib import Path

import pytest

from chatstack import FolderWorkspace, MemoryWorkspace, WorkspaceError
from tests.loop.test_folder_races import meanwhile


@pytest.fixture
def workspace(root: Path) -> FolderWorkspace:
    return FolderWorkspace(root)


@pytest.fixture
def read(workspace: FolderWorkspace, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is opened from now on."""
    names: list[str] = []
    opened = os.open

    def watched(path: str, flags: int, *rest: int, **more: int) -> int:
        names.append(path)
        return opened(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", watched)
    return names


def digest_at(workspace: FolderWorkspace, ns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """What it gives when the clock says that."""
    with monkeypatch.context() as patch:
        patch.setattr("time.time_ns", lambda: ns)
        return workspace.digest()


def test_a_file_that_has_not_changed_is_not_read_again(
    workspace: FolderWorkspace, root: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.write("a", "1")
    workspace.write("b", "2")
    found = (root / "b").stat()
    first = digest_at(workspace, found.st_ctime_ns + 10_000_000_000, monkeypatch)
    assert {"a", "b"} <= set(read)
    read.clear()
    assert workspace.digest() == first == MemoryWorkspace({"a": "1", "b": "2"}).digest()
    assert not {"a", "b"} & set(read)
    with open(root / "b", "r+") as file:
        file.write("3")
    os.utime(root / "b", ns=(found.st_atime_ns, found.st_mtime_ns))  # as if nothing had happened
    assert workspace.digest() == MemoryWorkspace({"a": "1", "b": "3"}).digest()
    assert "a" not in read


@pytest.mark.parametrize("age_ns", [-(10**10), 0, 1_900_000_000])
def test_a_file_that_was_new_when_it_was_read_is_read_again(
    workspace: FolderWorkspace, root: Path, read: list[str], monkeypatch: pytest.MonkeyPatch, age_ns: int
) -> None:
    """Another change within one tick of the clock would not show in its times."""
    workspace.write("a", "1")
    first = digest_at(workspace, (root / "a").stat().st_ctime_ns + age_ns, monkeypatch)
    read.clear()
    assert workspace.digest() == first
    assert "a" in read


@pytest.mark.slow
def test_threads_that_read_write_list_and_digest_at_once_agree_in_the_end(workspace: FolderWorkspace) -> None:
    works = [lambda n=n: workspace.write(f"{n}/{random.randrange(5)}", str(random.randrange(9))) for n in range(4)]
    gone: list[str] = []

    def reads() -> None:
        for path in workspace.list():
            text = workspace.read(path)
            if not text.isdigit():
                gone.append(text)

    with meanwhile(*works, reads, workspace.digest, workspace.digest):
        time.sleep(1)
    assert gone == []
    files = {path: workspace.read(path) for path in workspace.list()}
    assert workspace.digest() == MemoryWorkspace(files).digest()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(sys.platform != "linux", reason="counts in /proc")
def test_no_descriptor_is_left_open_whatever_happens(root: Path, outside: Path) -> None:
    gc.collect()
    before = open_files()
    uses_everything(root, outside)
    gc.collect()
    assert open_files() == before


def uses_everything(root: Path, outside: Path) -> None:
    before = open_files()
    workspace = FolderWorkspace(root, max_files=4)
    (root / "link").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    os.mkfifo(root / "pipe")
    workspace.write("a/b/c", "1")
    refused = 0
    for path in ("a/b/c", "a/b", "a/x/y", "link/secret", "file", "pipe", "a/b/c/d", "A/b", "n/1", "n/2", "n/3", "n/4"):
        for work in (
            lambda path: workspace.read(path),
            lambda path: workspace.compare_and_exchange(path, "x", "y"),
            lambda path: workspace.write(path, "x" * 2_000_000),
            lambda path: workspace.write(path, "x"),
            lambda path: workspace.exists(path),
            lambda path: workspace.list(path) and workspace.digest(),
        ):
            try:
                work(path)
            except WorkspaceError:
                refused += 1
    assert refused > 20
    assert open_files() == before + 1
