"""What is to be read: files as they are given, folders with what is in them, and what is sent to standard input."""

from __future__ import annotations

import gzip
import io
import os
import pty
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from chatstack import InputError
from chatstack.workbench.replay.reading.sources import Source, sources_from


def below(folder: Path, *names: str) -> None:
    """Files of these names, each with its name in it."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def names_in(folder: Path) -> list[str]:
    with sources_from([folder]) as sources:
        return [Path(source.name).relative_to(folder).as_posix() for source in sources]


def bytes_of(source: Source) -> bytes:
    with source.open() as opened:
        return opened.read()


def sent(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_files_are_given_in_their_order_whatever_they_are_called(tmp_path: Path) -> None:
    below(tmp_path, "b.jsonl", "a.txt", ".hidden")
    files = [tmp_path / name for name in ("b.jsonl", "a.txt", ".hidden", "b.jsonl")]

    with sources_from(files) as sources:
        assert [source.name for source in sources] == [str(path) for path in files]
        assert [source.path for source in sources] == files
        assert [source.size_bytes for source in sources] == [7, 5, 7, 7]
        assert bytes_of(sources[0]) == bytes_of(sources[0]) == b"b.jsonl"


def test_the_suffixes_are_the_last_two_in_lower_case(tmp_path: Path) -> None:
    assert Source("v1.2/talks.2024.JSONL.gz", 0).suffixes == (".jsonl", ".gz")
    assert Source("stdin", 0).suffixes == ()


def test_a_folder_is_read_with_all_below_it_in_the_order_of_names(tmp_path: Path) -> None:
    wanted = ["B.JSON", "a/b/z.ndjson.gz", "a/y.jsonl", "b/c.json.gz", "b.json", "c.jsonl.GZ", "d.ndjson"]
    below(tmp_path, *wanted)
    below(tmp_path, "notes.txt", "a.csv.gz", "x.gz", "json", ".e.jsonl", ".git/f.jsonl", "a/.b/g.jsonl", "h.jsonl.bak")

    assert names_in(tmp_path) == wanted
    assert names_in(tmp_path / "a") == ["b/z.ndjson.gz", "y.jsonl"]


def test_a_hidden_folder_that_is_given_is_read(tmp_path: Path) -> None:
    below(tmp_path, ".runs/a.jsonl")

    assert names_in(tmp_path / ".runs") == ["a.jsonl"]


def test_links_are_followed_once_and_circles_do_no_harm(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    below(tmp_path, "out/deep/o.jsonl")
    below(folder, "a.jsonl", "sub/b.jsonl")
    (folder / "latest.jsonl").symlink_to("a.jsonl")
    (folder / "sub" / "up").symlink_to("..")
    (folder / "outside").symlink_to(tmp_path / "out")
    (folder / "again").symlink_to(folder)
    (folder / "self.jsonl").symlink_to("self.jsonl")
    (folder / "gone.jsonl").symlink_to("nowhere")

    assert names_in(folder) == ["a.jsonl", "outside/deep/o.jsonl", "sub/b.jsonl"]


def test_what_is_no_file_in_a_folder_is_passed_over(tmp_path: Path) -> None:
    below(tmp_path, "a.jsonl", "folder.jsonl/b.json")
    os.mkfifo(tmp_path / "pipe.jsonl")

    assert names_in(tmp_path) == ["a.jsonl", "folder.jsonl/b.json"]


def test_very_deep_folders_are_read(tmp_path: Path) -> None:
    here, depth = os.getcwd(), 1_200
    try:
        os.chdir(tmp_path)
        for _ in range(depth):
            os.mkdir("d")
            os.chdir("d")
        Path("a.jsonl").write_text("x")
        assert names_in(tmp_path) == [f"{'d/' * depth}a.jsonl"]
    finally:
        # Taken away here: whoever clears temporary folders does not go down so far.
        Path("a.jsonl").unlink(missing_ok=True)
        for _ in range(depth):
            os.chdir("..")
            os.rmdir("d")
        os.chdir(here)


def test_a_folder_with_nothing_in_it_says_what_was_looked_for(tmp_path: Path) -> None:
    below(tmp_path, "notes.txt", "sub/.hidden.jsonl")

    with pytest.raises(InputError) as caught, sources_from([tmp_path]):
        pass

    assert str(caught.value) == (
        f"{tmp_path}: nothing to read in this folder or those below it: looked for *.json, *.jsonl, *.ndjson, also "
        "with .gz, that are not hidden"
    )


def test_the_first_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    below(tmp_path, "a.jsonl")
    os.mkfifo(tmp_path / "pipe")

    for name, error in (("missing.jsonl", "cannot be read: No such file"), ("pipe", "not a file")):
        files = [tmp_path / each for each in ("a.jsonl", name, "also_missing")]
        with pytest.raises(InputError, match=f"^{re.escape(str(tmp_path / name))}: {error}"), sources_from(files):
            pass


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_what_may_not_be_read_is_told_by_name(tmp_path: Path) -> None:
    below(tmp_path, "a.jsonl", "closed/b.jsonl")
    for name in ("a.jsonl", "closed"):
        (tmp_path / name).chmod(0)
        with pytest.raises(InputError, match=f"{name}: cannot be read: Permission denied"), sources_from([tmp_path]):
            pass
        (tmp_path / name).chmod(0o700)


def test_standard_input_is_copied_and_can_be_read_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"".join(number.to_bytes(4, "big") for number in range(200_000))
    sent(monkeypatch, data)

    with sources_from([Path("-")]) as (source,):
        assert (source.name, source.size_bytes, source.path) == ("stdin", len(data), None)
        with source.open() as first, source.open() as second:
            assert first.read(5_000) == data[:5_000]
            assert second.read(100_000) == data[:100_000]
            assert first.read(100_000) == data[5_000:105_000]
            assert first.tell() == 105_000
            first.seek(7)
            assert first.read() == data[7:]
        assert bytes_of(source) == data


def test_the_copy_of_standard_input_leaves_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sent(monkeypatch, b"x" * 5_000_000)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with sources_from([Path("-")]) as (source,):
        assert source.size_bytes == 5_000_000
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="closed file"):
        bytes_of(source)


def test_standard_input_has_its_place_among_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    below(tmp_path, "a.jsonl", "b.jsonl")
    sent(monkeypatch, b"here")

    with sources_from([tmp_path / "a.jsonl", Path("-"), tmp_path / "b.jsonl"]) as sources:
        assert [bytes_of(source) for source in sources] == [b"a.jsonl", b"here", b"b.jsonl"]


def test_standard_input_is_not_waited_for_when_a_file_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sent(monkeypatch, b"here")

    with pytest.raises(InputError, match="No such file"), sources_from([Path("-"), tmp_path / "missing"]):
        pass
    assert sys.stdin.read() == "here"


def test_standard_input_can_be_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent(monkeypatch, b"here")

    with pytest.raises(InputError, match=r"^stdin: can be read only once$"), sources_from([Path("-"), Path("-")]):
        pass


def test_a_terminal_is_no_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    try:
        with open(theirs, closefd=False) as terminal:
            monkeypatch.setattr("sys.stdin", terminal)
            with pytest.raises(InputError, match=r"^stdin: is a terminal; send recordings to it"):
                sources_from([Path("-")]).__enter__()
    finally:
        os.close(ours)
        os.close(theirs)


def test_where_there_is_no_standard_input_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)

    with pytest.raises(InputError, match=r"^stdin: there is none$"), sources_from([Path("-")]):
        pass


def test_a_copy_that_does_not_fit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: object) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(Broken())))

    with pytest.raises(InputError, match=r"^stdin: cannot be copied to a temporary file: No space left on device$"):
        sources_from([Path("-")]).__enter__()


READ_STDIN = """
    from pathlib import Path
    from chatstack.workbench.replay.reading.recordings import read_recordings
    from chatstack.workbench.replay.reading.sources import sources_from

    with sources_from([Path("-")]) as sources:
        print([(item.file, item.line, item.id) for item in read_recordings(sources)], sources[0].size_bytes)
"""


def test_a_real_pipe_is_read_gzipped() -> None:
    packed = gzip.compress(b'{"id": "one", "messages": [{"role": "user", "content": "hello"}]}\n')

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(READ_STDIN)], input=packed, capture_output=True, timeout=300, check=True
    )

    assert done.stdout.decode() == f"[('stdin', 1, 'one')] {len(packed)}\n"
