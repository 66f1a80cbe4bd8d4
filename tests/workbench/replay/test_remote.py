"""Recordings behind an address: read as files are, within the same bounds, whatever a server sends."""

from __future__ import annotations

import gzip
import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from chatstack.cli import main
from chatstack.errors import InputError
from chatstack.workbench.replay.reading import remote
from chatstack.workbench.replay.reading.recordings import BrokenLine, Recording, read_recordings
from chatstack.workbench.replay.reading.sources import sources_from
from tests.command_line import error_of
from tests.workbench.replay.conversations import assistant, conversation, talk, user, write_lines

fsspec = pytest.importorskip("fsspec")

LINE = json.dumps(conversation(user("hello"), assistant("hi"))).encode() + b"\n"
Answer = Callable[[BaseHTTPRequestHandler], None]


class Web(ThreadingHTTPServer):
    """A web server that answers as it is told, by path."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []

    def serve(self, path: str, body: bytes, *, told: int | None = None, headers: dict[str, str] | None = None) -> str:
        """Serve these bytes, and tell that they are ``told``; return the address."""

        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            for name, value in {"Content-Length": str(len(body) if told is None else told), **(headers or {})}.items():
                if value:
                    handler.send_header(name, value)
            handler.end_headers()
            if handler.command == "GET":
                handler.wfile.write(body)

        self.answers[path] = answer
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Web)
        self.server.asked.append(f"{self.command} {self.path}")
        answer = self.server.answers.get(self.path.partition("?")[0])
        if answer is None:
            self.send_error(404)
            return
        try:
            answer(self)
        except (BrokenPipeError, ConnectionResetError):
            pass

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def store() -> Iterator[Any]:
    """What is behind ``memory://``."""
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()


def read(*places: str) -> list[Recording | BrokenLine]:
    with sources_from(places) as sources:
        return list(read_recordings(sources))


def test_a_folder_in_a_store_reads_as_the_same_folder_on_disk(store: Any, tmp_path: Path) -> None:
    names = (
        "b.jsonl",
        "a/z.jsonl.gz",
        "a.jsonl",
        "a/b/c.json",
        ".hidden/x.jsonl",
        "a/.x.jsonl",
        "notes.txt",
        "z.ndjson",
    )
    for number, name in enumerate(names):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_lines(path, talk(2, about=f"Be {number}."))
        store.pipe(f"/in/{name}", path.read_bytes())

    here = read(str(tmp_path / "in"))
    there = read("memory://in")

    assert len(here) == 5
    assert [each.body for each in there if isinstance(each, Recording)] == [
        each.body for each in here if isinstance(each, Recording)
    ]
    assert isinstance(there[0], Recording)
    assert there[0].file == "memory:///in/a/b/c.json"
    assert [each.body for each in read(f"file://{tmp_path}/in") if isinstance(each, Recording)] == [
        each.body for each in here if isinstance(each, Recording)
    ]


def test_the_figures_are_those_of_the_file_on_disk(web: Web, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "talks.jsonl.gz", talk(20), talk(3, about="Be kind."), "{")
    address = web.serve("/talks.jsonl.gz", path.read_bytes())
    figures: list[dict[str, Any]] = []
    for place in (str(path), address):
        assert main(["replay", place, "--window", "600", "--json", str(tmp_path / "out.json")]) == 1
        report = json.loads((tmp_path / "out.json").read_text())
        for policy in report["policies"]:
            del policy["cpu_ms_per_call"]
        assert report.pop("files") == [place]
        assert report.pop("errors")[0]["file"] == place
        figures.append(report)

    assert figures[0] == figures[1]


