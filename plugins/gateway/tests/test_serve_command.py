"""``chatstack serve``: its arguments, and the process that it is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from answers import STREAMS
from asks import body, history
from test_fail_open import answer
from upstreams import Seen, Wire, upstream

from chatstack import Message
from chatstack.cli import main
from chatstack_gateway import Settings, Upstream
from chatstack_gateway.serving import config_of

SHORT = [Message.user("hello")]
PIPELINE = """
provider = { use = "openai", base_url = "%s", model = "unused" }
layers = [{ use = "ClearThenDrop", max_tokens = 2000 }]
"""


@contextmanager
def running(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A gateway at a port that the system chose, and the address that it said."""
    process = subprocess.Popen(
        [sys.executable, "-m", "chatstack", "serve", "--port", "0", *arguments],
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        said = ""
        while not (told := re.search("requests to .* at (http://.*:[1-9][0-9]*)\n", said)):
            line = process.stderr.readline()
            assert line, said
            said += line
        url = told[1]
        until = time.monotonic() + 60
        while True:
            try:
                httpx2.get(f"{url}/chatstack/health")
                break
            except httpx2.TransportError:
                assert process.poll() is None, process.stderr.read()
                assert time.monotonic() < until
                time.sleep(0.05)
        yield process, url
    finally:
        process.terminate()
        try:
            process.communicate(timeout=60)
        finally:
            process.stderr.close()


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["serve", *arguments]) == 2
    return capsys.readouterr().err


def test_mistakes_are_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.toml"
    path.write_text('provider = { use = "anthropic", model = "m", cache = "1h" }')
    tools = tmp_path / "t.toml"
    tools.write_text('provider = { use = "openai", model = "m" }\nlayers = ["FunctionInvoker"]')
    for arguments, told in (
        ((), "name a pipeline file, or --observe URL"),
        (("--observe", "nowhere"), "is no http or https address"),
        (("--observe", "http://127.0.0.1:99999"), "host or port of the address is none"),
        (("--observe", "http://a", "--upstream", "http://b"), "leave one out"),
        (("--observe", "http://a", "--workers", "0"), "--workers 0: must be 1 or more"),
        (("--observe", "http://a", "--port", "99999"), "--port 99999: must be 65535 or less"),
        (("--observe", "http://a", "--host", "0.0.0.0"), "CHATSTACK_GATEWAY_TOKEN"),
        (("--observe", "http://a", "--key-env", "NO_SUCH_KEY"), "NO_SUCH_KEY is not set"),
        ((str(tmp_path / "none.toml"),), "none.toml"),
        ((str(path),), "provider.cache: has no meaning here"),
        (
            (str(tools), "--upstream", "http://a"),
            "'FunctionInvoker' cannot work in a gateway: the caller runs the tools",
        ),
    ):
        said = complaint(capsys, *arguments)
        assert told in said
        assert said.count("\n") == 1


def test_a_pipeline_names_its_upstream_and_edits(tmp_path: Path) -> None:
    with upstream(answer) as api:
        path = tmp_path / "pipeline.toml"
        path.write_text(PIPELINE % f"{api.url}/v1")
        with running(str(path), CHATSTACK_ADMIN_TOKEN="adm") as (_, url):
            came = body("chat", history(6))
            assert httpx2.post(f"{url}/v1/chat/completions", content=came).status_code == 200
            assert len(api.requests[-1].body) < len(came)
            switch = f"{url}/chatstack/editing"
            httpx2.put(switch, json={"editing": False}, headers={"authorization": "Bearer adm"})
            httpx2.post(f"{url}/v1/chat/completions", content=came)
            assert api.requests[-1].body == came


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_it_says_where_it_listens(host: str, workers: str) -> None:
    with running("--observe", "http://127.0.0.1:9", "--host", host, "--workers", workers) as (_, url):
        assert url.startswith(f"http://{host}:")
        assert httpx2.get(f"{url}/chatstack/health").status_code == 200


