"""Files below an open folder, safe against links and renames made at the same time.

Every step from the root to a file is opened by itself, relative to the one before and never through a link, so what was
opened is below the root. A file that is read is checked once it is open. A file that is replaced is never opened: the
new one is renamed onto it, in the folder that was opened.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from chatstack.errors import WiringError, WorkspaceError
from chatstack.forks import at_fork
from chatstack.loop.paths import MAX_CHARS, MAX_NAMES, PARTIAL, as_name, folded, folders_of, name_of, shown
from chatstack.loop.workspace import differs_in_case, is_folder, missing, no_folder

# Some of these are not on every system: see check_system.
_NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
_CLOEXEC: int = getattr(os, "O_CLOEXEC", 0)
_FOLDER: int = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _CLOEXEC
_FILE: int = os.O_RDONLY | _NOFOLLOW | _CLOEXEC | getattr(os, "O_NONBLOCK", 0)
_NEW: int = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _CLOEXEC

_IN_THE_WAY = (errno.ENOTDIR, errno.ELOOP, errno.EMLINK)
"""Errors of systems that refuse to open a link, or a file, as a folder."""
_NO_FILE = (*_IN_THE_WAY, errno.ENXIO, errno.ENODEV)
"""The same, and the errors for a link, a socket or a device that is opened as a file."""


def check_system() -> None:
    """Raise ``WiringError`` if the system cannot open files relative to a folder."""
    needed = (os.open, os.mkdir, os.rename, os.stat, os.unlink, os.rmdir)
    if not _NOFOLLOW or not os.supports_dir_fd.issuperset(needed) or os.scandir not in os.supports_fd:
        raise WiringError(
            "FolderWorkspace: this system cannot open files relative to a folder (dir_fd), so nothing would keep paths "
            "inside; use MemoryWorkspace",
            layer="FolderWorkspace",
        )


def root_at(root: Path) -> int:
    """Open the root, and make it if needed. It may be a link: whoever wires the workspace has chosen it."""
    root.mkdir(parents=True, exist_ok=True)
    return os.open(root, _FOLDER)


# One lock for all writers

_under_way: set[int] = set()


@contextmanager
def locked(root: int) -> Generator[int]:
    """Open the root once more, and lock it. Each opening has its own lock, which holds among threads and processes."""
    import fcntl  # not on every system: see check_system

    fd = os.open(".", _FOLDER, dir_fd=root)
    _under_way.add(fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            yield fd
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)  # closing does not unlock it while a child that was forked has it open
    finally:
        _under_way.discard(fd)
        os.close(fd)


def _after_fork_in_child() -> None:
    """Close the parent's locked files in the child: if the parent were killed, the child would keep the lock."""
    for fd in _under_way:
        os.close(fd)
    _under_way.clear()


at_fork(after_in_child=_after_fork_in_child)


# What is there


def files_in(root: int, *, sweep: bool = False) -> dict[str, os.stat_result]:
    """Return all plain files that a path can name. ``sweep`` removes a killed writer's leftovers; it needs the lock."""
    files: dict[str, os.stat_result] = {}
    _gather(root, "", 1, files, sweep)
    return files


def _gather(here: int, prefix: str, depth: int, files: dict[str, os.stat_result], sweep: bool) -> None:
    folders: list[tuple[str, str]] = []
    with os.scandir(here) as entries:
        for entry in entries:
            if sweep and entry.name == PARTIAL and not entry.is_dir(follow_symlinks=False):
                _unlink(here, PARTIAL)
            name = as_name(entry.name)
            if name is None or len(prefix) + len(name) > MAX_CHARS:
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append((entry.name, f"{prefix}{name}/"))
                continue
            with suppress(FileNotFoundError):  # removed meanwhile
                found = entry.stat(follow_symlinks=False)
                if _is_plain(found):
                    files[prefix + name] = found
    if depth == MAX_NAMES:
        return
    for on_disk, below in folders:
        try:
            fd = _step_exactly(here, on_disk)
        except PermissionError:  # nothing in there can be read or written
            continue
        except OSError as error:
            if error.errno in (*_IN_THE_WAY, errno.ENOENT):  # gone, or something else by now
                continue
            raise
        try:
            _gather(fd, below, depth + 1, files, sweep)
        finally:
            os.close(fd)


def is_there(root: int, path: str) -> bool:
    """Return True if there is a plain file."""
    try:
        with _folder_of(root, path, _step_down) as (here, name):
            found = _on_disk(os.listdir(here), name)
            return found is not None and _mode(here, found, path) is not None
    except (FileNotFoundError, WorkspaceError):
        return False


