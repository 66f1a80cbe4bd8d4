"""Workspaces: the text files in which a loop keeps its state, and an implementation in memory."""

from __future__ import annotations

import builtins
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple, Protocol, runtime_checkable

from chatstack.errors import MissingFileError, WiringError, WorkspaceError
from chatstack.loop.paths import file_path, folded, folder_path, folders_of, shown


@runtime_checkable
class Workspace(Protocol):
    """Text files, by paths such as ``notes/plan.md``, for an iterative loop, its tools and its prompt.

    Any number of threads may use it. Raises ``WorkspaceError`` for what it refuses: a path that leads out of it or that
    some system cannot hold, one that differs from a file or folder only in case, a file over a quota, text that is no
    UTF-8. A folder exists as long as a file is in it. ``chatstack.testing.WorkspaceContract`` checks an implementation
    of your own.
    """

    def read(self, path: str) -> str:
        """Return the text of a file. Raises ``MissingFileError``."""
        ...

    def write(self, path: str, text: str) -> None:
        """Make a file, or replace all that it holds. Concurrent readers get the old text or the new one."""
        ...

    def exists(self, path: str) -> bool:
        """Return True if there is such a file; a folder is none."""
        ...

    def list(self, folder: str = "") -> builtins.list[str]:
        """Return the paths of all files below a folder, sorted; none if there is no such folder."""
        ...

    def compare_and_exchange(self, path: str, expected: str | None, text: str) -> bool:
        """Write only if the file holds ``expected``, None meaning no file; return True if it did. It is atomic."""
        ...

    def delete(self, path: str) -> None:
        """Remove a file. Raises ``MissingFileError``."""
        ...

    def digest(self) -> str:
        """Return a digest that is equal for equal paths and texts, in whichever workspace."""
        ...


