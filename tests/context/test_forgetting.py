"""Forgetting a history takes along all that was kept about it, in every process and in the store."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given

from chatstack import ContextMemory, InputError, Message, Spending, Truncate, WiringError
from chatstack.context.memory.notes import OWNER
from tests.context.conversing import RECIPES, SUMMARIZING, Process, Talk, to_the_end
from tests.context.test_own_past_properties import MODEST, TALKS, every_recipe
from tests.context.test_sharing import DictStore

LONG = ("look 3 60", "hi", "long word " * 60, "look 4 10", "look 2 40", "long word " * 20, "hello", "look 1 20")
DROPPING = ("clearer, truncate, guard", "clearer, summarizer, guard", "shaper, clearer, summarizer, guard", "window")


def over(store: DictStore) -> ContextMemory:
    """What another process has."""
    return ContextMemory(clock=lambda: 0.0, store=store, scope="all")


async def forgotten(store: DictStore, messages: list[Message]) -> None:
    """By a process that has seen nothing of it."""
    await over(store).forget_stored(messages)


@pytest.mark.sampled(3)
@every_recipe
@MODEST
@given(talk=TALKS)
def test_nothing_is_left_in_the_store_of_a_history_that_another_process_forgets(recipe: str, talk: Talk) -> None:
    async def check() -> None:
        store = DictStore()
        await to_the_end(talk, Process(recipe, memory=over(store), reports=None))
        await forgotten(store, talk.messages)
        assert store.kept == {}

    asyncio.run(check())


@pytest.mark.parametrize("recipe", ["guard", "condensing", "truncate", "summarizer", *DROPPING])
def test_it_is_reached_though_reminders_were_sent_that_its_caller_has_not_kept(recipe: str) -> None:
    async def check() -> None:
        store, talk = DictStore(), Talk((), LONG, conversation_id="one")
        process = Process(recipe, memory=over(store))
        while talk.goes_on:
            await talk.step(process, reminder=f"Reminder {len(talk.sent)}.")
        assert process.edits
        assert store.kept
        await forgotten(store, talk.messages)
        assert store.kept == {}

    asyncio.run(check())


@pytest.mark.parametrize("recipe", DROPPING)
def test_what_layers_behind_one_that_drops_have_kept_is_forgotten_here_too(recipe: str) -> None:
    async def check() -> None:
        memory, talk = ContextMemory(clock=lambda: 0.0), Talk((), LONG)
        process = Process(recipe, memory=memory)
        await to_the_end(talk, process)
        sent, written_before, edits = talk.sent[-1], len(process.writer.requests), process.edits
        memory.forget(messages=talk.messages)
        again, _ = await process.ask(talk.given[-1], None)
        assert process.edits > edits
        assert (len(process.writer.requests) > written_before) == (recipe in SUMMARIZING)
        assert recipe in SUMMARIZING or again == sent

    asyncio.run(check())


def test_notes_are_used_with_the_records_that_they_lead_to_as_stores_let_go_of_what_is_not_used() -> None:
    async def check() -> None:
        store, talk, recipe = DictStore(), Talk((), LONG), "clearer, truncate, guard"
        process = Process(recipe, memory=over(store))
        while len(talk.sent) < 12:
            await talk.step(process)
        notes = {link for owner, link in store.kept if owner == OWNER}
        store.calls.clear()
        await Process(recipe, memory=over(store)).ask([*talk.messages, Message.user("and?")], None)
        used = {about[0] for what, owner, about in store.calls if (what, owner) == ("find", OWNER)}
        assert notes & used

    asyncio.run(check())


def test_a_note_is_used_with_the_summary_that_it_leads_to(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = "truncate, summarizer"
    monkeypatch.setitem(
        RECIPES, recipe, lambda stack, writer: RECIPES["summarizer"](stack.use(Truncate, max_tokens=320), writer)
    )

    async def check() -> None:
        store, talk = DictStore(), Talk((), LONG)
        first, again = Process(recipe, memory=over(store)), Process(recipe, memory=over(store))
        while len(first.writer.requests) < 2:  # the second is about what truncation has left
            await talk.step(first)
        notes = {link for owner, link in store.kept if owner == OWNER}
        store.calls.clear()
        await again.ask(talk.given[-1], None)
        used = {about[0] for what, owner, about in store.calls if (what, owner) == ("find", OWNER)}
        assert not again.writer.requests  # it has found the summary in the store
        assert notes & used

    asyncio.run(check())


@pytest.mark.parametrize(
    ("recipe", "during"),
    [
        *itertools.product(["guard", "summarizer", *DROPPING], ["answer", "put"]),
        *itertools.product(SUMMARIZING, ["summary"]),
    ],
)
def test_a_call_puts_nothing_more_of_a_history_that_is_forgotten_meanwhile(recipe: str, during: str) -> None:
    async def check() -> None:
        talk, store = await to_the_end(Talk((), LONG), Process(recipe)), DictStore()
        memory, forgotten_at = over(store), list[int]()
        process = Process(recipe, memory=memory)
        asked = {"put": process.model.requests, "summary": process.writer.requests}.get(during)

        async def forget() -> None:
            if not forgotten_at:
                forgotten_at.append(len(store.calls))
                answers = [each for each in process.model.answers if isinstance(each, Message)]
                await memory.forget_stored([*talk.given[-1], *answers])

        async def before() -> None:
            if asked and store.calls[-1][0] == "put":
                await forget()

        store.before = before
        async with process.client.get_streaming_response(talk.given[-1], conversation_id="one") as stream:
            async for _ in stream:
                if during == "answer":
                    await forget()
        assert forgotten_at
        assert {owner for owner, _ in store.kept} <= {OWNER}

    asyncio.run(check())


def test_a_branch_decides_anew_about_a_beginning_that_was_forgotten() -> None:
    async def check() -> None:
        store, trunk = DictStore(), Talk((), LONG[:4])
        process = Process("clearer, summarizer, guard", memory=over(store))
        await to_the_end(trunk, process)
        branches = [Talk(tuple(trunk.messages), (first, *LONG)) for first in ("hi", "hello")]
        for each in branches:
            await to_the_end(each, process)
        kept = len(store.kept)
        await forgotten(store, branches[0].messages)
        assert 0 < len(store.kept) < kept  # what is about the other branch alone
        other = Process("clearer, summarizer, guard", memory=over(store))
        await other.ask(branches[1].given[0], None)
        assert other.edits
        assert other.writer.requests
        for each in branches:
            await forgotten(store, each.messages)
        assert store.kept == {}

    asyncio.run(check())


@pytest.mark.parametrize("given", [5, b"c", ["c"], True])
def test_what_is_no_id_or_no_messages_is_named_and_nothing_is_forgotten(given: object) -> None:
    memory, spending = ContextMemory(), Spending()
    with pytest.raises(WiringError, match=r"ContextMemory.forget: conversation_id=.* must be text or None"):
        memory.forget(conversation_id=given)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"messages.*: expected "):
        memory.forget(messages=given)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"messages.*: expected "):
        asyncio.run(memory.forget_stored(given))  # type: ignore[arg-type]
    with pytest.raises(WiringError, match=r"Spending.forget: conversation_id=.* must be text"):
        spending.forget(given)  # type: ignore[arg-type]
    assert memory.forgets == 0
