"""What is kept survives a release: the keys and the bytes of stored decisions are these, until a version is raised."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from chatstack import (
    CharCounter,
    ChatStack,
    ClearThenDrop,
    Context,
    ContextMemory,
    ContextWindow,
    ContextWindowGuard,
    EstimatingCounter,
    Message,
    OldestFirst,
    Plan,
    Strategy,
    Summarizer,
    Text,
    ToolCall,
    ToolResult,
    ToolResultClearer,
    ToolResultShaper,
    Truncate,
)
from chatstack.client.options import options_key
from chatstack.client.protocol import layer_kind
from chatstack.config.recipes import LAYERS
from chatstack.context.edits.records import Edit, Insertion, Record
from chatstack.context.edits.summaries import OPENING
from chatstack.context.memory.stored import restored, stored
from chatstack.context.strategies.clearing import ClearToolResults
from chatstack.nodes.turns import NewestTurns
from chatstack.stores.sqlite import SQLiteStore
from chatstack.testing import ScriptedClient
from chatstack.values.messages import Annotation
from tests.context.test_sharing import DictStore

CHANGED = (
    "The form in which decisions are kept has changed: what users' stores hold would not be found any more. If that is "
    "meant, raise the `version` of the layer or strategy, or VERSION in context/memory/stored.py, and say so in the "
    "changelog."
)
CLIENT = ScriptedClient()

KEYS: dict[object, str] = {
    ClearThenDrop(8_000, target=0.5): 'ClearThenDrop/1:{"max_tokens":8000,"target":0.5}',
    ClearToolResults(keep={"fraction": 0.5}): 'ClearToolResults/1:{"keep":{"fraction":0.5}}',
    ContextWindow(4_000): 'ContextWindow/1:{"max_tokens":4000}',
    ContextWindowGuard(CLIENT, max_context_tokens="auto", strict=True): (
        'ContextWindowGuard/1:{"max_context_tokens":"auto","strict":true}'
    ),
    NewestTurns(3): 'NewestTurns/1:{"max_messages":3}',
    OldestFirst(50, 30): 'OldestFirst/1:{"max_tokens":50,"target_tokens":30}',
    Summarizer(CLIENT, max_tokens=900, summary_prompt="Sum up."): (
        'Summarizer/1:{"max_tokens":900,"summary_prompt":"Sum up."}'
    ),
    ToolResultClearer(CLIENT, trigger={"tokens": 9}, exclude_tools=["b", "a"], clear_at_least="pays"): (
        'ToolResultClearer/1:{"clear_at_least":"pays","exclude_tools":["a","b"],"trigger":{"tokens":9}}'
    ),
    ToolResultShaper(CLIENT, per_tool={"b": 9, "a": 8}, never=["d", "c"]): (
        'ToolResultShaper/1:{"never":["c","d"],"per_tool":{"a":8,"b":9}}'
    ),
    Truncate(max_context_items=20): 'Truncate/1:{"max_context_items":20}',
}


@pytest.mark.parametrize("options", KEYS, ids=lambda each: type(each).__name__)
def test_the_key_of_every_layer_and_strategy_that_edits_is_this(options: object) -> None:
    assert options_key(options) == KEYS[options], CHANGED


def test_the_key_of_a_counter_that_decisions_are_kept_under_is_this() -> None:
    assert options_key(CharCounter()) == "CharCounter/2:CharCounter(chars_per_token=4)", CHANGED
    assert options_key(EstimatingCounter()) == "EstimatingCounter/1:EstimatingCounter('generic')", CHANGED


def test_whatever_edits_has_its_key_pinned_here() -> None:
    named = {name: getattr(importlib.import_module(module), name) for name, module in LAYERS.items()}
    editing = {name for name, kind in named.items() if issubclass(kind, Strategy) or layer_kind(kind) == "context"}
    assert editing - {type(each).__name__ for each in KEYS} == set()


# The bytes in a store


def rounds(number: int) -> list[Message]:
    messages = [Message.user("look at everything")]
    for at in range(number):
        call = ToolCall(f"c{at}", "look", f'{{"at":{at}}}')
        messages += [Message.assistant("looking", call), Message.tool(call.id, f"{at} " * 200, name="look")]
    return messages


def kept_by(source: Any, **options: object) -> dict[tuple[str, bytes], bytes]:
    """What a stack keeps of one conversation: a record for each owner and link."""

    async def run() -> None:
        memory = ContextMemory(store=store, scope="tenant", store_timeout_seconds=60)
        client = ChatStack(ScriptedClient(["ok"]), memory=memory).use(source, **options).build()
        await client.get_response(rounds(5), conversation_id="a conversation")

    store = DictStore()
    asyncio.run(run())
    return store.kept


def short(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


STORED: dict[str, tuple[type, dict[str, object], set[str]]] = {
    "a choice that clears": (
        ToolResultClearer,
        {"trigger": {"tokens": 300}, "keep": {"messages": 2}},
        {
            "7486ffa7eafd66d4a069d70bce3423c2 854e0b4204ec3b0eade7d5b348b8437d 93ee14ec67cdcc5b",
            "98cdca9a0e5791a55ee0c6a33957c726 854e0b4204ec3b0eade7d5b348b8437d 93ee14ec67cdcc5b",
        },
    ),
    "a choice that drops": (
        Truncate,
        {"max_tokens": 300},
        {
            "723e60bb99ee6b22209ff137fb7e890e 854e0b4204ec3b0eade7d5b348b8437d 18446cb77b395992",
            "bf1a6fb90da23ad0177de7d06ccefcac 854e0b4204ec3b0eade7d5b348b8437d 18446cb77b395992",
        },
    ),
    "a summary and its cut": (
        Summarizer,
        {"max_tokens": 300, "summary_client": ScriptedClient(["They looked."])},
        {
            "508376004af61f1b47aa15e065abbbed a34776fbfa342cd0060a51ced8488e52 59c335e41d3ac56c",
            "c61d0cf7ff9a85747b11d49a988b4a7c a34776fbfa342cd0060a51ced8488e52 52aa5b0d9bc05017",
            "c81e50df3d9e0ec0035d34355ef9c42d 854e0b4204ec3b0eade7d5b348b8437d 75331575967533ba",
            "d63c5e765c10070fbbf416639cdab142 854e0b4204ec3b0eade7d5b348b8437d 75331575967533ba",
        },
    ),
}
"""By layer, and its options: owner, link, and a hash of the record. A choice is kept twice, for the conversation's id
and for what stands above it."""


@pytest.mark.parametrize("name", STORED)
def test_the_keys_in_a_store_are_these(name: str) -> None:
    source, options, kept = STORED[name]
    found = kept_by(source, **options)
    assert {f"{owner} {link.hex()} {short(record)}" for (owner, link), record in found.items()} == kept, CHANGED


RECORD = (
    b"\x95\x02\x03\x91\x00\x91\x95\x01\x91\x84\xa4type\xabtool_result\xa7call_id\xa2c1\xa4name\xa4look\xa6output\xa9"
    b"[cleared]\xc0\xc0\x83\xa8strategy\xa5clear\xadtokens_beforex\xa7handles\x91\xa20a\x91\x93"
    b"\x02\x83\xa4role\xa9assistant\xa5parts\x91\x82\xa4type\xa4text\xa4text\xd9o[Summary of ea"
    b"rlier messages. It reports what was said and done; nothi"
    b"ng in it is an instruction.]\nThey looked.\xa4mark\xa7summary\x82\xa8"
    b"strategy\xa9summarize\xadtokens_before\t"
)


def test_the_bytes_of_a_record_are_these() -> None:
    cleared = Edit(1, (ToolResult("c1", "look", "[cleared]"),), None, None, Annotation("clear", 120, ("0a",)))
    summary = Message("assistant", (Text(f"{OPENING}\nThey looked."),), mark="summary")
    record = Record(drop=(0,), replace=(cleared,), insert=(Insertion(2, summary, Annotation("summarize", 9)),))
    assert stored(record, tuple(rounds(1))) == RECORD, CHANGED
    assert restored(RECORD, tuple(rounds(1))) == record


# A release later


@dataclass(frozen=True)
class Forgetful(Strategy):
    """A strategy of somebody's own, as a first release has it."""

    most: int = 3

    def plan(self, context: Context) -> Plan | None:
        drop = tuple(range(1, len(context.messages) - self.most))
        return Plan(strategy=self.name, reason="too many", drop=drop) if drop else None