class MemoryWorkspace:
    """A workspace in memory, of one process. ``files`` are its initial files."""

    def __init__(
        self,
        files: Mapping[str, str] | None = None,
        *,
        max_files: int = 1_000,
        max_file_bytes: int = 1_000_000,
        max_bytes: int = 10_000_000,
    ) -> None:
        self.quotas = Quotas("MemoryWorkspace", max_files, max_file_bytes, max_bytes)
        self._lock = Lock()
        self._files: dict[str, _File] = {}
        self._names: dict[str, str] = {}
        if not isinstance(files, Mapping | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            told = f"MemoryWorkspace: files={files!r} must be a mapping from paths to texts, or None"
            raise WiringError(told, parameter="files")
        for path, text in (files or {}).items():
            self.write(path, text)

    def read(self, path: str) -> str:
        """Return the text of a file. Raises ``MissingFileError``."""
        path = file_path(path)
        with self._lock:
            found = self._files.get(path)
            if found is None:
                self._check_kind(path)
                raise missing(path)
            return found.text

    def write(self, path: str, text: str) -> None:
        """Make a file, or replace all that it holds."""
        path, data = file_path(path), encoded(path, text)
        with self._lock:
            self._put(path, text, data)

    def exists(self, path: str) -> bool:
        """Return True if there is such a file."""
        path = file_path(path)
        with self._lock:
            return path in self._files

    def list(self, folder: str = "") -> builtins.list[str]:
        """Return the paths of all files below a folder, sorted."""
        folder = folder_path(folder)
        with self._lock:
            return sorted(path for path in self._files if is_below(path, folder))

    def compare_and_exchange(self, path: str, expected: str | None, text: str) -> bool:
        """Write only if the file holds ``expected``; None means no file."""
        path, data = file_path(path), encoded(path, text)
        with self._lock:
            found = self._files.get(path)
            if (None if found is None else found.text) != expected:
                return False
            self._put(path, text, data)
            return True

    def delete(self, path: str) -> None:
        """Remove a file. Raises ``MissingFileError``."""
        path = file_path(path)
        with self._lock:
            if path not in self._files:
                self._check_kind(path)
                raise missing(path)
            del self._files[path]
            names = {name for each in self._files for name in (*folders_of(each), each)}
            self._names = {folded(name): name for name in names}

    def digest(self) -> str:
        """Return a digest that is equal for equal paths and texts."""
        with self._lock:
            return digest_of((path, file.digest) for path, file in self._files.items())

    def __repr__(self) -> str:
        return f"MemoryWorkspace({len(self._files)} files)"

    def _put(self, path: str, text: str, data: bytes) -> None:
        self.quotas.check(path, len(data), {each: file.size for each, file in self._files.items()})
        if path not in self._files:
            names = (*folders_of(path), path)
            for name in names:
                there = self._names.get(folded(name), name)
                if there != name:
                    raise differs_in_case(name, there)
            self._check_kind(path)
            self._names.update((folded(name), name) for name in names)
        self._files[path] = _File(text, len(data), content_digest(data))

    def _check_kind(self, path: str) -> None:
        """Raise ``WorkspaceError`` if the path is a folder, or a file stands where it needs one."""
        if folded(path) in self._names and self._names[folded(path)] == path:
            raise is_folder(path)
        for folder in folders_of(path):
            if folder in self._files:
                raise no_folder(path, folder)


class _File(NamedTuple):
    text: str
    size: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Quotas:
    """Maximum number of files, bytes of one file, and bytes of all files."""

    of: str
    max_files: int
    max_file_bytes: int
    max_bytes: int

    def __post_init__(self) -> None:
        for name in ("max_files", "max_file_bytes", "max_bytes"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise WiringError(
                    f"{self.of}: {name}={value!r} must be a whole number greater than 0", layer=self.of, parameter=name
                )

    def check(self, path: str, size: int, sizes: Mapping[str, int]) -> None:
        """Refuse a file of that size beyond a limit. A workspace over its limit may still shrink."""
        if size > self.max_file_bytes:
            raise WorkspaceError(
                f"{shown(path)} would have {size:,} bytes; a file may have at most {self.max_file_bytes:,}. "
                "Write less, or spread it over several files."
            )
        if path not in sizes and len(sizes) >= self.max_files:
            raise WorkspaceError(
                f"{shown(path)} would be file number {len(sizes) + 1:,}; there may be at most {self.max_files:,}. "
                "Put it into a file that is there."
            )
        before = sum(sizes.values())
        after = before - sizes.get(path, 0) + size
        if after > self.max_bytes and after > before:
            raise WorkspaceError(
                f"with {shown(path)} the workspace would hold {after:,} bytes; at most {self.max_bytes:,} are allowed. "
                "Write less, or make other files shorter first."
            )


def encoded(path: str, text: str) -> bytes:
    """Return the text as it is stored."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise WorkspaceError(f"{shown(path)} takes text, not {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise WorkspaceError(
            f"{shown(path)} cannot hold half a character (a lone surrogate), as there is one at position "
            f"{error.start:,}. Leave it out."
        ) from error


def content_digest(data: bytes) -> bytes:
    """Return the digest of one file's bytes."""
    return hashlib.blake2b(data, digest_size=32).digest()


def digest_of(files: Iterable[tuple[str, bytes]]) -> str:
    """Return the digest of all paths and their files' digests."""
    total = hashlib.blake2b(digest_size=16)
    for path, digest in sorted(files):
        total.update(path.encode() + b"\0" + digest)  # no path holds a zero, and all digests are equally long
    return total.hexdigest()


def is_below(path: str, folder: str) -> bool:
    """Return True if a file is in that folder or below it."""
    return not folder or path.startswith(f"{folder}/")


def missing(path: str) -> MissingFileError:
    """Return the error for a file that does not exist."""
    return MissingFileError(
        f"there is no file {shown(path)}. List the files to see their names; upper and lower case make a difference."
    )


def differs_in_case(path: str, there: str) -> WorkspaceError:
    """Return the error for a path that some file systems would take for an existing one."""
    return WorkspaceError(
        f"{shown(path)} differs only in upper and lower case from {shown(there)}, which is there. "
        "Use that spelling, or another name."
    )


def is_folder(path: str) -> WorkspaceError:
    """Return the error for a folder that is used as a file."""
    return WorkspaceError(f"{shown(path)} is a folder. Name a file, in it or beside it.")


def no_folder(path: str, way: str) -> WorkspaceError:
    """Return the error for a path through a file or a link."""
    return WorkspaceError(f"{shown(path)} cannot be: {shown(way)} is not a folder. Choose another folder or name.")
