"""A workspace in a folder: what is no plain file below it is neither read nor written."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from chatstack import FolderWorkspace, MissingFileError, WiringError, WorkspaceError
from chatstack.loop.paths import PARTIAL

SECRET = "what lies outside"


def refuses(workspace: FolderWorkspace, path: str, why: str) -> None:
    """Every method refuses it, and it is not among the files."""
    for work in (
        lambda: workspace.read(path),
        lambda: workspace.write(path, "new"),
        lambda: workspace.compare_and_exchange(path, None, "new"),
        lambda: workspace.delete(path),
    ):
        with pytest.raises(WorkspaceError, match=why):
            work()
    assert not workspace.compare_and_exchange(path, SECRET, "new")
    assert not workspace.exists(path)
    assert path not in workspace.list()


# Making one


def test_the_folder_is_made_and_a_relative_one_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workspace = FolderWorkspace("a/b")
    monkeypatch.chdir("/")
    workspace.write("c", "text")
    assert (tmp_path / "a/b/c").read_text() == "text"
    assert workspace.root == tmp_path / "a/b"
    assert repr(workspace) == f"FolderWorkspace({str(tmp_path / 'a/b')!r})"


@pytest.mark.parametrize("root", ["", "\x00", 3])
def test_what_is_no_path_fails_at_once(root: str) -> None:
    with pytest.raises(WiringError, match="FolderWorkspace: root") as caught:
        FolderWorkspace(root)
    assert caught.value.parameter == "root"


def test_a_file_in_its_place_fails_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(WiringError, match="cannot be opened as a folder"):
            FolderWorkspace(root)


def test_a_system_that_cannot_open_relative_to_a_folder_fails_at_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "supports_dir_fd", set[Callable[..., object]]())
    with pytest.raises(WiringError, match=r"dir_fd.*use MemoryWorkspace"):
        FolderWorkspace(root)
    assert not root.exists()


def test_the_module_can_be_imported_where_none_of_it_is_there() -> None:
    code = """
        import os, sys
        for name in ("O_NOFOLLOW", "O_DIRECTORY", "O_CLOEXEC", "O_NONBLOCK", "register_at_fork"):
            delattr(os, name)
        sys.modules["fcntl"] = None
        from chatstack import FolderWorkspace, WiringError
        try:
            FolderWorkspace("nowhere")
        except WiringError as error:
            print("dir_fd" in str(error))
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300)
    assert (ran.stdout, ran.stderr) == ("True\n", "")


def test_a_copy_and_what_was_pickled_are_at_the_same_place_with_the_same_quotas(root: Path) -> None:
    workspace = FolderWorkspace(root, max_files=1, max_file_bytes=2, max_bytes=3)
    workspace.write("a", "1")
    for other in (copy.copy(workspace), copy.deepcopy(workspace), pickle.loads(pickle.dumps(workspace))):
        assert other.read("a") == "1"
        assert other.quotas == workspace.quotas
    del workspace
    gc.collect()
    assert other.read("a") == "1"


# What is no plain file


def test_a_link_to_a_file_is_refused(root: Path, outside: Path) -> None:
    workspace = FolderWorkspace(root)
    workspace.write("inside", SECRET)
    for number, target in enumerate((outside / "secret", root / "inside", Path("inside"), Path("nowhere"), Path("4"))):
        (root / str(number)).symlink_to(target)
        refuses(workspace, str(number), "is not a plain file")
    assert (outside / "secret").read_text() == workspace.read("inside") == SECRET


def test_a_link_to_a_folder_is_refused(root: Path, outside: Path) -> None:
    workspace = FolderWorkspace(root)
    workspace.write("real/secret", SECRET)
    for number, target in enumerate((outside, root / "real", Path(".."), Path("."), Path("4"))):
        (root / str(number)).symlink_to(target)
        refuses(workspace, f"{number}/secret", f"'{number}' is not a folder")
        refuses(workspace, f"{number}/new/file", f"'{number}' is not a folder")
        assert workspace.list(str(number)) == []
    assert workspace.list() == ["real/secret"]
    assert os.listdir(outside) == ["secret"]


