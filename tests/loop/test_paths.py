"""Paths: one spelling for each file, and none that leads out or that some system cannot hold."""

from __future__ import annotations

import ntpath
import os
import re
import sys
import unicodedata
from pathlib import PurePosixPath, PureWindowsPath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chatstack.errors import WorkspaceError
from chatstack.loop.paths import MAX_CHARS, PARTIAL, as_name, file_path, folded, folder_path, folders_of, shown
from tests.histories import PROPERTY

NAMES = ("a", "A", "..", ".", "", "con", "NUL.txt", "x ", "y.", "c:", "\\", "\x00", "\ud800", "~", "ß", "İ", "\u200d")
COMPOSED = ("é", "e\u0301", "\u0301", "\u0338", "\u212a", "\u037e", "\u2126", "\u1fef", "\u0344", "\ufb1d")
LIKE_DOTS_AND_SLASHES = ("\u2024", "\u2025", "\uff0e\uff0e", "\uff0f", "\u2215")
PIECES = st.sampled_from(NAMES + COMPOSED + LIKE_DOTS_AND_SLASHES)
ANYTHING = st.one_of(
    st.text(st.characters(), max_size=30),
    st.lists(PIECES, max_size=6).map("/".join),
    st.lists(st.one_of(PIECES, st.sampled_from("/.:\\ ")), max_size=12).map("".join),
)


def is_reserved_on_windows(path: str) -> bool:
    """Tell whether Windows would open a device, or another file, in its place. Wildcards are taken out: no file there
    has one in its name, so they open nothing."""
    if sys.version_info >= (3, 13):
        return ntpath.isreserved(re.sub('[<>"|?*]', "x", path))
    return PureWindowsPath(path).is_reserved()


def accepted(path: str) -> str | None:
    try:
        return file_path(path)
    except WorkspaceError:
        return None


@PROPERTY
@given(ANYTHING)
@example("a/./\u0301")
@example("a/.\u0301/b")
def test_what_is_accepted_is_its_own_spelling(path: str) -> None:
    spelling = accepted(path)
    if spelling is not None:
        assert file_path(spelling) == spelling
        assert folder_path(spelling) == spelling
        assert accepted(f"./{spelling}") == spelling
        assert accepted(unicodedata.normalize("NFD", spelling)) == spelling


@PROPERTY
@given(ANYTHING)
@example("a/<b")
def test_what_is_accepted_stays_inside_on_every_system(path: str) -> None:
    spelling = accepted(path)
    if spelling is None:
        return
    root = "/root/of/it"
    assert os.path.normpath(f"{root}/{path}").startswith(f"{root}/")
    assert os.path.normpath(f"{root}/{spelling}") == f"{root}/{spelling}"
    for kind in (PurePosixPath, PureWindowsPath):
        for each in (path, spelling):
            made = kind(each)
            assert not made.is_absolute()
            assert (made.drive, made.root) == ("", "")
            assert ".." not in made.parts
        assert "/".join(kind(spelling).parts) == spelling
    assert not is_reserved_on_windows(spelling)
    assert all(0 < len(name.encode()) <= 255 for name in spelling.split("/"))
    assert not {"Cc", "Cs", "Zl", "Zp"} & set(map(unicodedata.category, spelling))


@PROPERTY
@given(ANYTHING, ANYTHING)
def test_paths_that_differ_in_case_or_composition_fold_alike(path: str, other: str) -> None:
    for each in (path, other):
        assert folded(unicodedata.normalize("NFD", each)) == folded(each)
    if path.isascii():
        assert folded(path.upper()) == folded(path) == path.lower()
    spelling = accepted(path)
    if spelling is not None:
        assert folded(spelling) == "/".join(map(folded, spelling.split("/")))


@PROPERTY
@given(ANYTHING)
def test_a_name_is_one_that_a_path_can_have(name: str) -> None:
    if "/" not in name and name not in ("", "."):
        assert as_name(name) == accepted(name)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "names no file"),
        (".", "names no file"),
        ("a/", "is a folder's path"),
        ("a/.", "is a folder's path"),
        ("/a", "is absolute"),
        ("../a", "holds '..', which may lead out"),
        ("a\\b", "holds a backslash; write '/'"),
        ("C:/a", "holds ':'"),
        ("a\x00", "holds a control character"),
        ("\ud800", "holds half a character"),
        ("a.", "ends with a dot or a space"),
        ("a /b", "ends with a dot or a space"),
        ("COM1.txt", "has the name of a device"),
        ("a/nul", "has the name of a device"),
        (PARTIAL, "keeps for itself"),
        (f"a/{PARTIAL.upper()}", "keeps for itself"),
        (".chatstac\u212a-partial", "keeps for itself"),
        ("x" * 256, "has a name of more than 255 bytes"),
        ("x" * 1_025, "is 1,025 characters long; at most 1,024"),
        ("\ufb1d/" * 400, "is 1,200 characters long; at most 1,024"),
        ("a/" * 32 + "a", "goes through 33 names; at most 32"),
    ],
)
def test_a_refusal_names_the_path_and_says_why(path: str, why: str) -> None:
    with pytest.raises(WorkspaceError) as caught:
        file_path(path)
    assert why in str(caught.value)
    assert str(caught.value).startswith(f"the path {shown(path)} ")
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "path", ["x" * 255, "é" * 127, "日" * 85, "/".join(["x" * 31] * 32), "a" * 200 + "/" + "b" * 255]
)
def test_a_path_may_be_as_long_as_that(path: str) -> None:
    assert file_path(path) == path
    assert len(path) <= MAX_CHARS


def test_the_root_is_a_folder_by_several_names() -> None:
    assert [folder_path(each) for each in ("", ".", "./", "././.")] == [""] * 4
    assert [folder_path(each) for each in ("a/", "./a//", "a/.")] == ["a"] * 3
    with pytest.raises(WorkspaceError):
        folder_path("a/..")


def test_the_folders_of_a_path_are_those_on_its_way() -> None:
    assert folders_of("a/b/c") == ["a", "a/b"]
    assert folders_of("a") == []
