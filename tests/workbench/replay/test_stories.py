"""The story of a conversation: what of each recorded message a policy sent, call by call."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack import ChatClient, ChatRequest, ChatStack, ChatStream, Message, Text, ToolCall, ToolResult
from chatstack.context.edits.repairing import repair_plan
from chatstack.layers.clearer import ToolResultClearer
from chatstack.layers.guard import ContextWindowGuard
from chatstack.testing import ScriptedClient
from chatstack.workbench.replay.measures.measuring import WireCounter
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.policies import Policy, policies_for
from chatstack.workbench.replay.reading.recordings import Recording
from chatstack.workbench.replay.stories import Added, CallStory, Cut, PolicyStory, Story, told_message
from chatstack.workbench.replay.tracing import Tracing
from tests.histories import PROPERTY, histories
from tests.workbench.replay.conversations import (
    CHARACTERS,
    assistant,
    conversation,
    outcome_of,
    recording,
    result,
    setup_of,
    talk,
    user,
)
from tests.workbench.replay.errands import errand
from tests.workbench.replay.reports import in_whole, letters_of

SUMMARY = re.compile(r"\[Summary of earlier messages\. .*\]\nthe old way")


def rounds(count: int, size: int = 88) -> Recording:
    """A task, rounds of a call (of 20) and a result (of 4 more than its size), and a last answer."""
    messages = [user("task")]
    for number in range(count):
        messages += [assistant(None, f"c{number}"), result(f"c{number}", f"{number} ".ljust(size, "r"))]
    return recording(conversation(*messages, assistant("done")))


def story_of(policy: Policy, *items: Recording, window: int = 1_000) -> Story:
    """Of the last of these conversations."""
    stories = outcome_of(setup_of(policy, window=window, stories=len(items)), *items).stories
    return max(stories, key=lambda story: story.number)


def calls_of(policy: Policy, *items: Recording, window: int = 1_000) -> list[CallStory]:
    (told,) = story_of(policy, *items, window=window).policies
    return told.calls


def states_of(calls: Sequence[CallStory]) -> list[str]:
    """The states of all messages in each call."""
    return [call["states"] for call in in_whole(map(msgspec.to_builtins, calls))]


def pruning_at(ceiling: int, stack: ChatStack) -> ChatStack:
    return stack.use(ContextWindowGuard, max_context_tokens=ceiling, prune_on_overflow=True, counter=CHARACTERS)


def clearing_at(trigger: int, stack: ChatStack) -> ChatStack:
    return stack.use(ToolResultClearer, trigger={"tokens": trigger}, keep={"messages": 1}, counter=CHARACTERS)


def pruning(ceiling: int, model: ChatClient) -> ChatStack:
    return pruning_at(ceiling, ChatStack(model))


def clearing(ceiling: int, model: ChatClient) -> ChatStack:
    return clearing_at(ceiling, ChatStack(model))


def test_what_the_guard_leaves_out_is_dropped() -> None:
    """Of rounds of 112 tokens and a task of 8, at 400: three fit, and two are left."""
    calls = calls_of(Policy("guard", pruning), rounds(4), window=400)

    assert states_of(calls) == ["1k", "3k", "5k", "7k", "1k4d4k"]
    assert [(call.tokens, call.broken, bool(call.why)) for call in calls[3:]] == [
        (344, False, False),
        (232, True, True),
    ]
    assert calls[4].why == ["truncate: 456 tokens, more than 400: 456 tokens became 232"]
    assert not any(call.changed or call.added or call.over or call.refused for call in calls)


def test_what_is_cleared_is_told_with_its_new_text_and_once() -> None:
    calls = calls_of(Policy("clearer", clearing), rounds(5), window=400)

    assert states_of(calls) == ["1k", "3k", "5k", "7k", "2k1c1k1c1k1c2k", "2k1c1k1c1k1c4k"]
    assert [call.changed for call in calls[4:]] == [dict.fromkeys(("2", "4", "6"), Cut("[cleared]", 9)), {}]
    assert not any(call.changed for call in calls[:4])
    assert [call.broken for call in calls] == [False] * 4 + [True, False]
    assert not any(call.added for call in calls)


def test_a_conversation_that_begins_like_the_one_before_is_told_the_same() -> None:
    """What was decided for another one is none of its business."""
    policy, items = Policy("clearer", clearing), (rounds(6), rounds(6), rounds(8))

    assert calls_of(policy, *items[:2], window=400) == calls_of(policy, items[0], window=400)
    assert calls_of(policy, *items, window=400) == calls_of(policy, items[2], window=400)


def test_what_a_summary_stands_for_is_folded_also_after_the_second_one(tmp_path: Path) -> None:
    """Both say the same here, and stand for more."""
    path = tmp_path / "folding.json"
    path.write_text(json.dumps({"layers": [{"use": "ContextWindow", "max_tokens": 3_000}]}))
    policy = policies_for([path], ["nothing"])[-1]

    calls = calls_of(policy, rounds(30, 1_500), window=100_000)

    whole = states_of(calls)
    first, second, *_ = (at for at, call in enumerate(calls) if call.why)
    for at, call in enumerate(calls):
        assert set(letters_of(whole[at])) == ({"k"} if at < first else {"k", "f"})
        assert len(call.added) == (at >= first)
        assert all(SUMMARY.match(each.text) for each in call.added)
    before, after = letters_of(whole[second - 1]), letters_of(whole[second])
    assert after.count("f") > before.count("f") == letters_of(whole[first]).count("f") > 2
    assert calls[second].added[0].before == after.rindex("f") + 1 > calls[first].added[0].before
    assert calls[second].why[0].startswith("summarize: ")


def test_ours_clears_and_drops_and_leaves_the_names() -> None:
    (policy,) = policies_for([], ["recommended"])

    calls = calls_of(policy, rounds(100, 60), window=1_500)

    edited = next(call for call in calls if call.why)
    whole = list(map(letters_of, states_of(calls)))
    states = whole[calls.index(edited)]
    assert set(states) == {"k", "c", "d"}
    assert (states[0], states[-1]) == ("k", "k")
    assert [int(at) for at in edited.changed] == [at for at, state in enumerate(states) if state == "c"]
    following = calls[calls.index(edited) + 1]
    assert (whole[calls.index(following)], following.changed) == (f"{states}kk", {})
    assert (following.same, following.states) == (len(states), "2k")


@dataclass(frozen=True, slots=True, eq=False)
class Sender:
    """Sends the messages at these places instead, with one of its own before the last, and clears the first."""

    inner: ChatClient
    at: tuple[int, ...]

    async def send(self, request: ChatRequest, /) -> ChatStream:
        kept = [request.messages[at] for at in self.at if at < len(request.messages)]
        kept[0] = kept[0].edited(parts=(Text("short"),))
        kept.insert(-1, Message.assistant("put in"))
        return await self.inner.send(request.but(messages=tuple(kept)))


def test_the_same_message_twice_is_told_apart() -> None:
    same = [user("task"), *[assistant("ok"), user("go on")] * 3, assistant("done")]
    policy = Policy("mine", lambda ceiling, model: ChatStack(model).use(Sender, at=(0, 3, 4)))

    *_, call = calls = calls_of(policy, recording(conversation(*same)))

    assert states_of(calls)[-2:] == ["1c2d2k", "1c2d2k2d"]
    assert call.added == [Added(4, "put in", 6)]
    assert [call.changed for call in calls] == [{"0": Cut("short", 5)}, {}, {}, {}]


def test_what_comes_in_fresh_objects_is_known_by_what_it_says() -> None:
    whole = [Message.user("task"), Message.assistant("ok"), Message.user("go on")]
    tracing, call = Tracing(whole), CallStory()

    tracing.add(call, 3, ChatRequest((Message.user("task"), Message.user("go on"), Message.user("new"))))

    assert (call.states, call.added) == ("1k1d1k", [Added(3, "new", 3)])


def test_what_is_said_twice_is_known_in_fresh_objects_too() -> None:
    whole = [Message.user("task"), Message.assistant("ok"), Message.user("go on"), Message.assistant("ok")]
    tracing, call = Tracing(whole), CallStory()

    tracing.add(call, 4, ChatRequest((Message.user("task"), Message.assistant("ok"), Message.assistant("ok"))))

    assert call.states == "2k1d1k"


def test_what_is_dropped_while_a_summary_stays_is_not_folded_into_it() -> None:
    whole = [Message.user(f"{number}") for number in range(6)]
    summary, other = (Message("assistant", (Text("sum"),), mark="summary") for _ in range(2))
    tracing, calls = Tracing(whole), [CallStory() for _ in range(4)]

    for call, sent in zip(
        calls, ([summary, *whole[2:]], [summary, *whole[3:]], [other, *whole[4:]], whole), strict=True
    ):
        tracing.add(call, 6, ChatRequest(tuple(sent)))

    assert states_of(calls) == ["2f4k", "2f1d3k", "4f2k", "6k"]


def test_what_was_put_in_as_a_result_is_told_too() -> None:
    """As where a result was missing, and a layer says so in its place."""
    whole = [Message.user("task"), Message.assistant(ToolCall("a", "look")), Message.user("go on")]
    tracing, call = Tracing(whole), CallStory()
    put_in = Message("tool", (ToolResult("a", "look", "there is none"),), mark="repair")

    tracing.add(call, 3, ChatRequest((*whole[:2], put_in, whole[2])))

    assert (call.states, call.added) == ("3k", [Added(2, "there is none", 13)])


def test_long_texts_are_cut_and_told_with_their_whole_length() -> None:
    """An edit beyond the cut shows in the length, and is told anew."""
    whole = [Message.user("task"), Message.assistant("ok"), Message.user("go on")]
    tracing, calls = Tracing(whole), [CallStory(), CallStory()]

    for call, length in zip(calls, (3_000, 4_000), strict=True):
        new = whole[1].edited(parts=(Text("x" * length),))
        tracing.add(call, 3, ChatRequest((whole[0], new, Message.user("y" * length), whole[2])))

    assert [call.changed for call in calls] == [{"1": Cut("x" * 2_000, length)} for length in (3_000, 4_000)]
    assert [call.added for call in calls] == [[Added(2, "y" * 600, length)] for length in (3_000, 4_000)]


@pytest.mark.parametrize(("name", "window"), [("sliding-window", 600), ("guard", 600), ("recommended", 300)])
def test_the_stories_of_all_conversations_add_up_to_the_figures(name: str, window: int) -> None:
    """Edits are not the calls that break the prefix: the sliding window cuts anew where it cut before."""
    items = [errand("lamp", *(f"lamp-code-{max(0, at - 4)}" for at in range(12))), talk(10, 80)]
    setup = setup_of(*policies_for([], [name]), window=window, counter=WireCounter.best(), stories=2)

    outcome = outcome_of(setup, *map(recording, items))

    (figures,) = outcome.figures
    calls = [call for story in outcome.stories for told in story.policies for call in told.calls]
    assert sum(len(call.why) for call in calls) == figures.edits > 0
    assert sum(call.broken for call in calls) == figures.spending.prefix_breaks > 0
    assert sum(call.lost_count for call in calls) == figures.grounding.values - figures.grounding.found > 0
    assert sum(call.over for call in calls) == figures.over_limit
    assert sum(story.weight for story in outcome.stories) == sum(len(each.why) + each.lost_count for each in calls)
    assert (figures.edits > figures.spending.prefix_breaks) == (name == "sliding-window")


def test_lost_values_of_a_refused_call_are_counted_and_the_first_are_told_cut() -> None:
    wire = rounds(3).body["messages"]
    assert isinstance(wire, list)
    long = "L" * 300
    asking = assistant(None, "last")
    asking["tool_calls"][0]["function"]["arguments"] = json.dumps([long, *(f"V{n:04}" for n in range(40))])  # type: ignore[index]
    told = user(" ".join([long, *(f"V{n:04}" for n in range(40))]))
    strict = Policy(
        "strict",
        lambda ceiling, model: ChatStack(model).use(
            ContextWindowGuard, max_context_tokens=9, strict=True, counter=CHARACTERS
        ),
    )

    story = story_of(strict, recording(conversation(told, *wire[:-1], asking)))

    calls = story.policies[0].calls

    assert {call.refused for call in calls} == {"ContextOverflowError"}
    assert states_of(calls) == ["2d", "4d", "6d", "8d"]
    assert (len(calls[-1].lost), calls[-1].lost[:2], calls[-1].lost_count) == (30, ["L" * 200, "V0000"], 41)
    assert story.weight == sum(call.lost_count for call in calls) >= 41
    assert calls[-1].tokens == 0


def test_a_call_over_the_window_is_told_and_one_that_misses_nothing() -> None:
    (nothing,) = policies_for([], ["nothing"])

    calls = calls_of(nothing, rounds(4), window=400)

    assert [call.over for call in calls] == [False] * 4 + [True]
    assert [call.lost for call in calls] == [[]] * 5


def test_a_recorded_message_is_told_with_its_kind_and_its_beginning() -> None:
    call, said = ToolCall("a", "look"), Message.assistant("x" * 3_000)

    assert told_message(Message.user("hi\0there"), 7) == type(told_message(said, 0))(
        "user", "text", "", "hi\nthere", 8, 7
    )
    assert (told_message(said, 9).chars, len(told_message(said, 9).text)) == (3_000, 2_000)
    kinds = [told_message(each, 1) for each in (Message.assistant("so", call), Message.assistant(call, call))]
    assert [(each.kind, each.name) for each in kinds] == [("mixed", "look"), ("call", "look")]
    assert told_message(Message.tool("a", "seen", name="look"), 1).kind == "result"


def a_story(number: int, weight: int) -> Story:
    return Story(f"talk-{number}", "f", number, "m", [], [], [PolicyStory("mine", [])], number, weight)


@PROPERTY
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(1, 8), st.lists(st.integers(0, 3), min_size=30)
)
def test_those_with_most_to_see_stay_however_they_come(weights: list[int], most: int, parts: list[int]) -> None:
    """In whatever batches, and in whatever order these are done."""
    stories = [a_story(number, weight) for number, weight in enumerate(weights)]
    whole, batches = Outcome([]), [Outcome([]) for _ in range(4)]
    for story, part in zip(stories, parts, strict=False):
        batches[part].tell([story], most)
    for batch in reversed(batches):
        whole.merge(batch, most)

    assert whole.stories == sorted(stories, key=lambda story: (-story.weight, story.number))[:most]


STACKS: dict[str, Callable[[ChatStack], ChatStack]] = {
    "guard": lambda stack: pruning_at(150, stack),
    "clearer": lambda stack: clearing_at(80, stack),
    "both": lambda stack: pruning_at(150, clearing_at(80, stack)),
}


@pytest.mark.slow
@PROPERTY
@given(histories(), st.sampled_from(sorted(STACKS)))
def test_the_states_of_a_call_are_one_for_each_message_before_it(history: list[Message], which: str) -> None:
    """Of any history, repaired or not; and what is not dropped was sent."""
    model = ScriptedClient(["fine"])
    client, tracing = STACKS[which](ChatStack(model)).build(), Tracing(history)
    for position in range(1, len(history) + 1):
        plan = repair_plan(history[:position])
        repaired = history[:position] if plan is None else plan.apply(history[:position])
        if all(message.is_blank for message in repaired):
            continue  # nothing to send, or nothing but results, which is refused
        call = CallStory()
        asyncio.run(client.get_response(history[:position]))
        sent = model.requests[-1]
        tracing.add(call, position, sent)
        states = letters_of(states_of(tracing.calls)[-1])
        assert len(states) == position
        assert set(states) <= set("kcd")
        assert states.count("k") + states.count("c") + len(call.added) == len(sent.messages)
        assert re.fullmatch(r"([1-9]\d*[kcfd])*", call.states)
        alone, whole = Tracing(history), CallStory()
        alone.add(whole, position, sent)
        assert (letters_of(whole.states), whole.added) == (states, call.added)
