"""One of the processes that share a store: ``python -m tests.sharing.worker``, orders on stdin, answers on stdout.

Each line is JSON. The first order says who it is and where the store is; the others are calls of conversations to make.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import importlib
import json
import logging
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import msgspec

from chatstack import ChatRequest, ChatStack, ContextMemory, Message, Usage
from chatstack.client.protocol import ProviderInfo
from chatstack.client.stream import ChatStream
from chatstack.context.edits.records import Record
from chatstack.context.memory.notes import OWNER
from chatstack.context.memory.sharing import DecisionStore, SharedDecisions
from chatstack.stores import table
from chatstack.testing import ScriptedClient, TelemetryCapture
from tests.sharing.talks import SECRET, ends, fingerprints, identifier, recipe, talk

AT_ONCE = 8
"""How many conversations a process serves at the same time."""
BUSY_SECONDS = 1.0
_QUOTED = re.compile(rf"{SECRET} \d+")


class Call:
    """A call under way: what the model is to answer, and what it was sent."""

    def __init__(self, answer: Message) -> None:
        self.answer = answer
        self.sent: tuple[Message, ...] = ()


_CALL: ContextVar[Call] = ContextVar("call")


class Model(ScriptedClient):
    """Answers as the conversation tells, and reports no usage, from which layers would learn."""

    async def send(self, request: ChatRequest, /) -> ChatStream:
        call = _CALL.get()
        call.sent = request.messages
        self.answers = [call.answer]
        self.requests.clear()
        return await super().send(request)

    def _usage(self, request: ChatRequest, answer: Message) -> Usage:
        return Usage()


class Writer(ScriptedClient):
    """Writes other summaries than any other process, all of one length."""

    def __init__(self, who: int) -> None:
        # With a window of its own, or the tables of windows would be loaded, which takes a second.
        super().__init__(info=ProviderInfo(name="scripted", model="writer", window_tokens=8_000))
        self.who = who
        self.written = 0

    async def send(self, request: ChatRequest, /) -> ChatStream:
        await asyncio.sleep(0)
        self.written += 1
        found = _QUOTED.search("\n".join(each.text for each in request.messages))
        quoted = found.group() if found is not None else ""
        self.answers = [f"Summary {self.written:06d} by {self.who:03d}: {quoted}, it was grey."]
        self.requests.clear()
        return await super().send(request)


class Watched:
    """A store whose waits are measured, and whose answers to puts are kept to be compared."""

    def __init__(self, store: DecisionStore) -> None:
        self.store = store
        self.slowest = 0.0
        self.answers = 0
        self.failures: Counter[str] = Counter()
        self.kept: dict[str, str] = {}

    async def find(self, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        found: tuple[bytes, bytes] | None = await self._timed(self.store.find(owner, links))
        return found

    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes:
        kept: bytes = await self._timed(self.store.put(owner, link, record, replaces=replaces))
        if owner != OWNER:  # which grow
            self.kept[f"{owner}/{link.hex()}"] = _digest(kept)
        return kept

    async def forget(self, links: Sequence[bytes] | None = None) -> None:
        await self.store.forget(links)

    async def aclose(self) -> None:
        await self.store.aclose()

    async def found(self, keys: list[str]) -> dict[str, str]:
        """Return what the store has under these keys."""
        there: dict[str, str] = {}
        for key in keys:
            owner, link = key.rsplit("/", 1)
            found = await self.store.find(owner, [bytes.fromhex(link)])
            if found is not None:
                there[key] = _digest(found[1])
        return there

    async def _timed(self, work: Any) -> Any:
        begun = time.monotonic()
        try:
            answer = await work
        except BaseException as error:
            self.failures[type(error).__name__] += 1
            raise
        else:
            self.answers += 1
            return answer
        finally:
            self.slowest = max(self.slowest, time.monotonic() - begun)


def _digest(record: bytes) -> str:
    return hashlib.blake2b(record, digest_size=8).hexdigest()


class Process:
    """A stack over the store, and the calls that are made through it."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.capture = TelemetryCapture()
        self.writer = Writer(order["who"])
        self.watched: Watched | None = None
        if order["store"] is None:
            self.memory = ContextMemory(clock=lambda: 0.0)
        else:
            module, name = order["store"]["make"].split(":")
            made = getattr(importlib.import_module(module), name)(*order["store"]["given"], **order["store"]["options"])
            self.watched = Watched(made)
            self.memory = ContextMemory(clock=lambda: 0.0, store=self.watched, scope="everybody")
            # Outages end sooner than they would for users.
            self.memory.shared = SharedDecisions(
                self.watched, timeout_seconds=order["timeout"], rest_seconds=order["rest"]
            )
        stack = ChatStack(Model(), memory=self.memory, trace_model_calls=False)
        self.client = recipe(stack, self.writer).build(self.capture.resolve)

    async def call(self, number: int, at: int) -> dict[str, Any]:
        messages, end = talk(number), ends()[at]
        call = Call(messages[end])
        _CALL.set(call)
        given = msgspec.json.decode(msgspec.json.encode(messages[:end]), type=tuple[Message, ...])
        begun, error = time.monotonic(), ""
        try:
            await self.client.get_response(given, conversation_id=identifier(number))
        except Exception as failed:  # noqa: BLE001 - that there is none is what is tested
            error = f"{type(failed).__name__}: {failed}"
        took = time.monotonic() - begun
        return {"talk": number, "at": at, "sent": fingerprints(call.sent), "took": took, "error": error}

    async def calls(self, orders: list[list[int]]) -> dict[str, Any]:
        lanes, written = asyncio.Semaphore(AT_ONCE), self.writer.written

        async def one(number: int, at: int) -> dict[str, Any]:
            async with lanes:
                return await self.call(number, at)

        answers = await asyncio.gather(*(asyncio.create_task(one(*each)) for each in orders))
        edits = Counter(span.name for span in self.capture.spans if span.attributes.get("chatstack.severity") == "INFO")
        warnings = Counter(self.capture.warnings)
        self.capture.clear()
        told = {"calls": answers, "written": self.writer.written - written, "edits": edits, "warnings": warnings}
        if self.watched is not None:
            told.update(kept=self.watched.kept, waited=self.watched.slowest, failures=self.watched.failures)
            self.watched.kept, self.watched.slowest, self.watched.failures = {}, 0.0, Counter()
        return told

    async def tried(self) -> bool:
        """Return True if the store answers a question, and takes a record."""
        shared, watched, asked = self.memory.shared, self.watched, (Message.user("?"),)
        assert shared is not None
        assert watched is not None
        before = watched.answers
        await shared.find("nobody", [b"nothing"], asked)
        await shared.put("nobody", b"nothing", Record(), asked)
        return watched.answers - before == 2