@contextmanager
def opened(root: int, path: str) -> Generator[tuple[int, os.stat_result]]:
    """Open a plain file for reading, with its status. The status is that of the open file, not of the name."""
    with _folder_of(root, path, _step_down) as (here, name):
        found = _on_disk(os.listdir(here), name)
        if found is None:
            raise missing(path)
        try:
            fd = os.open(found, _FILE, dir_fd=here)
        except OSError as error:
            if error.errno in _NO_FILE:
                raise _not_plain(path) from error
            raise
    try:
        what = os.fstat(fd)
        _check_plain(what, path)
        yield fd, what
    finally:
        os.close(fd)


# Writing, with the lock


def replace(root: int, path: str, data: bytes) -> None:
    """Put a whole file there, and make the folders that it needs."""
    try:
        with _folder_of(root, path, _step_down_or_make) as (here, name):
            names = os.listdir(here)
            _check_case(names, path)
            there = _on_disk(names, name) or name
            _write_whole(here, there, data, _mode(here, there, path, drop_empty=True))
    except BaseException:
        _drop_empty(root, path)
        raise


def delete(root: int, path: str) -> None:
    """Remove a plain file, and the folders that are empty without it."""
    with _folder_of(root, path, _step_down) as (here, name):
        found = _on_disk(os.listdir(here), name)
        if found is None or _mode(here, found, path) is None:
            raise missing(path)
        os.unlink(found, dir_fd=here)
    _drop_empty(root, path)


def _write_whole(here: int, name: str, data: bytes, mode: int | None) -> None:
    """Write a file by renaming: readers see the old file or the new one, even after a power failure."""
    _unlink(here, PARTIAL)
    fd = os.open(PARTIAL, _NEW, 0o666, dir_fd=here)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            if mode is not None:
                os.fchmod(fd, stat.S_IMODE(mode) & 0o777)  # keep the executable bits
            os.fsync(fd)
        os.rename(PARTIAL, name, src_dir_fd=here, dst_dir_fd=here)
    except BaseException:
        _unlink(here, PARTIAL)
        raise


def _unlink(here: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=here)


def _drop_empty(root: int, path: str) -> None:
    """Remove the empty folders on the way, from the last one up."""
    with suppress(OSError, WorkspaceError):  # not empty, or removed by another writer
        for folder in reversed(folders_of(path)):
            with _folder_of(root, folder, _step_down) as (here, name):
                os.rmdir(_on_disk(os.listdir(here), name) or name, dir_fd=here)


# From the root to a file, step by step


@contextmanager
def _folder_of(root: int, path: str, step: Callable[[int, str], int]) -> Generator[tuple[int, str]]:
    """Open the folder that a file is in; yield it with the file's name."""
    here = os.open(".", _FOLDER, dir_fd=root)
    try:
        for folder in folders_of(path):
            try:
                below = step(here, folder)
            except OSError as error:
                if error.errno in _IN_THE_WAY:
                    raise no_folder(path, folder) from error
                raise
            os.close(here)
            here = below
        yield here, name_of(path)
    finally:
        os.close(here)


def _step_exactly(here: int, name: str) -> int:
    return os.open(name, _FOLDER | _NOFOLLOW, dir_fd=here)


def _step_down(here: int, path: str) -> int:
    found = _on_disk(os.listdir(here), name_of(path))
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return _step_exactly(here, found)


def _step_down_or_make(here: int, path: str) -> int:
    names, name = os.listdir(here), name_of(path)
    _check_case(names, path)
    found = _on_disk(names, name)
    if found is None:
        with suppress(FileExistsError):  # what has appeared there meanwhile is opened as what it is
            os.mkdir(name, dir_fd=here)
    return _step_exactly(here, found or name)


def _on_disk(names: Sequence[str], name: str) -> str | None:
    """Return a name as the folder spells it, letter for letter: some systems would open "Name" for "name"."""
    return name if name in names else next((each for each in names if as_name(each) == name), None)


def _check_case(names: Sequence[str], path: str) -> None:
    name = name_of(path)
    key = folded(name)
    for each in names:
        if folded(each) == key and as_name(each) != name:
            raise differs_in_case(path, path[: -len(name)] + each)


def _mode(here: int, name: str, path: str, *, drop_empty: bool = False) -> int | None:
    """Return the mode of the plain file that has that name, or None if nothing has it."""
    try:
        found = os.stat(name, dir_fd=here, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if drop_empty and stat.S_ISDIR(found.st_mode):
        with suppress(OSError):
            os.rmdir(name, dir_fd=here)
            return None
    _check_plain(found, path)
    return found.st_mode


def _is_plain(found: os.stat_result) -> bool:
    """Return False for hard links too: the other name may lie outside. One replaced while it was open has none."""
    return stat.S_ISREG(found.st_mode) and found.st_nlink <= 1


def _check_plain(found: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise is_folder(path)
    if not _is_plain(found):
        raise _not_plain(path)


def _not_plain(path: str) -> WorkspaceError:
    return WorkspaceError(
        f"{shown(path)} is not a plain file (a link, one of several hard links, a pipe or a device), and is not used "
        "here. Choose another name."
    )