def test_a_hard_link_is_refused(root: Path, outside: Path) -> None:
    workspace = FolderWorkspace(root)
    os.link(outside / "secret", root / "a")
    refuses(workspace, "a", "is not a plain file")
    assert (outside / "secret").read_text() == SECRET
    (outside / "secret").unlink()
    assert workspace.read("a") == SECRET  # it has no other name any more


def test_a_link_by_the_name_of_what_is_being_written_is_not_written_through(root: Path, outside: Path) -> None:
    workspace = FolderWorkspace(root)
    for make in (os.symlink, os.link):
        make(outside / "secret", root / PARTIAL)
        workspace.write("a", "new")
        assert workspace.read("a") == "new"
        assert os.listdir(root) == ["a"]
    assert (outside / "secret").read_text() == SECRET


def test_a_pipe_and_a_socket_are_refused_without_waiting(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = FolderWorkspace(root)
    os.mkfifo(root / "pipe")
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
        refuses(workspace, "pipe", "is not a plain file")
        refuses(workspace, "socket", "is not a plain file")
    assert isinstance(workspace.digest(), str)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root makes devices")
def test_a_device_is_refused(root: Path) -> None:
    workspace = FolderWorkspace(root)
    for name, kind, device in (
        ("zero", stat.S_IFCHR, (1, 5)),
        ("none", stat.S_IFCHR, (250, 250)),
        ("ram", stat.S_IFBLK, (1, 0)),
    ):
        try:
            os.mknod(root / name, 0o666 | kind, os.makedev(*device))
        except PermissionError:
            pytest.skip("devices cannot be made here")
        refuses(workspace, name, "is not a plain file")


def test_a_file_that_is_no_text_is_refused_and_stays(root: Path) -> None:
    workspace = FolderWorkspace(root)
    for data in (b"\xff", b"\xc3", "\ud800".encode("utf-8", "surrogatepass"), b"ok\x80"):
        (root / "a").write_bytes(data)
        with pytest.raises(WorkspaceError, match="'a' is not UTF-8 text"):
            workspace.read("a")
        assert not workspace.compare_and_exchange("a", "ok", "new")
        assert not workspace.compare_and_exchange("a", "\ud800x", "new")
        assert workspace.list() == ["a"]
        before = workspace.digest()
        (root / "b").write_text("")
        assert workspace.digest() != before
        (root / "b").unlink()
    workspace.write("a", "text")
    assert workspace.read("a") == "text"


def test_a_file_that_is_too_large_is_refused_before_it_is_read(root: Path) -> None:
    workspace = FolderWorkspace(root)
    with open(root / "a", "wb") as file:
        file.truncate(100_000_000_000)  # no memory would hold it
    with pytest.raises(WorkspaceError, match="'a' has more than 1,000,000 bytes"):
        workspace.read("a")
    with pytest.raises(WorkspaceError, match="'a' has more than 1,000,000 bytes"):
        workspace.compare_and_exchange("a", "x", "y")
    assert not workspace.compare_and_exchange("a", None, "y")
    before = workspace.digest()
    os.truncate(root / "a", 99_999_999_999)
    assert workspace.digest() != before
    with pytest.raises(WorkspaceError, match="at most 10,000,000"):
        workspace.write("b", "1")
    workspace.write("a", "small again")
    workspace.write("b", "1")
    assert workspace.list() == ["a", "b"]


def test_what_others_have_made_too_large_may_get_smaller(root: Path) -> None:
    workspace = FolderWorkspace(root, max_files=1, max_bytes=10)
    for path in ("a", "b"):
        (root / path).write_text("12345678")
    for text in ("123456789", "12345678" * 2):
        with pytest.raises(WorkspaceError, match="at most 10 are allowed"):
            workspace.write("a", text)
    workspace.write("a", "1234567")
    workspace.write("b", "1234")
    with pytest.raises(WorkspaceError, match="at most 10 are allowed"):
        workspace.write("a", "12345678")
    with pytest.raises(WorkspaceError, match="there may be at most 1"):
        workspace.write("c", "")


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs users")
def test_what_the_system_does_not_allow_is_refused_in_words(root: Path) -> None:
    workspace = FolderWorkspace(root)
    workspace.write("a/b", "1")
    workspace.write("c", "2")
    for path, mode in (("a", 0o000), ("c", 0o000), (".", 0o555)):
        (root / path).chmod(mode)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65_534)
    try:
        for work in (workspace.read, lambda path: workspace.write(path, ""), workspace.delete):
            with pytest.raises(WorkspaceError, match=r"'a/b' cannot be (read|written|deleted): Permission denied"):
                work("a/b")
        with pytest.raises(WorkspaceError, match="'c' cannot be read: Permission denied"):
            workspace.read("c")
        with pytest.raises(WorkspaceError, match="'new' cannot be written: Permission denied"):
            workspace.write("new", "")
        assert workspace.list() == ["c"]
        assert isinstance(workspace.digest(), str)
    finally:
        if user == 0:
            os.seteuid(0)
        for path in (".", "a", "c"):
            (root / path).chmod(0o755)
    assert {path: workspace.read(path) for path in workspace.list()} == {"a/b": "1", "c": "2"}