@pytest.mark.parametrize(
    ("told", "workers"), [(signal.SIGTERM, "1"), (signal.SIGHUP, "1"), (signal.SIGTERM, "2")], ids=str
)
def test_a_signal_lets_open_answers_end_and_takes_no_new_ones(told: signal.Signals, workers: str) -> None:
    release = threading.Event()

    async def slow(seen: Seen, wire: Wire) -> None:
        import asyncio

        await wire.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        first, *rest = STREAMS["chat"]
        await wire.chunk(first)
        while not release.is_set():
            await asyncio.sleep(0.01)
        for piece in rest:
            await wire.chunk(piece)
        await wire.raw(b"0\r\n\r\n")

    with upstream(slow) as api, running("--observe", api.url, "--workers", workers) as (process, url):
        sent = body("chat", SHORT, stream=True)
        with httpx2.stream("POST", f"{url}/v1/chat/completions", content=sent, timeout=60) as got:
            pieces = got.iter_raw()
            came = next(pieces)
            process.send_signal(told)
            until = time.monotonic() + 30
            while time.monotonic() < until:
                try:
                    httpx2.get(f"{url}/chatstack/health", timeout=20)
                except httpx2.ConnectError:
                    break
                except httpx2.TransportError:  # taken at the very moment
                    pass
                time.sleep(0.05)
            else:
                pytest.fail("new connections are still taken")
            release.set()
            came += b"".join(pieces)
        assert came == b"".join(STREAMS["chat"])
        assert process.wait(30) in (0, -signal.SIGTERM)
        assert process.stderr is not None
        assert not re.search("Traceback|ERROR", process.stderr.read())


@pytest.mark.parametrize(
    ("told", "workers"),
    [((signal.SIGTERM,), "1"), ((signal.SIGTERM,), "2"), ((signal.SIGINT, signal.SIGINT), "1")],
    ids=str,
)
def test_an_answer_that_is_cut_off_by_the_end_is_no_traceback(told: tuple[signal.Signals, ...], workers: str) -> None:
    async def endless(seen: Seen, wire: Wire) -> None:
        import asyncio

        await wire.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        await wire.chunk(STREAMS["chat"][0])
        await asyncio.sleep(60)

    arguments = ("--workers", workers, "--drain-seconds", "1" if told == (signal.SIGTERM,) else "60")
    with upstream(endless) as api, running("--observe", api.url, *arguments) as (process, url):
        sent = body("chat", SHORT, stream=True)
        with httpx2.stream("POST", f"{url}/v1/chat/completions", content=sent, timeout=60) as got:
            pieces = got.iter_raw()
            next(pieces)
            for each in told:
                process.send_signal(each)
                time.sleep(0.3)
            with pytest.raises(httpx2.TransportError):
                list(pieces)
        process.wait(30)
        assert process.stderr is not None
        said = process.stderr.read()
        assert "Traceback" not in said
        assert "interrupted" in said or "Cancel 1 running task(s)" in said


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_was_traced_last_is_sent_before_it_ends(workers: str) -> None:
    async def collect(seen: Seen, wire: Wire) -> None:
        await wire.whole(b"", headers="content-type: application/x-protobuf\r\n")

    with upstream(answer) as api, upstream(collect) as collector:
        told = {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/v1/traces",
            "OTEL_BSP_SCHEDULE_DELAY": "3600000",
        }
        with running("--observe", api.url, "--workers", workers, **told) as (_, url):
            assert httpx2.post(f"{url}/v1/chat/completions", content=body("chat", SHORT), timeout=60).status_code == 200
            assert collector.requests == []
        (traced,) = collector.requests
        assert b"invoke_agent" in traced.body


def test_workers_end_with_their_supervisor() -> None:
    """Nobody could stop them any more, and the next gateway would not get the port."""
    with running("--observe", "http://127.0.0.1:9", "--workers", "2") as (process, url):
        process.kill()
        until = time.monotonic() + 30
        while time.monotonic() < until:
            try:
                httpx2.get(f"{url}/chatstack/health", timeout=20)
            except httpx2.ConnectError:
                break
            except httpx2.TransportError:
                pass
            time.sleep(0.05)
        else:
            pytest.fail("the port is still held")


def test_a_worker_that_is_held_up_for_a_while_is_not_killed() -> None:
    """The supervisor kills one that does not answer, with all its open answers; unasked, after five seconds."""
    settings = Settings(Upstream("http://127.0.0.1:1"), workers=2)
    assert config_of(settings, "a:b").timeout_worker_healthcheck >= 60
