"""The part of the workspace contract about paths, and the base of all its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from chatstack.errors import ChatStackError, MissingFileError, WorkspaceError
from chatstack.loop.workspace import Workspace
from chatstack.testing.exchanges import same

_OUTSIDE = (
    "..", "../a", "a/..", "a/../b", "a/../../b", "./..", "/", "/a", "//a", "/etc/passwd", "C:", "c:/a", "C:a",
    "a:b", "a/b:c", "\\a", "a\\b", "..\\a", "\\\\host\\a", "~/..", "a/../..",
)  # fmt: skip
_UNUSABLE = (
    "", ".", "./", "a/", "a/.", "a\x00", "\x00", "a\nb", "a\rb", "a\tb", "\x7f", "a\x9f", "a\u2028b", "\ud800",
    "a/\udfff", "a.", "a ", "a./b", "a /b", "...", " ", "con", "CON", "nul.txt", "a/PRN", "Aux/b", "com1", "LPT9.a.b",
    "COM¹", "conin$", "nul .txt", "x" * 256, "é" * 128, "a/" + "x" * 300, "x/" * 512 + "x",
    "x" * 100_000, "a/" * 32 + "a",
)  # fmt: skip
_FOLDERS = ("", ".", "./", "a/", "a/.")
"""Spellings of folders, which are no path of a file."""
_SPELLINGS = {
    "./a.txt": "a.txt",
    "a//b.txt": "a/b.txt",
    "././a/./b.txt": "a/b.txt",
    "e\u0301.txt": "é.txt",
    "\u212b": "Å",
    "..a": "..a",
    "a..b/...c": "a..b/...c",
    ".hidden": ".hidden",
    "console.txt": "console.txt",
    "com": "com",
    "~/a": "~/a",
    "%2e%2e/a": "%2e%2e/a",
    "-rf *?\"'$(x)`<>|": "-rf *?\"'$(x)`<>|",
    "x" * 255: "x" * 255,
    "é" * 127: "é" * 127,
    "a/" * 31 + "a": "a/" * 31 + "a",
}
_ALIKE = (("notes.txt", "Notes.txt"), ("straße", "STRASSE"), ("é/a", "É/b"), ("Src/a", "src/b"), ("Ω/x", "ω"))


class PathContract:
    """The workspace under test, and checks of its paths. See ``WorkspaceContract``."""

    def make(self, **quotas: int) -> Workspace:
        """Return an empty workspace."""
        raise NotImplementedError(f"{type(self).__name__}: write make(self, **quotas)")

    def again(self, workspace: Workspace) -> Workspace:
        """Return another one at the same place."""
        return workspace

    def test_every_path_that_leads_out_is_refused_by_every_method(self) -> None:
        self._refuses(_OUTSIDE)

    def test_every_path_that_some_system_cannot_hold_is_refused_by_every_method(self) -> None:
        self._refuses(_UNUSABLE)

    def test_a_path_has_one_spelling(self) -> None:
        for path, spelling in _SPELLINGS.items():
            workspace = self.make()
            workspace.write(path, "text")
            same(workspace.list(), [spelling], f"the spelling of {path!r}")
            same((workspace.read(path), workspace.read(spelling)), ("text", "text"), f"what {path!r} holds")
            same(workspace.compare_and_exchange(path, "text", "new"), True, f"whether {path!r} was exchanged")
            workspace.delete(path)
            same(
                (workspace.exists(path), workspace.list()),
                (False, list[str]()),
                f"what is there once {path!r} is deleted",
            )

    def test_a_name_that_differs_only_in_case_is_refused_when_written_and_not_there_when_read(self) -> None:
        for path, other in _ALIKE:
            workspace = filled(self.make(), {path: "1"})
            same(workspace.exists(other), False, f"whether {other!r} is there beside {path!r}")
            refused(workspace.read, other, kind=MissingFileError)
            refused(workspace.write, other, "2")
            refused(workspace.compare_and_exchange, other, None, "2")
            refused(workspace.delete, other, kind=MissingFileError)
            same(contents(workspace), {path: "1"}, "what is there")

    def _refuses(self, paths: tuple[str, ...]) -> None:
        workspace = filled(self.make(), {"here": "1"})
        for path in paths:
            told = refused(workspace.read, path)
            same(isinstance(told, MissingFileError), False, f"whether {path[:40]!r} is only missing")
            same(len(str(told)) < 500, True, "whether the error is short")
            refused(workspace.write, path, "")
            refused(workspace.exists, path)
            refused(workspace.delete, path)
            refused(workspace.compare_and_exchange, path, None, "")
            refused(workspace.compare_and_exchange, path, "x", "")
            if path not in _FOLDERS:
                refused(workspace.list, path)
        same(contents(workspace), {"here": "1"}, "what is there")


def refused(
    work: Callable[..., object], *arguments: object, kind: type[ChatStackError] = WorkspaceError
) -> ChatStackError:
    """Return the error of that call. Raises ``AssertionError`` if it is none of that kind, or has no text."""
    try:
        gave = work(*arguments)
    except ChatStackError as error:
        if not isinstance(error, kind):
            raise AssertionError(f"{type(error).__name__} was raised, not {kind.__name__}") from error
        same(bool(str(error)), True, "whether the error says anything")
        return error
    raise AssertionError(f"{kind.__name__} was not raised; it gave {gave!r}")


def filled(workspace: Workspace, files: Mapping[str, str]) -> Workspace:
    """Return the workspace with these files added."""
    for path, text in files.items():
        workspace.write(path, text)
    return workspace


def contents(workspace: Workspace) -> dict[str, str]:
    """Return all files with their texts."""
    return {path: workspace.read(path) for path in workspace.list()}