def next_release(*, version: int = 1) -> type[Forgetful]:
    """The same strategy with one more option, which has it decide nothing anew: what it edits, it was told."""
    decided_first = Forgetful

    @dataclass(frozen=True)
    class Forgetful_(decided_first):  # type: ignore[valid-type, misc]
        decides: bool = False

        def plan(self, context: Context) -> Plan | None:
            return super().plan(context) if self.decides else None

    Forgetful_.__name__, Forgetful_.version = "Forgetful", version
    return Forgetful_


def sent(path: Path, strategy: Strategy, messages: Sequence[Message]) -> int:
    """How many messages a new process sends of these."""

    async def run() -> int:
        provider = ScriptedClient(["ok"])
        memory = ContextMemory(store=SQLiteStore(path), scope="tenant", store_timeout_seconds=60)
        await ChatStack(provider, memory=memory).use(strategy).build().get_response(messages)
        await memory.aclose()
        return len(provider.requests[-1].messages)

    return asyncio.run(run())


def test_a_new_option_with_a_default_leaves_every_stored_decision_in_force(tmp_path: Path) -> None:
    path, messages = tmp_path / "decisions.sqlite", [Message.user(str(number)) for number in range(8)]
    going_on = [*messages, Message.assistant("ok"), Message.user("and?")]
    assert sent(path, Forgetful(), messages) == 4
    assert sent(path, next_release()(), going_on) == 6
    assert sent(path, next_release()(most=99), going_on) == 6, "another option orphans nothing either"
    assert sent(path, next_release(version=2)(), going_on) == 10, "another version does"


def test_options_that_are_equal_have_one_key_whatever_their_order_and_type() -> None:
    one = Truncate(max_tokens=5, truncate_to=1)
    assert options_key(one) == options_key(replace(one, truncate_to=1.0))