# What others put there


def test_what_no_path_can_name_is_left_alone(root: Path) -> None:
    workspace = FolderWorkspace(root, max_files=1)
    for name in (b"a:b", b"a ", b"nul", b"\xff\xfe", b"a\nb", b"back\\slash", PARTIAL.encode() + b"-not"):
        with open(os.fsencode(root) + b"/" + name, "w"):
            pass
    (root / "con").mkdir()
    (root / "con" / "file").write_text("")
    assert workspace.list() == [f"{PARTIAL}-not"]
    (root / f"{PARTIAL}-not").unlink()
    workspace.write("c", "")
    assert len(os.listdir(root)) == 8
    assert os.listdir(root / "con") == ["file"]


def test_a_name_that_is_composed_otherwise_is_the_same_file(root: Path) -> None:
    workspace = FolderWorkspace(root)
    (root / "e\u0301").mkdir()
    (root / "e\u0301" / "a\u0308").write_text("1")
    assert workspace.list() == ["é/ä"]
    assert workspace.read("é/ä") == "1"
    workspace.write("é/ä", "2")
    workspace.write("é/b", "3")
    assert (root / "e\u0301" / "a\u0308").read_text() == "2"
    assert os.listdir(root) == ["e\u0301"]
    with pytest.raises(WorkspaceError, match="differs only in upper and lower case"):
        workspace.write("É/b", "")
    workspace.delete("é/ä")
    workspace.delete("é/b")
    assert os.listdir(root) == []


def test_deep_folders_of_others_are_listed_as_far_as_a_path_goes(root: Path) -> None:
    workspace = FolderWorkspace(root)
    here = root
    for number in range(60):
        here /= "d"
        here.mkdir(parents=True)
        (here / "f").write_text(str(number))
    assert workspace.list() == sorted("d/" * count + "f" for count in range(1, 32))
    assert workspace.read("d/" * 31 + "f") == "30"


def test_what_can_be_run_can_still_be_run(root: Path) -> None:
    workspace = FolderWorkspace(root)
    workspace.write("a", "1")
    (root / "a").chmod(0o4750)
    workspace.write("a", "2")
    assert stat.S_IMODE((root / "a").stat().st_mode) == 0o750


def test_a_folder_that_was_removed_has_no_files(root: Path) -> None:
    workspace = FolderWorkspace(root)
    workspace.write("a", "1")
    (root / "a").unlink()
    root.rmdir()
    with pytest.raises(MissingFileError):
        workspace.read("a")
    with pytest.raises(WorkspaceError, match="'a' cannot be written: No such file or directory"):
        workspace.write("a", "2")
    assert (workspace.list(), workspace.exists("a")) == ([], False)
