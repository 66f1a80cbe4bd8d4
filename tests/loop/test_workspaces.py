"""The workspaces that come with the package keep the contract, and the contract catches those that do not."""

from __future__ import annotations

import copy
import pickle
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack import (
    FolderWorkspace,
    MemoryWorkspace,
    MissingFileError,
    ToolError,
    WiringError,
    Workspace,
    WorkspaceError,
)
from chatstack.loop.paths import folded
from chatstack.testing import WorkspaceContract
from tests.histories import PROPERTY

CHECKS = [name for name in dir(WorkspaceContract) if name.startswith("test_")]


class TestMemoryWorkspace(WorkspaceContract):
    def make(self, **quotas: int) -> Workspace:
        return MemoryWorkspace(None, **quotas)


class TestFolderWorkspace(WorkspaceContract):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.places = tmp_path

    def make(self, **quotas: int) -> Workspace:
        return FolderWorkspace(tempfile.mkdtemp(dir=self.places), **quotas)

    def again(self, workspace: Workspace) -> Workspace:
        return copy.copy(workspace)


# What each of these breaks, and the check that says so


class Broken(MemoryWorkspace):
    """One that keeps the contract; each of those below breaks it in one way."""


class Strips(Broken):
    def read(self, path: str) -> str:
        return super().read(path).strip()


class TranslatesLineEnds(Broken):
    def write(self, path: str, text: str) -> None:
        super().write(path, text.replace("\r\n", "\n"))


class ListsUnsorted(Broken):
    def list(self, folder: str = "") -> Any:
        return super().list(folder)[::-1]


class ListsByPrefix(Broken):
    def list(self, folder: str = "") -> Any:
        return [path for path in super().list() if path.startswith(folder.strip("./").replace("//", "/"))]


class IgnoresCase(Broken):
    def exists(self, path: str) -> bool:
        return folded(path) in map(folded, self.list()) or super().exists(path)


class LetsExistAnything(Broken):
    def exists(self, path: str) -> bool:
        try:
            return super().exists(path)
        except WorkspaceError:
            return False


class LeavesOneFileMore(Broken):
    def __init__(self, **quotas: int) -> None:
        quotas["max_files"] = quotas.get("max_files", 1_000) + 1
        super().__init__(None, **quotas)


class CountsCharacters(Broken):
    def write(self, path: str, text: str) -> None:
        if len(text) <= self.quotas.max_file_bytes < len(text.encode()):
            text = ""
        super().write(path, text)


class ComparesThenWrites(Broken):
    def compare_and_exchange(self, path: str, expected: str | None, text: str) -> bool:
        if (self.read(path) if self.exists(path) else None) != expected:
            return False
        time.sleep(0.0001)
        self.write(path, text)
        return True


class ExchangesAlways(Broken):
    def compare_and_exchange(self, path: str, expected: str | None, text: str) -> bool:
        self.write(path, text)
        return True


class KeepsFolders(Broken):
    def delete(self, path: str) -> None:
        names = dict(self._names)
        super().delete(path)
        self._names |= names


class DigestsLengths(Broken):
    def digest(self) -> str:
        return repr([(path, len(self.read(path))) for path in self.list()])


class DigestsOnce(Broken):
    seen: ClassVar[dict[int, str]] = {}

    def digest(self) -> str:
        return self.seen.setdefault(id(self), super().digest())


BREAKS: dict[type[Broken], str] = {
    Strips: "test_every_text_comes_back_to_the_letter",
    TranslatesLineEnds: "test_every_text_comes_back_to_the_letter",
    ListsUnsorted: "test_files_are_listed_sorted_and_by_folder",
    ListsByPrefix: "test_files_are_listed_sorted_and_by_folder",
    IgnoresCase: "test_a_name_that_differs_only_in_case_is_refused_when_written_and_not_there_when_read",
    LetsExistAnything: "test_every_path_that_leads_out_is_refused_by_every_method",
    LeavesOneFileMore: "test_the_number_of_files_is_bounded",
    CountsCharacters: "test_the_size_of_a_file_is_bounded_in_bytes",
    ComparesThenWrites: "test_of_many_who_count_at_the_same_time_nobody_is_lost",
    ExchangesAlways: "test_it_is_exchanged_only_for_what_was_expected",
    KeepsFolders: "test_a_file_is_deleted_and_its_folders_with_the_last_one",
    DigestsLengths: "test_the_digest_tells_every_change_and_comes_back_with_what_was_there",
    DigestsOnce: "test_the_digest_tells_changes_that_follow_at_once",
}


def suite(kind: Callable[..., Workspace]) -> WorkspaceContract:
    class Suite(WorkspaceContract):
        def make(self, **quotas: int) -> Workspace:
            return kind(**quotas)

    return Suite()


