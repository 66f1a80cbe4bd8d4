"""Recordings in object stores and on web servers, through ``fsspec`` (the extra ``remote``).

A file is copied to a temporary one, without a name, each time that it is read: it is read as slowly as it is replayed,
which no server waits for. So memory and disk are bounded: by a piece, and by one file of the size that was told when it
was listed.
"""

from __future__ import annotations

import importlib
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import IO, Protocol, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

from chatstack import plugins
from chatstack.cli.terminal import missing_extra
from chatstack.errors import InputError

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(://|::)")
_WEB = ("http", "https")
_PIECE_BYTES = 1024 * 1024
_UNTOLD_BYTES = 4 * 1024**3
"""Most bytes of a file whose server does not tell its size."""
_CONNECT_SECONDS, _READ_SECONDS = 30, 60
_MARKS = ("size", "ETag", "etag", "updated", "md5Hash", "crc32c")
"""Fields by which stores tell that a file has changed, and that are the same in a listing. Times of others are not."""


class _Opened(Protocol):
    def read(self, size: int, /) -> bytes: ...
    def close(self) -> None: ...


class FileSystem(Protocol):
    """The part of a file system of ``fsspec`` that is used."""

    protocol: str | tuple[str, ...]

    def info(self, path: str) -> dict[str, object]: ...
    def find(self, path: str, *, detail: bool) -> dict[str, dict[str, object]]: ...
    def open(self, path: str, mode: str, **options: object) -> _Opened: ...
    def unstrip_protocol(self, name: str) -> str: ...
    def invalidate_cache(self) -> None: ...


def is_address(text: str) -> bool:
    """Return True for an address such as ``s3://bucket/folder``, False for the path of a file."""
    return _ADDRESS.match(text) is not None


def local_path(address: str) -> str | None:
    """Return the path of a ``file://`` address; None for any other."""
    return url2pathname(urlsplit(address).path) if address.lower().startswith("file://") else None


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file that is not here. ``name`` is shown: without a password, and without the query of a signed address."""

    name: str
    size_bytes: int | None
    _files: FileSystem = field(repr=False)
    _path: str = field(repr=False)
    _marks: Mapping[str, str] = field(repr=False)

    def check_unchanged(self) -> None:
        """Raise ``InputError`` if the file has changed since it was listed, as far as its store tells."""
        try:
            self._files.invalidate_cache()
            now = _marks_of(self._files.info(self._path))
        except Exception as error:
            raise _unreadable(self.name, error) from error
        if any(now[name] != self._marks[name] for name in now.keys() & self._marks.keys()):  # a listing may tell less
            raise InputError(f"{self.name}: has changed since it was first read; try again with a copy")

    def open(self) -> IO[bytes]:
        """Copy the file, and return the copy. Raises ``OSError``, also where it is longer or shorter than told."""
        copy = cast("IO[bytes]", tempfile.TemporaryFile())  # noqa: SIM115
        try:
            self._copy_to(copy)
        except BaseException:
            copy.close()
            raise
        copy.seek(0)
        return copy

    def _copy_to(self, copy: IO[bytes]) -> None:
        most = _UNTOLD_BYTES if self.size_bytes is None else self.size_bytes
        # A web server is read as a stream: to read in pieces it would have to keep to the ranges that it is asked for.
        options: dict[str, object] = {"block_size": 0} if _is_web(self._files) else {}
        try:
            with closing(self._files.open(self._path, "rb", **options)) as opened:
                while piece := opened.read(_PIECE_BYTES):
                    if copy.tell() + len(piece) > most:
                        raise OSError(f"it is longer than {most:,} bytes, as it was when it was listed")
                    copy.write(piece)
        except Exception as error:  # every store has errors of its own
            raise OSError(_told(error)) from error
        if self.size_bytes is not None and copy.tell() < self.size_bytes:
            raise OSError(f"it ended after {copy.tell():,} of {self.size_bytes:,} bytes")


def remote_files(address: str, endings: tuple[str, ...]) -> Iterator[RemoteFile]:
    """Yield the file at an address, or all recordings in the folder there, in the order of a folder on disk.

    Raises ``InputError`` if there is none, ``ChatStackError`` if a package is missing that this takes.
    """
    try:
        fsspec = importlib.import_module("fsspec.core")  # it tells no types
    except ImportError as error:
        raise missing_extra("fsspec", "remote") from error
    shown = _shown(address)
    try:
        files, path = cast("tuple[FileSystem, str]", fsspec.url_to_fs(address, **_options(address)))
        files.invalidate_cache()
        info = files.info(path)
        if info.get("type") != "directory":
            yield _remote(files, path, info, shown)
            return
        listed = files.find(path, detail=True)
    except ImportError as error:
        raise InputError(f"{shown}: {_told(error)} (beside the extra 'remote')") from error
    except Exception as error:  # every store has errors of its own
        raise _unreadable(shown, error) from error
    wanted = {
        tuple(each.removeprefix(path).strip("/").split("/")): each for each in listed if each.lower().endswith(endings)
    }
    wanted = {parts: each for parts, each in wanted.items() if not any(part.startswith(".") for part in parts)}
    if not wanted:
        raise InputError(f"{shown}: nothing to read in this folder or those below it: looked for {', '.join(endings)}")
    for _, each in sorted(wanted.items()):
        yield _remote(files, each, listed[each], _shown(files.unstrip_protocol(each)))


def _options(address: str) -> dict[str, object]:
    """Return the options of a file system: of a web server, no decoding, which could turn little into very much."""
    if address.partition("://")[0].lower() not in _WEB:
        return {}
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_READ_SECONDS)
    return {"client_kwargs": {"timeout": timeout, "auto_decompress": False}}


def _is_web(files: FileSystem) -> bool:
    protocols = (files.protocol,) if isinstance(files.protocol, str) else files.protocol
    return any(each in _WEB for each in protocols)


def _remote(files: FileSystem, path: str, info: Mapping[str, object], name: str) -> RemoteFile:
    size = info.get("size")
    return RemoteFile(name, size if isinstance(size, int) else None, files, path, _marks_of(info))


def _marks_of(info: Mapping[str, object]) -> Mapping[str, str]:
    return {name: str(info[name]) for name in _MARKS if name in info}


def _unreadable(shown: str, error: Exception) -> InputError:
    return InputError(f"{shown}: cannot be read: {_told(error)}")


def _told(error: Exception) -> str:
    return plugins.told(error, hidden=_shown).removeprefix("OSError: ")


def _shown(text: str) -> str:
    """Return text without the passwords and the queries of the addresses in it: a query may be a signature."""
    text = re.sub(r"(://)[^/\s@]+@", r"\1", text)
    return re.sub(r"(https?://[^\s?#'\"]*)[?#][^\s'\")]*", r"\1", text)
