"""Choices bind by own past: what is sent of a conversation is what would be sent if there were no other."""

from __future__ import annotations

import asyncio
import itertools
import os

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatstack import ChatOptions, ContextMemory, Message, Reasoning, Text, ToolCall, ToolDeclaration
from tests.context.conversing import PURE, RECIPES, SUMMARIZING, Process, Talk, in_turns, size_of, to_the_end
from tests.context.test_sharing import DictStore
from tests.histories import PROPERTY
from tests.lanes import in_lanes

MODEST = settings(PROPERTY, max_examples=int(os.environ.get("CHATSTACK_EXAMPLES", max(6, PROPERTY.max_examples // 16))))
FEW_SHOT = (
    Message.user("Answer as in these examples."),
    Message.assistant("Ready."),
    Message.user("example one " * 8),
    Message.assistant("right " * 6),
    Message.user("example two " * 8),
    Message.assistant("  You said 96 letters.\n"),
)
GREETING = (Message.user("hi"), Message.assistant("  You said 2 letters.\n"))
BEGINNINGS = st.sampled_from([(), FEW_SHOT, GREETING])
SYSTEMS = st.sampled_from([(), (Message.system("You are A."),), (Message.system("You are B."),)])
WORDS = st.sampled_from(
    ["hi", "hello", "look 1 20", "look 2 40", "look 3 60", "look 1 150", "look 4 10"]
    + ["long word " * times for times in (20, 60, 140)]
)
NUMBERS = itertools.count()
TALKS = st.builds(
    lambda system, beginning, says, has_id, is_fresh: Talk(
        (*system, *beginning), says, conversation_id=f"id {next(NUMBERS)}" if has_id else None, is_fresh=is_fresh
    ),
    SYSTEMS,
    BEGINNINGS,
    st.lists(WORDS, min_size=1, max_size=7),
    st.booleans(),
    st.booleans(),
)
SAMPLE = ("clearer", "condensing", "clearer, truncate, guard", "shaper, clearer, summarizer, guard", "window")
"""Recipes that a plain run puts to every test: one of each kind of edit, and what is stacked most."""

every_recipe = pytest.mark.parametrize("recipe", RECIPES)
most_recipes = pytest.mark.parametrize("recipe", in_lanes(RECIPES, SAMPLE))
most_pure_recipes = pytest.mark.parametrize("recipe", in_lanes(PURE, SAMPLE))


@most_recipes
@MODEST
@given(talks=st.lists(TALKS, min_size=2, max_size=4), order=st.lists(st.integers(0, 11), max_size=40))
def test_conversations_in_any_order_are_sent_as_each_alone(recipe: str, talks: list[Talk], order: list[int]) -> None:
    async def check() -> None:
        await in_turns(talks, order, Process(recipe))
        for talk in talks:
            alone = await to_the_end(talk.again(), Process(recipe))
            assert talk.sent == alone.sent

    asyncio.run(check())


def _given_beginning(talk: Talk) -> Talk:
    """With a beginning that no other conversation has been through: its last answer is not the model's."""
    at = len(talk.head) - 1
    head = tuple(
        Message.assistant("Hello.") if n == at and each.role == "assistant" else each
        for n, each in enumerate(talk.head)
    )
    return Talk(head, talk.says, talk.conversation_id, is_fresh=talk.is_fresh)


def test_a_form_of_an_equal_history_stays_when_another_conversation_comes_with_other_objects() -> None:
    talks = [Talk((), ["look 3 60"], conversation_id=who) for who in (None, "another")]

    async def check() -> None:
        process = Process("clearer, truncate, guard", reports=1.7)
        await in_turns(talks, [], process)
        for talk in talks:
            alone = await to_the_end(talk.again(), Process("clearer, truncate, guard", reports=1.7))
            assert talk.sent == alone.sent

    asyncio.run(check())


@pytest.mark.slow
@pytest.mark.parametrize("reports", [0.5, 1.7])
@every_recipe
@MODEST
@given(
    talks=st.lists(TALKS.map(_given_beginning), min_size=2, max_size=4), order=st.lists(st.integers(0, 11), max_size=40)
)
def test_what_is_reported_for_a_conversation_decides_in_no_other(
    recipe: str, reports: float, talks: list[Talk], order: list[int]
) -> None:
    async def check() -> None:
        await in_turns(talks, order, Process(recipe, reports=reports))
        for talk in talks:
            alone = await to_the_end(talk.again(), Process(recipe, reports=reports))
            assert talk.sent == alone.sent

    asyncio.run(check())


@most_recipes
@MODEST
@given(talks=st.lists(TALKS, min_size=1, max_size=3))
def test_what_fits_and_was_never_edited_goes_out_as_it_came(recipe: str, talks: list[Talk]) -> None:
    async def check() -> None:
        process = Process(recipe)
        await in_turns(talks, (), process)
        for talk in talks:
            for given_, sent in zip(talk.given, talk.sent, strict=True):
                if size_of(given_) > 100 or len(given_) > 5:  # the lowest of all limits here
                    break
                assert sent == given_

    asyncio.run(check())


def _stripped(answer: Message) -> Message:
    """As a caller keeps an answer that stores it in its own form: without what no model needs."""
    parts: list[Text | ToolCall] = []
    for part in answer.parts:
        if isinstance(part, Text):
            parts.append(Text(part.text.strip()))
        elif isinstance(part, ToolCall):
            arguments = msgspec.json.encode(msgspec.json.decode(part.arguments)).decode()
            parts.append(ToolCall(f"k{part.id[1:]}", part.name, arguments))
        else:
            assert isinstance(part, Reasoning)
    return Message("assistant", tuple(parts))


KEPT = {"as it is": lambda answer: answer, "stripped, encoded anew, with other ids": _stripped}


@pytest.mark.parametrize("kept", KEPT)
@most_recipes
@MODEST
@given(talk=TALKS)
def test_between_edits_the_prefix_stays(recipe: str, kept: str, talk: Talk) -> None:
    talk.kept = KEPT[kept]

    async def check() -> None:
        process = Process(recipe)
        edits = 0
        before: tuple[Message, ...] = ()
        while talk.goes_on:
            await talk.step(process)
            if process.edits == edits:
                assert talk.sent[-1][: len(before)] == before
            edits, before = process.edits, (*talk.sent[-1], talk.messages[-1])

    asyncio.run(check())


@most_pure_recipes
@MODEST
@given(talk=TALKS, every=st.integers(1, 5))
def test_a_restart_without_a_store_changes_nothing(recipe: str, talk: Talk, every: int) -> None:
    async def check() -> None:
        alone = await to_the_end(talk.again(), Process(recipe, reports=None))
        while talk.goes_on:
            if len(talk.sent) % every == 0:
                process = Process(recipe, reports=None)
            await talk.step(process)
        assert talk.sent == alone.sent

    asyncio.run(check())


@most_recipes
@MODEST
@given(talk=TALKS)
def test_two_processes_that_race_on_one_request_send_the_same(recipe: str, talk: Talk) -> None:
    async def pause() -> None:
        await asyncio.sleep(0)

    async def check() -> None:
        store = DictStore(before=pause)
        memories = [ContextMemory(clock=lambda: 0.0, store=store, scope="all") for _ in range(2)]
        one, other = (Process(recipe, memory=memory) for memory in memories)
        twin = talk.again()
        while talk.goes_on:
            await asyncio.gather(talk.step(one), twin.step(other))
            assert talk.sent[-1] == twin.sent[-1]
            assert talk.messages == twin.messages

    asyncio.run(check())


ALTERNATING = (
    None,
    ChatOptions(max_tokens=60),
    ChatOptions(tools=tuple(ToolDeclaration(f"tool {each}", "x" * 60) for each in range(4))),
    ChatOptions(instructions="Be brief. " * 10),
)


@most_recipes
@MODEST
@given(talk=TALKS, given_options=st.lists(st.sampled_from(ALTERNATING), min_size=1, max_size=4))
def test_options_that_alternate_never_change_the_prefix(
    recipe: str, talk: Talk, given_options: list[ChatOptions | None]
) -> None:
    talk.conversation_id = "one"  # without an id, other instructions are another conversation

    async def check() -> None:
        process = Process(recipe)
        before: tuple[Message, ...] = ()
        edits = 0
        while talk.goes_on:
            options = given_options[len(talk.sent) % len(given_options)]
            await talk.step(process, options=options)
            if process.edits == edits:
                assert talk.sent[-1][: len(before)] == before
            edits, before = process.edits, (*talk.sent[-1], talk.messages[-1])

    asyncio.run(check())


@most_recipes
@MODEST
@given(talk=TALKS)
def test_a_reminder_that_is_not_kept_changes_nothing_but_its_own_request(recipe: str, talk: Talk) -> None:
    async def check() -> None:
        process, edits = Process(recipe), 0
        before: tuple[Message, ...] = ()
        while talk.goes_on:
            await talk.step(process, reminder=f"Reminder {len(talk.sent)}.")
            sent = talk.sent[-1]
            assert sent[-1].text.startswith("Reminder")
            if process.edits == edits:
                assert sent[: len(before)] == before
            edits, before = process.edits, (*sent[:-1], talk.messages[-1])

    asyncio.run(check())


def test_every_recipe_is_put_to_the_test() -> None:
    assert {*PURE, *SUMMARIZING} == {*RECIPES}
