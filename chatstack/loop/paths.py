"""Paths in a workspace: one spelling for each file, and only names that every file system can hold."""

from __future__ import annotations

import re
import unicodedata

from chatstack.errors import WorkspaceError

MAX_CHARS = 1_024
MAX_NAME_BYTES = 255
MAX_NAMES = 32
"""Maximum number of names in a path: each folder costs a step, with every write that adds up the sizes."""
PARTIAL = ".chatstack-partial"
"""Name of a file while it is written; no other file may have it."""

_SHOWN_CHARS = 120
_UNUSABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Control characters, and other line breaks."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$) *(\..*)?", re.IGNORECASE)
"""Names of Windows devices: it opens the device under any extension, and in any folder."""
_EXAMPLE = "name a file by its way from the workspace's root, such as 'notes/plan.md'"


def file_path(path: str) -> str:
    """Return the one spelling of a path: NFC, "/" between names, no "." and no empty names.

    The result is its own spelling. Raises ``WorkspaceError`` for a path that is not a file below the root on every
    system.
    """
    normal = folder_path(path)
    if not normal:
        raise _refused(path, f"names no file; {_EXAMPLE}")
    if path.endswith(("/", "/.")):
        raise _refused(path, f"is a folder's path; {_EXAMPLE}")
    return normal


def folder_path(path: str) -> str:
    """Return the one spelling of a folder's path; "" is the root."""
    if not isinstance(path, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise WorkspaceError(f"a path is text, not {type(path).__name__}")
    if len(path) > MAX_CHARS:
        raise _refused(path, f"is {len(path):,} characters long; at most {MAX_CHARS:,} are allowed")
    normal = unicodedata.normalize("NFC", path)
    if len(normal) > MAX_CHARS:
        raise _refused(path, f"is {len(normal):,} characters long; at most {MAX_CHARS:,} are allowed")
    if normal.startswith("/"):
        raise _refused(path, f"is absolute; {_EXAMPLE}")
    names = [name for name in normal.split("/") if name not in ("", ".")]
    if len(names) > MAX_NAMES:
        raise _refused(path, f"goes through {len(names):,} names; at most {MAX_NAMES} are allowed")
    for name in names:
        why = _why_not(name)
        if why is not None:
            raise _refused(path, why)
    return "/".join(names)


def folders_of(path: str) -> list[str]:
    """Return the paths of all folders that a file is in, the outermost first, without the root."""
    names = path.split("/")
    return ["/".join(names[:count]) for count in range(1, len(names))]


def name_of(path: str) -> str:
    """Return the last name of a path."""
    return path.rpartition("/")[2]


def folded(path: str) -> str:
    """Return a key that is equal for paths that differ only in case: on some systems they are one file."""
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def as_name(name: str) -> str | None:
    """Return the spelling in a path of a name from a folder; None if no path can hold it."""
    normal = unicodedata.normalize("NFC", name)
    return normal if normal != "." and _why_not(normal) is None else None


def shown(path: str) -> str:
    """Return a path as errors show it: quoted, escaped, not too long."""
    return repr(path if len(path) <= _SHOWN_CHARS else path[: _SHOWN_CHARS - 1] + "…")


def _why_not(name: str) -> str | None:
    """Return the reason why a name is refused, or None."""
    if name == "..":
        return f"holds '..', which may lead out of the workspace; {_EXAMPLE}"
    if "\\" in name:
        return "holds a backslash; write '/' between the names"
    if ":" in name:
        return f"holds ':', as drives and streams do; {_EXAMPLE}"
    if _UNUSABLE.search(name):
        return "holds a control character or the end of a line; leave it out"
    if _SURROGATE.search(name):
        return "holds half a character (a lone surrogate); leave it out"
    if name.endswith((".", " ")):
        return "has a name that ends with a dot or a space, which some systems drop; leave it out"
    if _DEVICE.fullmatch(name):
        return "has the name of a device on some systems; choose another name"
    if folded(name) == PARTIAL:
        return "has a name that the workspace keeps for itself; choose another name"
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"has a name of more than {MAX_NAME_BYTES} bytes; choose a shorter one"
    return None


def _refused(path: str, why: str) -> WorkspaceError:
    return WorkspaceError(f"the path {shown(path)} {why}.")
