"""The contract that every workspace keeps, as a suite to subclass."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from chatstack.errors import MissingFileError, WorkspaceError
from chatstack.loop.workspace import MemoryWorkspace, Workspace
from chatstack.testing.exchanges import same
from chatstack.testing.workspace_paths import PathContract, contents, filled, refused

_THREADS = 8
_TURNS = 25
_TEXTS = (
    "",
    "\n",
    "a\r\nb\rc\n",
    "\ufeffé e\u0301 日本 👩‍👩‍👧 \U0010ffff",
    "\x00\x1a\x7f\u2028",
    " no end",
    "x" * 100_000,
)


class WorkspaceContract(PathContract):
    """Promises of every workspace. Subclass it as ``Test...``, write ``make(**quotas)``, and run pytest.

    ``make`` returns an empty workspace with these quotas (``max_files``, ``max_file_bytes``, ``max_bytes``), each at a
    place of its own. ``again`` returns another one at the same place, as another process would have it; leave it out if
    that is impossible.

    The checks: every text comes back to the letter, under one spelling of its path; paths that lead out, or that some
    system cannot hold, are refused by every method, and those that differ only in case when they are written; a folder
    exists as long as a file in it does; quotas hold to the byte; concurrent exchanges lose no change; readers see whole
    texts; equal files have equal digests, in every workspace.
    """

    # Kept texts

    def test_it_conforms(self) -> None:
        names = [name for name in dir(Workspace) if not name.startswith("_")]
        made = self.make()
        same([name for name in names if not callable(getattr(made, name, None))], list[str](), "methods that it lacks")

    def test_nothing_is_there_at_first(self) -> None:
        workspace = self.make()
        same(
            (workspace.list(), workspace.list("a"), workspace.exists("a")),
            (list[str](), list[str](), False),
            "an empty workspace",
        )
        refused(workspace.read, "a", kind=MissingFileError)
        refused(workspace.delete, "a", kind=MissingFileError)
        refused(workspace.read, "a/b/c", kind=MissingFileError)

    def test_every_text_comes_back_to_the_letter(self) -> None:
        workspace = self.make()
        for number, text in enumerate(_TEXTS):
            workspace.write(f"t/{number}", text)
            same(self.again(workspace).read(f"t/{number}") == text, True, f"whether {text[:20]!r} came back")
        workspace.write("t/6", "short")
        same(self.again(workspace).read("t/6"), "short", "a text that replaced a longer one")

    def test_half_a_character_is_refused_and_leaves_what_was_there(self) -> None:
        workspace = filled(self.make(), {"a": "old"})
        for text in ("\ud800", "a\udfff"):
            refused(workspace.write, "a", text)
            refused(workspace.compare_and_exchange, "a", "old", text)
        same(contents(workspace), {"a": "old"}, "what is there")

    def test_files_are_listed_sorted_and_by_folder(self) -> None:
        workspace = filled(self.make(), dict.fromkeys(("b", "a/z", "a/b/c", "ab/c", "a-b", "é", "B2"), ""))
        same(workspace.list(), ["B2", "a-b", "a/b/c", "a/z", "ab/c", "b", "é"], "all files")
        for folder in ("a", "a/", "./a", "a//"):
            same(workspace.list(folder), ["a/b/c", "a/z"], f"the files below {folder!r}")
        same((workspace.list("."), workspace.list("./")), (workspace.list(), workspace.list()), "the root by a name")
        same(
            [workspace.list("b"), workspace.list("a/b/c"), workspace.list("A")],
            ([list[str]()] * 3),
            "what is no folder",
        )

    def test_a_file_is_deleted_and_its_folders_with_the_last_one(self) -> None:
        workspace = filled(self.make(), {"a/b/c": "1", "a/d": "2"})
        workspace.delete("./a//b/c")
        refused(workspace.delete, "a/b/c", kind=MissingFileError)
        same((contents(workspace), workspace.exists("a/b/c")), ({"a/d": "2"}, False), "what is left")
        workspace.write("a/b", "a file where a folder was")
        workspace.delete("a/d")
        workspace.delete("a/b")
        workspace.write("A", "another spelling of a folder that was")
        same(contents(workspace), {"A": "another spelling of a folder that was"}, "what is there in the end")

    def test_a_folder_is_no_file_and_a_file_no_folder(self) -> None:
        workspace = filled(self.make(), {"a/b": "1", "c": "2"})
        for path in ("a", "c/d", "c/d/e"):
            same(workspace.exists(path), False, f"whether {path!r} is there")
            refused(workspace.read, path)
            refused(workspace.write, path, "")
            refused(workspace.delete, path)
            refused(workspace.compare_and_exchange, path, None, "")
            same(workspace.compare_and_exchange(path, "x", "y"), False, f"whether {path!r} was exchanged")
        same(contents(workspace), {"a/b": "1", "c": "2"}, "what is there")

    # Quotas

    def test_the_number_of_files_is_bounded(self) -> None:
        workspace = filled(self.make(max_files=3), {"a": "", "b/c": "", "d": ""})
        refused(workspace.write, "e", "")
        refused(workspace.compare_and_exchange, "e", None, "")
        workspace.write("a", "replaced")
        workspace.delete("d")
        workspace.write("e", "")
        refused(workspace.write, "d", "")
        same(contents(workspace), {"a": "replaced", "b/c": "", "e": ""}, "what is there")

    def test_the_size_of_a_file_is_bounded_in_bytes(self) -> None:
        workspace = filled(self.make(max_file_bytes=4), {"a": "éé"})
        refused(workspace.write, "a", "ééa")
        refused(workspace.write, "b", "12345")
        refused(workspace.compare_and_exchange, "a", "éé", "12345")
        same(contents(workspace), {"a": "éé"}, "what is there")

    def test_the_size_of_all_files_is_bounded_in_bytes(self) -> None:
        workspace = filled(self.make(max_bytes=10), {"a": "12345", "b/c": "1234"})
        refused(workspace.write, "d", "12")
        refused(workspace.write, "a", "éééa")
        workspace.write("d", "1")
        workspace.write("a", "éé1")
        refused(workspace.write, "d", "12")
        workspace.write("a", "")
        workspace.write("d", "123456")
        same(contents(workspace), {"a": "", "b/c": "1234", "d": "123456"}, "what is there")

    def test_what_is_refused_leaves_nothing_behind(self) -> None:
        workspace = self.make(max_files=1, max_file_bytes=3)
        refused(workspace.write, "x/y/z", "1234")
        workspace.write("X", "1")
        refused(workspace.write, "y/z", "1")
        workspace.delete("X")
        workspace.write("Y", "1")
        same(contents(workspace), {"Y": "1"}, "what is there")

    # Concurrent writes

    def test_it_is_exchanged_only_for_what_was_expected(self) -> None:
        workspace = self.make()
        same(workspace.compare_and_exchange("a", "", "1"), False, "an empty text expected where nothing is")
        same(workspace.compare_and_exchange("a", None, "1"), True, "nothing expected where nothing is")
        same(workspace.compare_and_exchange("a", None, "2"), False, "nothing expected where something is")
        for expected in ("", "1 ", "1\n", "2", "\ud800"):
            same(workspace.compare_and_exchange("a", expected, "2"), False, f"{expected!r} expected where '1' is")
        same(self.again(workspace).read("a"), "1", "what is there")
        same(self.again(workspace).compare_and_exchange("a", "1", "1"), True, "the same once more")
        same(self.again(workspace).compare_and_exchange("a", "1", "2"), True, "what is there expected")
        same(workspace.read("a"), "2", "what is there then")

    def test_of_many_who_count_at_the_same_time_nobody_is_lost(self) -> None:
        workspace = filled(self.make(), {"count": "0"})

        def count(number: int) -> None:
            mine = self.again(workspace)
            for _ in range(_TURNS):
                while not mine.compare_and_exchange("count", (seen := mine.read("count")), str(int(seen) + 1)):
                    pass

        at_once(count)
        same(workspace.read("count"), str(_THREADS * _TURNS), "the count")

    def test_of_many_who_make_a_file_one_wins_each_time(self) -> None:
        workspace = self.make()
        wins: list[tuple[str, int]] = []

        def make(number: int) -> None:
            mine = self.again(workspace)
            wins.extend(
                (path, number)
                for path in map("f/{}".format, range(_TURNS))
                if mine.compare_and_exchange(path, None, str(number))
            )

        at_once(make)
        same(sorted(contents(workspace).items()), sorted((path, str(number)) for path, number in wins), "who won")
        same(len(wins), _TURNS, "how many won")

    def test_of_many_who_write_at_the_same_time_no_quota_is_exceeded(self) -> None:
        workspace = self.make(max_files=10)

        def write(number: int) -> None:
            mine = self.again(workspace)
            for turn in range(_TURNS):
                try:
                    mine.write(f"{number}/{turn}", "x")
                except WorkspaceError:
                    return

        at_once(write)
        same(len(workspace.list()), 10, "how many files there are")

    def test_readers_see_whole_texts_while_others_write(self) -> None:
        workspace = filled(self.make(), {"a/b": "0" * 50_000})
        seen: set[str] = set()

        def work(number: int) -> None:
            mine = self.again(workspace)
            for turn in range(_TURNS):
                if number % 2:
                    mine.write("a/b", str(turn % 10) * 50_000)
                else:
                    text = mine.read("a/b")
                    seen.add("whole" if text == text[0] * 50_000 else f"{len(text)} characters of {set(text)}")

        at_once(work)
        same(seen, {"whole"}, "what readers saw")

    # Digests

    def test_equal_files_have_equal_digests_in_every_workspace(self) -> None:
        files = {"a": "1", "b/c": "é\r\n", "d": ""}
        workspace, other = filled(self.make(), files), filled(self.make(), dict(reversed(files.items())))
        same(workspace.digest(), other.digest(), "the digest of the same files")
        same(workspace.digest(), self.again(workspace).digest(), "the digest at the same place")
        same(workspace.digest(), MemoryWorkspace(files).digest(), "the digest in memory")

    def test_the_digest_tells_every_change_and_comes_back_with_what_was_there(self) -> None:
        workspace = self.make()
        digests: list[str] = []
        for files in (
            {},
            {"a": "1"},
            {"a": "2"},
            {"b": "2"},
            {"b": ""},
            {"b": "", "a": "2"},
            {"b": "2", "a": ""},
            {"b2": ""},
        ):
            for path in workspace.list():
                workspace.delete(path)
            digests.append(filled(workspace, files).digest())
            same(workspace.digest(), digests[-1], "the digest once more")
        same(len(set(digests)), len(digests), "how many digests differ")
        workspace.delete("b2")
        same(workspace.digest(), digests[0], "the digest of no files again")

    def test_the_digest_tells_changes_that_follow_at_once(self) -> None:
        workspace, other = self.make(), None
        for number in range(100):
            workspace.write("a", str(number % 7))
            other = self.again(workspace)
            same(workspace.digest(), MemoryWorkspace({"a": str(number % 7)}).digest(), f"the digest of change {number}")
            same(other.digest(), workspace.digest(), "the digest of another one")


def at_once(work: Callable[[int], None]) -> None:
    """Run the work in several threads, and raise an exception of one of them."""
    raised: list[BaseException] = []
    start = threading.Barrier(_THREADS)

    def run(number: int) -> None:
        try:
            start.wait(10)
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised again below
            raised.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(_THREADS)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads switch between any two steps
    try:
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
    finally:
        sys.setswitchinterval(interval)
    if raised:
        raise raised[0]
    same([each.is_alive() for each in threads], [False] * _THREADS, "threads that go on")