@pytest.mark.parametrize(("kind", "check"), BREAKS.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_the_contract_catches_a_workspace_that_breaks_it(kind: type[Broken], check: str) -> None:
    with pytest.raises(AssertionError):
        getattr(suite(kind), check)()


def test_the_contract_has_the_checks_that_are_named_above() -> None:
    assert set(BREAKS.values()) <= set(CHECKS)


def test_a_contract_without_make_says_what_to_write() -> None:
    with pytest.raises(NotImplementedError, match=r"WorkspaceContract: write make\(self, \*\*quotas\)"):
        WorkspaceContract().make()


# In memory


def test_files_can_be_given_and_are_held_to_the_same_rules() -> None:
    workspace = MemoryWorkspace({"./a.txt": "1", "b/c": "2"})
    assert workspace.list() == ["a.txt", "b/c"]
    assert repr(workspace) == "MemoryWorkspace(2 files)"
    with pytest.raises(WorkspaceError, match=r"the path '\.\./a' holds '\.\.'"):
        MemoryWorkspace({"../a": "1"})
    with pytest.raises(WorkspaceError, match="there may be at most 1"):
        MemoryWorkspace({"a": "1", "b": "2"}, max_files=1)


def test_the_mapping_that_was_given_is_not_changed() -> None:
    files = {"a": "1"}
    workspace = MemoryWorkspace(files)
    workspace.write("a", "2")
    workspace.write("b", "3")
    assert files == {"a": "1"}


# What both do, and say


PATHS = st.sampled_from(["a", "A", "a/b", "a/B", "a/b/c", "é", "É/x", "e\u0301", "..", "a/", "x" * 300, "con", ""])
TEXTS = st.sampled_from(["", "1", "é", "four", "\ud800", "too long for it"])
STEPS = st.one_of(
    st.tuples(st.just("write"), PATHS, TEXTS),
    st.tuples(st.just("compare_and_exchange"), PATHS, st.none() | TEXTS, TEXTS),
    st.tuples(st.sampled_from(["read", "exists", "delete", "list"]), PATHS),
)


@PROPERTY
@given(st.lists(STEPS, max_size=15))
def test_in_memory_and_in_a_folder_the_same_steps_come_to_the_same(steps: list[tuple[Any, ...]]) -> None:
    quotas = {"max_files": 3, "max_file_bytes": 6, "max_bytes": 9}
    with tempfile.TemporaryDirectory() as place:
        both = MemoryWorkspace(None, **quotas), FolderWorkspace(place, **quotas)
        for name, *arguments in steps:
            outcomes = [outcome(getattr(each, name), *arguments) for each in both]
            assert outcomes[0] == outcomes[1], (name, arguments)
            assert both[0].digest() == both[1].digest()


def outcome(work: Callable[..., object], *arguments: object) -> object:
    try:
        return work(*arguments)
    except WorkspaceError as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", ["max_files", "max_file_bytes", "max_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, None, "1"])
def test_a_quota_that_is_no_positive_number_fails_at_once(name: str, value: object, tmp_path: Path) -> None:
    quotas: Any = {name: value}
    for make in (MemoryWorkspace, lambda **quotas: FolderWorkspace(tmp_path, **quotas)):
        with pytest.raises(WiringError, match=f"{name}={value!r} must be a whole number greater than 0") as caught:
            make(**quotas)
        assert caught.value.parameter == name


def test_what_is_refused_is_an_error_that_the_model_reads() -> None:
    assert issubclass(WorkspaceError, ToolError)
    assert issubclass(MissingFileError, FileNotFoundError)
    with pytest.raises(MissingFileError) as caught:
        MemoryWorkspace().read("a")
    assert str(caught.value) == (
        "there is no file 'a'. List the files to see their names; upper and lower case make a difference."
    )
    restored = pickle.loads(pickle.dumps(caught.value))
    assert (type(restored), str(restored)) == (MissingFileError, str(caught.value))


def test_a_quota_says_what_there_is_and_what_may_be() -> None:
    workspace = MemoryWorkspace({"a": "12"}, max_files=1, max_file_bytes=1_500, max_bytes=1_000)
    with pytest.raises(WorkspaceError, match=r"'a' would have 1,501 bytes; a file may have at most 1,500"):
        workspace.write("a", "x" * 1_501)
    with pytest.raises(WorkspaceError, match=r"with 'a' the workspace would hold 1,001 bytes; at most 1,000"):
        workspace.write("a", "x" * 1_001)
    with pytest.raises(WorkspaceError, match=r"'b' would be file number 2; there may be at most 1"):
        workspace.write("b", "")


def test_text_that_is_none_is_refused() -> None:
    anything: Any = b"bytes"
    with pytest.raises(WorkspaceError, match="'a' takes text, not bytes"):
        MemoryWorkspace().write("a", anything)
    with pytest.raises(WorkspaceError, match="a path is text, not bytes"):
        MemoryWorkspace().write(anything, "")