def test_a_password_and_a_signature_are_nowhere_shown(
    web: Web, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    address = web.serve("/a.jsonl", LINE + b"{\n").replace("://", "://me:secret1@") + "?sig=secret2"
    target = tmp_path / "out.json"

    assert main(["replay", address, "--window", "99", "--json", str(target), "--html", str(tmp_path / "o.html")]) == 1
    said = "".join([*capsys.readouterr(), target.read_text(), (tmp_path / "o.html").read_text()])
    said += error_of(capsys, "replay", address.replace("a.jsonl", "gone.jsonl"), "--window", "99")

    assert any("?sig=secret2" in each for each in web.asked)
    assert "/a.jsonl" in said
    assert "secret1" not in said
    assert "secret2" not in said


def test_a_file_that_is_not_there_is_one_line(web: Web, store: Any, capsys: pytest.CaptureFixture[str]) -> None:
    port = web.server_address[1]
    for place in (
        f"http://127.0.0.1:{port}/no.jsonl",
        "memory://nothing",
        "http://127.0.0.1:9/a.jsonl",
        "nobody://a/b",
    ):
        said = error_of(capsys, "replay", place, "--window", "99")
        assert said.startswith(f"chatstack: error: {place}: cannot be read: ")


def test_an_empty_folder_is_one_line(store: Any, capsys: pytest.CaptureFixture[str]) -> None:
    store.pipe("/in/notes.txt", b"x")

    assert "memory://in: nothing to read in this folder" in error_of(capsys, "replay", "memory://in")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in [*(each for each in sys.modules if each.partition(".")[0] == "fsspec"), "fsspec", "fsspec.core"]:
        monkeypatch.setitem(sys.modules, name, None)

    said = error_of(capsys, "replay", "s3://bucket/a.jsonl")

    assert said == "chatstack: error: fsspec is not installed: pip install 'chatstack-core[remote]'"


def test_a_store_whose_package_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "adlfs", None)

    said = error_of(capsys, "replay", "abfs://bucket/a.jsonl")

    assert "abfs://bucket/a.jsonl: " in said
    assert "adlfs" in said


def reasons(*places: str) -> list[str]:
    return [each.error if isinstance(each, BrokenLine) else "read" for each in read(*places)]


def test_a_file_that_is_cut_off_is_not_taken_for_the_whole(web: Web) -> None:
    address = web.serve("/a.jsonl", LINE, told=10 * len(LINE))

    (told,) = reasons(address)
    assert told.startswith("cannot be read: ")


def test_more_than_a_server_told_is_not_read(web: Web, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    address = web.serve("/a.jsonl", LINE)
    with sources_from([address]) as sources:
        web.serve("/a.jsonl", LINE * 3)
        (broken,) = read_recordings(sources)
    assert isinstance(broken, BrokenLine)
    assert broken.error == f"cannot be read: it is longer than {len(LINE):,} bytes, as it was when it was listed"

    monkeypatch.setattr(remote, "_UNTOLD_BYTES", 1_000)
    untold = web.serve("/b.jsonl", LINE * 100, headers={"Content-Length": ""})
    assert reasons(untold) == ["cannot be read: it is longer than 1,000 bytes, as it was when it was listed"]


def bomb() -> bytes:
    """A file of 0.3 MB that unpacks to 300 MB."""
    zipped = gzip.compress(b" " * 10_000_000 + b"\n")
    return zipped * 30


@pytest.mark.slow
def test_a_bomb_is_read_no_further_than_one_on_disk(web: Web, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(bomb())
    here = reasons(str(tmp_path / "a.jsonl.gz"))

    assert here[-1].startswith("reading stopped here: it unpacks to more than 250 times its size")
    assert reasons(web.serve("/a.jsonl.gz", bomb())) == here
    # One that a client unpacks before anybody looks, unless it is told not to.
    assert reasons(web.serve("/b.jsonl", bomb(), headers={"Content-Encoding": "gzip"})) == here


def test_what_is_sent_zipped_is_read(web: Web) -> None:
    address = web.serve("/a.jsonl", gzip.compress(LINE), headers={"Content-Encoding": "gzip"})

    assert reasons(address) == ["read"]


def test_a_file_that_changes_between_two_passes_is_told(store: Any) -> None:
    store.pipe("/in/a.jsonl", LINE)
    with sources_from(["memory://in"]) as (source,):
        source.check_unchanged()
        store.pipe("/in/a.jsonl", LINE * 2)
        with pytest.raises(InputError, match=r"memory:///in/a\.jsonl: has changed since it was first read"):
            source.check_unchanged()


@pytest.mark.server
def test_a_bucket_of_an_s3_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its protocol for real, by a server that stands in for Amazon's."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0)
    pytest.importorskip("s3fs")
    server.start()
    try:
        host, port = server.get_host_and_port()
        settings = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
        for name, value in {**settings, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "word"}.items():
            monkeypatch.setenv(name, value)
        files = fsspec.filesystem("s3")
        files.mkdir("talks")
        for number in range(3):
            path = write_lines(tmp_path / f"{number}.jsonl.gz", talk(4, about=f"Be {number}."))
            files.pipe(f"talks/day/{number}.jsonl.gz", path.read_bytes())

        here, there = read(str(tmp_path)), read("s3://talks/day")

        assert [each.file for each in there] == [f"s3://talks/day/{number}.jsonl.gz" for number in range(3)]
        assert [each.body for each in there if isinstance(each, Recording)] == [
            each.body for each in here if isinstance(each, Recording)
        ]
        with pytest.raises(InputError, match="s3://nowhere/a: cannot be read: FileNotFoundError"):
            read("s3://nowhere/a")
    finally:
        server.stop()