async def obey(order: dict[str, Any], process: Process) -> object:
    if "calls" in order:
        return await process.calls(order["calls"])
    if "forget" in order:
        await asyncio.gather(*(process.memory.forget_stored(talk(number)) for number in order["forget"]))
        return "forgotten"
    if "forgive" in order:
        assert process.watched is not None
        process.watched.kept = {}
        return "forgiven"
    if "look_up" in order:
        assert process.watched is not None
        return await process.watched.found(order["look_up"])
    if "timeout" in order:
        assert process.memory.shared is not None
        process.memory.shared.timeout_seconds = order["timeout"]
        return "set"
    if "tried" in order:
        return await process.tried()
    if "file_bytes" in order:  # the disk is full from there on
        soft = order["file_bytes"]
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard if soft is None else soft, hard))
        return "limited"
    raise ValueError(f"no such order: {[*order]}")


async def main() -> None:
    logging.disable()  # warnings are counted
    # A slow machine is no defect: others that write get more time than a user's call has.
    table.FORM = dataclasses.replace(table.FORM, busy_seconds=BUSY_SECONDS)
    loop = asyncio.get_running_loop()
    process: Process | None = None
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        if process is None:
            process, told = Process(order), "ready"
        else:
            told = await obey(order, process)  # type: ignore[assignment]
        print(json.dumps(told), flush=True)
    if process is not None:
        await process.memory.aclose()


if __name__ == "__main__":
    asyncio.run(main())
