"""A load balancer that knows nothing of conversations: each connection goes to the next address."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle


@contextmanager
def round_robin(ports: Sequence[int]) -> Iterator[str]:
    loop, over, started = asyncio.new_event_loop(), asyncio.Event(), threading.Event()
    turns, told = cycle(ports), list[int]()

    async def copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", next(turns))
        await asyncio.gather(copied(reader, their_writer), copied(their_reader, writer))

    async def run() -> None:
        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        told.append(listening.sockets[0].getsockname()[1])
        started.set()
        await over.wait()
        listening.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.1)  # for the transports to close

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    started.wait(10)
    try:
        yield f"http://127.0.0.1:{told[0]}"
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(20)
        loop.close()
