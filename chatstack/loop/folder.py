"""A workspace in a folder of the file system, from which no path leads out.

``chatstack.loop.below`` opens the files and keeps them inside.
"""

from __future__ import annotations

import builtins
import os
import time
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

from chatstack.errors import WiringError, WorkspaceError
from chatstack.loop import below
from chatstack.loop.paths import file_path, folder_path, shown
from chatstack.loop.workspace import Quotas, content_digest, digest_of, encoded, is_below, missing
from chatstack.paths import absolute_path

_COARSEST_CLOCK_NS = 2_000_000_000
"""Coarsest tick of a file system's clock: two changes of a file within one tick look like one."""

_Mark = tuple[int, int, int, int, int]


class FolderWorkspace:
    """A workspace in a folder, for any number of threads and processes of one machine. The folder is made if missing.

    Only plain files count: links, hard links, pipes and devices are not listed, and naming one is an error. A file is
    replaced as a whole, even if the process is killed. The folder stays the one that was opened, whatever later takes
    its place. Raises ``WiringError`` if it cannot be opened, and on systems that cannot open relative to a folder
    (Windows); what the system refuses later is a ``WorkspaceError``.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        max_files: int = 1_000,
        max_file_bytes: int = 1_000_000,
        max_bytes: int = 10_000_000,
    ) -> None:
        below.check_system()
        self.quotas = Quotas("FolderWorkspace", max_files, max_file_bytes, max_bytes)
        if not isinstance(root, str | os.PathLike) or not str(root):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WiringError(
                f"FolderWorkspace: root={root!r} must be the path of a folder",
                layer="FolderWorkspace",
                parameter="root",
            )
        self.root = absolute_path("FolderWorkspace", root=root)
        try:
            self._root = below.root_at(self.root)
        except (OSError, ValueError) as error:
            raise WiringError(
                f"FolderWorkspace: root {str(self.root)!r} cannot be opened as a folder: {error}",
                layer="FolderWorkspace",
                parameter="root",
            ) from error
        # No method closes it: another thread may be using the descriptor.
        weakref.finalize(self, os.close, self._root).atexit = False
        self._known: dict[str, tuple[_Mark, bytes]] = {}

    def read(self, path: str) -> str:
        """Return the text of a file. Raises ``MissingFileError``."""
        path = file_path(path)
        with _told(path, "read"):
            data = self._content(self._root, path)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise WorkspaceError(f"{shown(path)} is not UTF-8 text, and cannot be read here.") from error

    def write(self, path: str, text: str) -> None:
        """Make a file, or replace all that it holds."""
        path, data = file_path(path), encoded(path, text)
        with _told(path, "written"), below.locked(self._root) as root:
            self._put(root, path, data)

    def exists(self, path: str) -> bool:
        """Return True if there is such a file: a plain one."""
        path = file_path(path)
        with _told(path, "looked at"):
            return below.is_there(self._root, path)

    def list(self, folder: str = "") -> builtins.list[str]:
        """Return the paths of all plain files below a folder, sorted."""
        folder = folder_path(folder)
        with _told(folder, "listed"):
            return sorted(path for path in below.files_in(self._root) if is_below(path, folder))

    def compare_and_exchange(self, path: str, expected: str | None, text: str) -> bool:
        """Write only if the file holds ``expected``; None means no file. Atomic among threads and processes."""
        path, data = file_path(path), encoded(path, text)
        with _told(path, "written"), below.locked(self._root) as root:
            if below.is_there(root, path) is (expected is None):
                return False
            if expected is not None and self._content(root, path) != expected.encode("utf-8", "surrogatepass"):
                return False
            self._put(root, path, data)
            return True

    def delete(self, path: str) -> None:
        """Remove a file, and the folders that become empty. Raises ``MissingFileError``."""
        path = file_path(path)
        with _told(path, "deleted"), below.locked(self._root) as root:
            below.delete(root, path)

    def digest(self) -> str:
        """Return a digest of all paths and texts. Files that have not changed are not read again."""
        known: dict[str, tuple[_Mark, bytes]] = {}
        total: builtins.list[tuple[str, bytes]] = []
        with _told("", "read"):
            for path, found in below.files_in(self._root).items():
                digest = self._digest(path, found, known)
                if digest is not None:
                    total.append((path, digest))
        self._known = known
        return digest_of(total)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings: a copy opens the folder for itself."""
        limits = self.quotas
        quotas = {
            "max_files": limits.max_files,
            "max_file_bytes": limits.max_file_bytes,
            "max_bytes": limits.max_bytes,
        }
        return (partial(type(self), self.root, **quotas), ())

    def __repr__(self) -> str:
        return f"FolderWorkspace({str(self.root)!r})"

    def _content(self, root: int, path: str) -> bytes:
        """Return the bytes of a plain file. Raises ``WorkspaceError`` if it is larger than the quota."""
        with below.opened(root, path) as (fd, found):
            return self._bounded(fd, found, path)

    def _bounded(self, fd: int, found: os.stat_result, path: str) -> bytes:
        limit = self.quotas.max_file_bytes
        with open(fd, "rb", closefd=False) as file:
            data = file.read(limit + 1) if found.st_size <= limit else None
        if data is None or len(data) > limit:
            raise WorkspaceError(f"{shown(path)} has more than {limit:,} bytes, and cannot be read here.")
        return data

    def _put(self, root: int, path: str, data: bytes) -> None:
        """Write a file. The lock is held, so a partial file found here was left by a writer that was killed."""
        sizes = {each: found.st_size for each, found in below.files_in(root, sweep=True).items()}
        self.quotas.check(path, len(data), sizes)
        below.replace(root, path, data)

    def _digest(self, path: str, found: os.stat_result, known: dict[str, tuple[_Mark, bytes]]) -> bytes | None:
        last = self._known.get(path)
        if last is not None and last[0] == _mark(found):
            known[path] = last
            return last[1]
        began = time.time_ns()
        try:
            with below.opened(self._root, path) as (fd, found):
                digest = content_digest(self._bounded(fd, found, path))
        except FileNotFoundError:
            return None
        except (WorkspaceError, PermissionError):  # unreadable, but a change must still change the digest
            return content_digest(repr(_mark(found)).encode())
        if found.st_ctime_ns + _COARSEST_CLOCK_NS < began:
            known[path] = (_mark(found), digest)
        return digest


def _mark(found: os.stat_result) -> _Mark:
    """Return a mark that changes with the file.

    Every write changes ``st_ctime``, which cannot be set (writes through mapped memory, once the system writes them
    back); a file that replaces it has another ``st_ino``, or a later ``st_ctime``.
    """
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@contextmanager
def _told(path: str, done: str) -> Generator[None]:
    """Raise what the system refuses as a ``WorkspaceError``, in words for a model."""
    try:
        yield
    except WorkspaceError:
        raise
    except OSError as error:
        if isinstance(error, FileNotFoundError) and done in ("read", "deleted"):
            raise missing(path) from error
        what = shown(path) if path else "the workspace"
        raise WorkspaceError(f"{what} cannot be {done}: {error.strerror or error}.") from error
