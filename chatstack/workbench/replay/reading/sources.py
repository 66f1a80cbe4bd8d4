"""Sources of recordings: files, folders, standard input, and what is behind an address."""

from __future__ import annotations

import io
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from chatstack.errors import InputError
from chatstack.workbench.replay.reading.remote import RemoteFile, is_address, local_path, remote_files

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_STDIN = "-"
_STDIN_NAME = "stdin"
_ENDINGS = (".json", ".jsonl", ".ndjson")
_ENDINGS_READ = (*_ENDINGS, *(f"{ending}{packed}" for ending in _ENDINGS for packed in (".gz", ".zst", ".bz2", ".xz")))
"""Endings of recordings in a folder. Only gzip is unpacked; the others are named as files that cannot be read."""
_PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Source:
    """One file to read, or standard input. ``name`` is its displayed name; ``path`` is None for standard input."""

    name: str
    size_bytes: int
    path: Path | None = None
    changed_ns: int = 0
    """Modification time of the file when the sources were listed."""
    _copy: IO[bytes] | None = field(default=None, repr=False)
    _remote: RemoteFile | None = field(default=None, repr=False)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The last two suffixes, in lower case: ``(".jsonl", ".gz")``."""
        return tuple(suffix.lower() for suffix in Path(self.name).suffixes[-2:])

    def check_unchanged(self) -> None:
        """Raise ``InputError`` if the file has changed since it was listed, for callers that read it several times."""
        if self._remote is not None:
            self._remote.check_unchanged()
        if self.path is None:
            return
        try:
            status = self.path.stat()
        except OSError as error:
            raise _unreadable(self.path, error) from error
        if (status.st_size, status.st_mtime_ns) != (self.size_bytes, self.changed_ns):
            raise InputError(f"{self.path}: has changed since it was first read; try again with a copy")

    def open(self) -> IO[bytes]:
        """Open the bytes from the start, each time anew; several readers do not disturb one another."""
        if self.path is not None:
            return self.path.open("rb")
        if self._remote is not None:
            return self._remote.open()
        return io.BufferedReader(_Reading(cast("IO[bytes]", self._copy)))


@contextmanager
def sources_from(paths: Sequence[Path | str]) -> Generator[tuple[Source, ...]]:
    """Open the sources in order: files as given, of folders all recordings in them, ``-`` for standard input.

    Folders are read recursively, in the order of names: files that end in .json, .jsonl or .ndjson, also with .gz, and
    are not hidden; a file or folder that is reached again through links counts once. Standard input is copied to a
    temporary file without a name, so that it can be read twice and its size is known; the copy goes away at the end.
    Text with a scheme is an address (``s3://bucket/folder``), read by ``fsspec``; ``file://`` is a path.

    Raises ``InputError`` for the first source that cannot be read.
    """
    found: list[Source | None] = []
    for path in paths:
        if str(path) != _STDIN:
            found.extend(_sources_at(path) if isinstance(path, str) else _sources_of(path))
            continue
        if None in found:
            raise InputError(f"{_STDIN_NAME}: can be read only once")
        _check_stdin()
        found.append(None)
    with ExitStack() as stack:
        # Standard input last: its sender may take long, and a wrong file name should be reported at once.
        copied = _copied(stack) if None in found else None
        yield tuple(cast("Source", copied) if each is None else each for each in found)


def _sources_at(place: str) -> Iterator[Source]:
    """Yield the sources at an address, or at the path that a text is."""
    path = local_path(place) if is_address(place) else place
    if path is not None:
        yield from _sources_of(Path(path))
        return
    for each in remote_files(place, _ENDINGS_READ):
        yield Source(each.name, each.size_bytes or 0, _remote=each)


def _sources_of(path: Path) -> Iterator[Source]:
    try:
        status = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    if stat.S_ISREG(status.st_mode):
        yield _file(path)
        return
    if not stat.S_ISDIR(status.st_mode):
        raise InputError(f"{path}: not a file")
    files = list(_files_below(path))
    if not files:
        looked_for = ", ".join(f"*{ending}" for ending in _ENDINGS)
        raise InputError(
            f"{path}: nothing to read in this folder or those below it: looked for {looked_for}, also with .gz, "
            "that are not hidden"
        )
    yield from map(_file, files)


def _file(path: Path) -> Source:
    """Open the file for a moment to check that it can be read."""
    try:
        with path.open("rb") as opened:
            status = os.fstat(opened.fileno())
            return Source(str(path), status.st_size, path, status.st_mtime_ns)
    except OSError as error:
        raise _unreadable(path, error) from error


def _files_below(folder: Path) -> Iterator[Path]:
    seen: set[tuple[int, int]] = set()
    left = [folder]
    while left:
        path = left.pop()
        try:
            status = path.stat()
        except OSError as error:
            if path.is_symlink():
                continue  # a broken link, or a cycle of links
            raise _unreadable(path, error) from error
        is_folder = stat.S_ISDIR(status.st_mode)
        is_wanted = stat.S_ISREG(status.st_mode) and path.name.lower().endswith(_ENDINGS_READ)
        if not (is_folder or is_wanted) or (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        if is_wanted:
            yield path
            continue
        try:
            names = sorted(os.listdir(path), reverse=True)
        except OSError as error:
            raise _unreadable(path, error) from error
        left.extend(path / name for name in names if not name.startswith("."))


def _check_stdin() -> None:
    # None where the process was started without one.
    if sys.stdin is None or sys.stdin.closed:  # pyright: ignore[reportUnnecessaryComparison]
        raise InputError(f"{_STDIN_NAME}: there is none")
    if sys.stdin.isatty():
        raise InputError(
            f"{_STDIN_NAME}: is a terminal; send recordings to it, as in: chatstack replay - < talks.jsonl"
        )


def _copied(stack: ExitStack) -> Source:
    try:
        copy = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        shutil.copyfileobj(sys.stdin.buffer, copy, _PIECE_BYTES)
        return Source(_STDIN_NAME, copy.tell(), _copy=copy)
    except OSError as error:
        raise InputError(f"{_STDIN_NAME}: cannot be copied to a temporary file: {error.strerror or error}") from error


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be read: {error.strerror or error}")


class _Reading(io.RawIOBase):
    """One reader's own position in a file that several read; closing it leaves the file open."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._file.seek(self._position)
        self._position = self._file.seek(offset, whence)
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        self._file.seek(self._position)
        view = memoryview(buffer).cast("B")
        data = self._file.read(len(view))
        view[: len(data)] = data
        self._position += len(data)
        return len(data)
