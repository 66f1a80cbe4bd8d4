"""Load on the gateway beside a bare proxy: open streams, time added to the first byte and to each chunk, memory.

    python benchmark_load.py --streams 1000 --requests 20000

All run in processes of their own, over real HTTP on loopback, one after the other: the API alone, a plain ASGI proxy
of aiohttp on uvicorn, the gateway watching (``--observe``), the gateway with a pipeline whose limits nothing reaches,
and, with ``--litellm COMMAND``, another proxy. Each stream has content of its own, which is checked; each chunk holds
the time when it was sent, so its way is measured by one clock. What is told are medians and 95th percentiles in
milliseconds, and what is added to the API alone, as a ratio to what the bare proxy adds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PIPELINE = """
provider = { use = "openai", base_url = "%s/v1", model = "m" }
layers = [
  { use = "ToolResultShaper" },
  { use = "ClearThenDrop", max_tokens = 1_000_000 },
  { use = "ContextWindowGuard", max_context_tokens = 1_000_000, prune_on_overflow = true },
]
"""


async def api(port: int, chunks: int, pause: float) -> None:
    """Stream chunks that hold the name of the request and the time."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                # Fields beside the messages are kept back by some proxies.
                name, is_quick = body["messages"][0]["content"].split(":")[0], not body.get("stream")
                if is_quick:
                    answer = {"id": name, "model": "m", "choices": [_choice("message", name)], "usage": _usage(9)}
                    data = json.dumps(answer).encode()
                    told = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                    writer.write(told % len(data) + data)
                    if b"connection: close" in head:
                        break
                    continue
                writer.write(HEAD)
                for number in range(chunks):
                    # Some proxies write events anew: the time is in the text, which they keep.
                    delta = {"content": f"{name}:{number}@{time.monotonic():.6f} "}
                    event = {"id": name, "model": "m", "choices": [{"index": 0, "delta": delta}]}
                    _chunk(writer, f"data: {json.dumps(event)}\n\n".encode())
                    await writer.drain()
                    await asyncio.sleep(pause)
                end = {"id": name, "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
                _chunk(writer, f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n".encode())
                writer.write(b"0\r\n\r\n")
                if b"connection: close" in head:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


def _choice(field: str, text: str) -> dict[str, object]:
    return {"index": 0, field: {"role": "assistant", "content": text}, "finish_reason": "stop"}


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def bare(port: int, target: str) -> None:
    """Run a plain ASGI proxy of aiohttp."""
    import aiohttp
    import uvicorn

    session: aiohttp.ClientSession | None = None

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal session
        if scope["type"] != "http":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        if session is None:
            session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
        pieces = []
        while True:
            message = await receive()
            pieces.append(message.get("body", b""))
            if not message.get("more_body"):
                break
        async with session.post(target + scope["path"], data=b"".join(pieces)) as answer:
            headers = [each for each in answer.raw_headers if each[0].lower() != b"transfer-encoding"]
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            while piece := await answer.content.readany():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    uvicorn.run(app, host="127.0.0.1", port=port, access_log=False, log_config=None, http="httptools", backlog=4096)


class Stream:
    """One open stream: when its first byte came, how long its chunks took, and what they said."""

    def __init__(self) -> None:
        self.first = 0.0
        self.delays: list[float] = []
        self.text = ""
        self.head = b""


async def opened(port: int, body: dict[str, object]) -> AsyncIterator[bytes]:
    """Send a request and yield the lines of its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(data)}\r\n"
    writer.write(
        f"{head}content-type: application/json\r\nauthorization: Bearer sk-1\r\nconnection: close\r\n\r\n".encode()
        + data
    )
    try:
        while line := await reader.readline():
            yield line
    finally:
        writer.close()


def asked(name: str, turns: int, **fields: object) -> dict[str, object]:
    messages: list[dict[str, str]] = [{"role": "user", "content": f"{name}: hello"}]
    for turn in range(turns):
        messages += [{"role": "assistant", "content": f"{turn} " * 100}, {"role": "user", "content": "go on"}]
    return {"model": "m", "messages": messages, **fields}


async def one(port: int, name: str, chunks: int, go: asyncio.Event) -> Stream:
    found = Stream()
    await go.wait()
    started = time.monotonic()
    async for line in opened(port, asked(name, 10, stream=True)):
        found.head = found.head or line
        if line.startswith(b"data: {"):
            now = time.monotonic()
            event = json.loads(line[6:])
            text = (event["choices"][0]["delta"].get("content") or "") if event["choices"] else ""
            if "@" in text:
                found.first = found.first or now - started
                found.delays.append(now - float(text.partition("@")[2]))
            found.text += text.partition("@")[0] + " " * ("@" in text)
    wanted = "".join(f"{name}:{number} " for number in range(chunks))
    assert found.text == wanted, f"{name} has got {found.head!r} {found.text[:80]!r}"
    return found


async def streams(port: int, count: int, chunks: int, ramp_seconds: float) -> dict[str, float]:
    """Open all streams within ``ramp_seconds``, and read each to its end."""
    go = asyncio.Event()

    async def begun(number: int) -> Stream:
        await asyncio.sleep(ramp_seconds * number / count)
        return await one(port, f"s{number}", chunks, go)

    go.set()
    found = await asyncio.gather(*(begun(number) for number in range(count)))
    firsts = [each.first * 1000 for each in found]
    delays = [delay * 1000 for each in found for delay in each.delays]
    return {
        "first": statistics.median(firsts),
        "first_95": statistics.quantiles(firsts, n=20)[-1],
        "chunk": statistics.median(delays),
        "chunk_95": statistics.quantiles(delays, n=20)[-1],
    }


async def quick(port: int, count: int, at_once: int) -> float:
    """Send requests that are answered at once; return the seconds that all took."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            async for _ in opened(port, asked(f"q{number}", 3)):
                pass

    started = time.monotonic()
    await asyncio.gather(*(worker() for _ in range(at_once)))
    return time.monotonic() - started


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def process(command: list[str], port: int, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 300
        while True:
            try:
                for _ in range(3):  # some listen for a moment, to see whether the port is free
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    time.sleep(1)
                break
            except OSError:
                assert running.poll() is None, f"{command[:4]} has ended"
                assert time.monotonic() < until, f"{command[:4]} does not listen"
                time.sleep(0.1)
        yield running
    finally:
        running.terminate()
        try:
            running.wait(60)
        except subprocess.TimeoutExpired:
            running.kill()


def memory(pid: int) -> float:
    """Resident memory in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def commands(target: str, folder: Path, litellm: str) -> dict[str, tuple[list[str], int]]:
    pipeline = folder / "pipeline.toml"
    pipeline.write_text(PIPELINE % target)
    found: dict[str, tuple[list[str], int]] = {}
    serve = [sys.executable, "-m", "chatstack", "serve"]
    for name, arguments in {
        "bare proxy": [sys.executable, __file__, "--bare", target],
        "observe": [*serve, "--observe", target],
        "pipeline": [*serve, str(pipeline)],
    }.items():
        port = free_port()
        found[name] = ([*arguments, "--port", str(port)], port)
    if litellm:
        port = free_port()
        config = folder / "litellm.yaml"
        config.write_text(
            "model_list:\n  - model_name: m\n    litellm_params:\n"
            f"      model: openai/m\n      api_base: {target}/v1\n      api_key: sk-1\n"
            "general_settings:\n  dangerously_permit_weak_or_unset_master_key: true\n"
        )
        found["litellm"] = ([*shlex.split(litellm), "--config", str(config), "--port", str(port)], port)
    return found


def measured(name: str, port: int, pid: int, options: argparse.Namespace) -> dict[str, float]:
    """Measure one of them: the streams, then memory over many requests."""
    asyncio.run(quick(port, 200, 20))  # warm
    before = memory(pid)
    peak = [before]

    async def run() -> dict[str, float]:
        async def watch() -> None:
            while True:
                peak[0] = max(peak[0], memory(pid))
                await asyncio.sleep(0.2)

        watching = asyncio.create_task(watch())
        try:
            return await streams(port, options.streams, options.chunks, options.ramp)
        finally:
            watching.cancel()

    found = asyncio.run(run())
    found["kib_per_stream"] = (peak[0] - before) * 1024 / options.streams
    sizes = []
    seconds = 0.0
    for _ in range(4):
        seconds += asyncio.run(quick(port, options.requests // 4, 50))
        sizes.append(memory(pid))
    found["requests_per_second"] = options.requests / seconds
    found["mib"] = sizes[-1]
    print(
        f"{name:12}",
        {key: round(value, 2) for key, value in found.items()},
        [round(each) for each in sizes],
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--chunks", type=int, default=20)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between chunks of a stream")
    parser.add_argument("--ramp", type=float, default=10.0, help="seconds in which all streams are opened")
    parser.add_argument("--requests", type=int, default=4_000)
    parser.add_argument("--litellm", default="", help="the command of LiteLLM's proxy")
    parser.add_argument("--only", default="")
    parser.add_argument("--api", type=int, default=0)
    parser.add_argument("--bare", default="")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    if options.api:
        asyncio.run(api(options.api, options.chunks, options.pause))
        return
    if options.bare:
        bare(options.port, options.bare)
        return
    port = free_port()
    shared = ["--chunks", str(options.chunks), "--pause", str(options.pause)]
    with (
        tempfile.TemporaryDirectory() as folder,
        process([sys.executable, __file__, "--api", str(port), *shared], port) as it,
    ):
        alone = measured("the API", port, it.pid, options)
        ratios: dict[str, dict[str, float]] = {}
        for name, (command, there) in commands(f"http://127.0.0.1:{port}", Path(folder), options.litellm).items():
            if options.only and name not in options.only.split(","):
                continue
            with process(command, there) as running:
                found = measured(name, there, running.pid, options)
            ratios[name] = {key: found[key] - alone[key] for key in ("first", "first_95", "chunk", "chunk_95")}
    for name, added in ratios.items():
        base = ratios.get("bare proxy", added)
        told = {key: f"{value:.2f} ms ({value / base[key]:.2f})" for key, value in added.items()}
        print(f"added by {name:12}", told)


if __name__ == "__main__":
    main()
