"""When an edit pays: the rule by itself, and what it promises for every conversation, through real layers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack import (
    CharCounter,
    ChatOptions,
    ChatRequest,
    ChatStack,
    ClearThenDrop,
    ContextMemory,
    Message,
    Plan,
    Text,
    ToolCall,
    ToolResultClearer,
)
from chatstack.context.edits.context import Context
from chatstack.context.strategies import condensing
from chatstack.context.strategies.break_even import FORGETTING, TIMES, may_forget, why_now
from chatstack.context.strategies.drafting import Draft
from chatstack.testing import ScriptedClient, TelemetryCapture
from chatstack.workbench.replay.measures.costs import Spending
from chatstack.workbench.replay.measures.measuring import Gauge, WireCounter
from tests.context.strictness import context_of
from tests.histories import SOME, decoded_again

COUNTER = WireCounter(CharCounter(4), "characters/4")


class CountsNothing(CharCounter):
    """Of a provider that reports no usage, so that nobody learns from it what was cached."""

    def count_message(self, message: Message) -> int:
        return 0

    def count_options(self, options: ChatOptions) -> int:
        return 0


TASK = Message.user("task " + "t" * 8_000)
"""About two thousand tokens, so that a cache holds it."""


def text(tokens: int, number: int) -> str:
    """So many tokens, most of them names."""
    return " ".join(f"src/mod_{number}_{at}.py" for at in range(max(1, tokens // 5)))


def looked(number: int, tokens: int, arguments: int = 5) -> list[Message]:
    given = f'{{"at": "{text(arguments, number)}"}}'
    return [
        Message.assistant(f"look {number}", ToolCall(f"c{number}", "look", given)),
        Message.tool(f"c{number}", text(tokens, number), name="look"),
    ]


def rounds(count: int, tokens: int = 1_000) -> list[Message]:
    return [message for number in range(count) for message in looked(number, tokens)]


def talk(count: int) -> list[Message]:
    return [(Message.user if at % 2 else Message.assistant)(f"small talk {at}") for at in range(count)]


def read_again(times: int, *, behind: int = 1_000, **about: Any) -> Context:
    """A result of a thousand tokens that was read again so often, with ``behind`` tokens in the cache behind it."""
    first = [TASK, Message.assistant("", ToolCall("a", "look")), Message.tool("a", "x" * 4_000)]
    rest = [Message.assistant("y" * 4 * behind), Message.user("go on")]
    more = [Message.assistant("ok"), Message.user("on")] * times
    return msgspec.structs.replace(context_of([*first, *rest, *more]), **about)


# The rule


@pytest.mark.parametrize(("behind", "pays_after"), [(0, 1), (1_000, 28), (3_000, 84)])
def test_an_edit_pays_once_reading_has_cost_twice_what_it_costs(behind: int, pays_after: int) -> None:
    """A thousand tokens read n times at 0.1, beside twice those behind written at 1.25 instead of read at 0.1; small
    talk is behind it, too. Where nothing of it was read from a cache yet, the edit is free."""
    worth = [times for times in range(1, 100) if why_now(read_again(times, behind=behind), {2: 0})]
    assert worth == [*range(pays_after, 100)]
    assert why_now(read_again(0, behind=behind), {2: 0})


def test_what_is_put_in_and_what_is_forgotten_raise_the_price() -> None:
    context = read_again(30)
    assert why_now(context, {2: 0}).startswith("pays (reading again what goes has cost 3,")
    assert why_now(context, {2: 0}, put_in=500) == ""
    assert why_now(context, {2: 0}, forgetting=0.5) == ""


def test_of_a_cold_cache_only_forgetting_has_a_price() -> None:
    context = read_again(6, behind=100_000)
    cold = msgspec.structs.replace(context, is_cold=True)
    assert why_now(context, {2: 0}) == ""
    assert why_now(cold, {2: 0}, forgetting=FORGETTING).startswith("cold cache (")
    assert why_now(cold, {2: 0}, forgetting=1.0) == ""


def test_nothing_pays_that_leaves_less_than_a_cache_holds() -> None:
    context = read_again(50, behind=10)
    assert why_now(context, {2: 0})
    assert why_now(context, {0: 0, 2: 0}) == ""


def test_a_list_that_was_put_in_later_has_no_rent_of_its_own() -> None:
    """Its tokens were not read by every request since the result was new that it stands in."""
    messages = list(read_again(30).messages)
    short = messages[2].edited(parts=Message.tool("a", "[cleared]").parts)
    listed = messages[2].edited(parts=Message.tool("a", "[cleared] Names: " + "n" * 40_000).parts)
    was_short = Message.tool("a", "seen").edited(parts=listed.parts)
    assert why_now(context_of([*messages[:2], listed, *messages[3:]]), {2: 5})  # the rent of a thousand
    assert why_now(context_of([*messages[:2], short, *messages[3:]]), {2: 0}) == ""
    assert why_now(context_of([*messages[:2], was_short, *messages[3:]]), {2: 0}) == ""


def test_before_anything_was_read_often_no_edit_is_drafted() -> None:
    fewest = next(times for times in range(20) if may_forget(read_again(times)))
    assert 0.1 * (fewest + 1) == pytest.approx(TIMES * FORGETTING)


@pytest.mark.slow
@SOME
@given(st.data())
def test_the_bound_denies_no_edit_that_would_be_made(data: st.DataObject) -> None:
    """Whatever the sizes, the shares and how often it was edited: drafts alone decide."""
    messages = conversation(data.draw(TURNS) * data.draw(st.integers(1, 3)), data.draw(SIZES))
    strategy = ClearThenDrop(
        data.draw(st.sampled_from([None, 20_000])),
        target=data.draw(st.sampled_from([0.2, 0.43, 0.9])),
        keep_recent=data.draw(st.sampled_from([0.0, 0.05, 0.3])),
        mentions=data.draw(st.sampled_from([0.0, 0.1])),
    )
    with pytest.MonkeyPatch.context() as patch:
        found = Cached(strategy).replay(messages)
        patch.setattr(condensing, "may_pay", lambda *_, **__: True)
        assert Cached(strategy).replay(messages) == found


@pytest.mark.slow
@pytest.mark.parametrize("mentions", [0.0, 0.1])
def test_the_bound_denies_no_edit_where_it_is_close(mentions: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small results, and what cannot go behind them: all that the bound goes by is nearly what an edit takes."""
    pinned = Message("user", (Text("p" * 40_000),), pinned=True)
    strategy = ClearThenDrop(target=0.9, keep_recent=0.0, mentions=mentions)
    contexts = [context_of([TASK, *rounds(40, 200), pinned, *talk(many)]) for many in range(1, 201, 2)]
    pay = [strategy.plan(context) is not None for context in contexts]
    monkeypatch.setattr(condensing, "may_pay", lambda *_, **__: True)
    assert pay == [strategy.plan(context) is not None for context in contexts]
    assert 5 < pay.index(True) < 90


@pytest.mark.slow
def test_the_bound_spares_many_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    drafted: list[int] = []

    def take_out(draft: Draft) -> None:
        drafted.append(len(draft.context.messages))
        before(draft)

    before = Draft.take_out
    monkeypatch.setattr(Draft, "take_out", take_out)
    Cached(ClearThenDrop()).replay([TASK, *rounds(80), Message.assistant("done")])
    with_bound = len(drafted)
    drafted.clear()
    monkeypatch.setattr(condensing, "may_pay", lambda *_, **__: True)
    Cached(ClearThenDrop()).replay([TASK, *rounds(80), Message.assistant("done")])
    assert with_bound <= len(drafted) * 2 // 3


# In stacks


@dataclass
class Cached:
    """A stack over a model with a prompt cache, and what it has cost beside sending everything."""

    strategy: ClearThenDrop | None = None
    memory: ContextMemory = field(default_factory=lambda: ContextMemory(clock=lambda: 0.0))
    clearing: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        self.model = ScriptedClient(counter=CountsNothing())
        self.capture = TelemetryCapture()
        stack = ChatStack(self.model, memory=self.memory, trace_model_calls=False)
        if self.strategy is not None:
            stack = stack.use(self.strategy, counter=COUNTER)
        else:
            stack = stack.use(ToolResultClearer, counter=COUNTER, **self.clearing)
        self.client = stack.build(self.capture.resolve)
        self.gauge = Gauge(COUNTER)
        self.cost, self.everything = Spending(), Spending()
        for each in (self.cost, self.everything):
            each.begin(None)

    def send(self, messages: Sequence[Message], answer: Message) -> tuple[Message, ...]:
        self.model.answers = [answer]
        asyncio.run(self.client.get_response(messages, conversation_id="one"))
        sent = self.model.requests[-1].messages
        self.everything.add([self.gauge.measure(ChatRequest(tuple(messages)), needs_user=True)])
        self.cost.add([self.gauge.measure(ChatRequest(sent), needs_user=True)])
        return sent

    def replay(self, messages: Sequence[Message]) -> list[tuple[Message, ...]]:
        """Send every request that a conversation tells of; the requests that went out."""
        answers = [at for at in range(1, len(messages)) if messages[at].role == "assistant"]
        return [self.send(messages[:at], messages[at]) for at in answers]

    @property
    def ratio(self) -> float:
        return self.cost.cost / self.everything.cost

    @property
    def reasons(self) -> list[str]:
        """Why each edit was made, as its span says."""
        found = [dict(span.attributes or {}) for span in self.capture.spans if span.name.startswith("compact_context")]
        return [str(each["chatstack.compaction.reason"]).split(" (")[0] for each in found]


SIZES = st.sampled_from([5, 20, 100, 400, 1_500, 5_000])
TURNS = st.lists(
    st.one_of(
        st.tuples(SIZES, SIZES).map(lambda sizes: ("round", *sizes)),
        st.tuples(SIZES, SIZES).map(lambda sizes: ("turn", *sizes)),
    ),
    min_size=8,
    max_size=40,
)


def conversation(turns: Sequence[tuple[str, int, int]], task: int) -> list[Message]:
    messages = [Message.system("Be brief."), Message.user(text(task, 0))]
    for number, (kind, one, other) in enumerate(turns):
        if kind == "round":
            messages += looked(number, other, one)
        else:
            messages += [Message.assistant(text(one, number)), Message.user(text(other, number))]
    return [*messages, Message.assistant("done")]


@pytest.mark.slow
@SOME
@given(TURNS, SIZES, st.integers(1, 4))
def test_edits_that_nothing_forces_never_add_more_than_half(
    turns: list[tuple[str, int, int]], task: int, again: int
) -> None:
    """At no call of any conversation, wherever it ends: 1 + 1 / TIMES of sending everything, by a simulated cache."""
    cached = Cached(ClearThenDrop())
    messages = conversation(turns * again, task)
    for at in range(2, len(messages)):
        if messages[at].role == "assistant":
            cached.send(messages[:at], messages[at])
            assert cached.cost.cost <= (1 + 1 / TIMES) * cached.everything.cost
    assert set(cached.reasons) <= {"pays"}


@SOME
@given(TURNS, SIZES)
def test_clearing_that_waits_until_it_pays_never_adds_more_than_half(
    turns: list[tuple[str, int, int]], task: int
) -> None:
    clearing = {"trigger": {"tokens": 2_000}, "keep": {"messages": 2}, "clear_at_least": "pays"}
    cached = Cached(clearing=clearing)
    messages = conversation(turns * 2, task)
    for at in range(2, len(messages)):
        if messages[at].role == "assistant":
            cached.send(messages[:at], messages[at])
            assert cached.cost.cost <= (1 + 1 / TIMES) * cached.everything.cost


@pytest.mark.slow
@SOME
@given(TURNS, SIZES)
def test_a_process_that_remembers_nothing_sends_the_same(turns: list[tuple[str, int, int]], task: int) -> None:
    """Whether an edit pays follows from the history alone."""
    messages = conversation(turns * 2, task)
    long = Cached(ClearThenDrop(30_000))
    at = next(at for at in range(len(messages) - 1, 0, -1) if messages[at].role == "assistant")
    expected = long.replay(messages)[-1]
    fresh = Cached(ClearThenDrop(30_000))
    assert fresh.send(decoded_again(messages[:at]), messages[at]) == expected


def test_a_long_conversation_without_a_limit_is_edited_and_costs_less() -> None:
    cached = Cached(ClearThenDrop())
    cached.replay([TASK, *rounds(80), Message.assistant("done")])
    assert cached.ratio < 0.6
    assert 2 < len(cached.reasons) < 20
    assert set(cached.reasons) == {"pays"}


@pytest.mark.slow
def test_a_limit_that_is_far_off_changes_nothing() -> None:
    messages = [TASK, *rounds(60), Message.assistant("done")]
    assert Cached(ClearThenDrop(10_000_000)).replay(messages) == Cached(ClearThenDrop()).replay(messages)


def test_a_short_conversation_is_sent_as_it_is() -> None:
    messages = [TASK, *rounds(6), Message.assistant("done")]
    cached = Cached(ClearThenDrop())
    cached.replay(messages)
    assert (cached.ratio, cached.reasons) == (1.0, [])


def test_the_span_says_why_now() -> None:
    cached = Cached(ClearThenDrop(12_000, target=0.9, keep_recent=0.8))
    cached.replay([TASK, *rounds(40), Message.assistant("done")])
    assert set(cached.reasons) == {"forced"}
    now = [0.0]
    waiting = Cached(ClearThenDrop(), memory=ContextMemory(clock=lambda: now[0]))
    messages = [TASK, *looked(0, 4_000), *talk(13)]
    waiting.replay(messages)
    assert waiting.reasons == []
    now[0] += 301
    waiting.send([*messages, Message.user("and now?")], Message.assistant("ok"))
    assert waiting.reasons == ["cold cache"]


def test_an_edit_that_would_take_little_waits_for_more() -> None:
    """Of a conversation whose task cannot go: else a little would go again and again."""
    messages = [Message.user("x" * 400_000), *talk(3_001)]
    context = context_of(messages)
    assert why_now(context, dict.fromkeys(range(1, 1_500), 0))
    assert ClearThenDrop().plan(context) is None


def test_it_may_wait_for_the_limit() -> None:
    messages = [TASK, *rounds(60), Message.assistant("done")]
    cached = Cached(ClearThenDrop(before_limit="never"))
    assert cached.replay(messages)[-1] == tuple(messages[:-1])
    unstable = msgspec.structs.replace(context_of(messages), is_unstable=True)
    assert ClearThenDrop().plan(unstable) is None
    assert ClearThenDrop().plan(context_of(messages)) is not None


@dataclass(frozen=True, repr=False)
class Counted(ClearThenDrop):
    """Keeps the lengths of the requests that it was asked to plan for."""

    asked: list[int] = field(default_factory=list[int], compare=False)

    def plan(self, context: Context) -> Plan | None:
        self.asked.append(len(context.messages))
        return super().plan(context)


@pytest.mark.slow
@pytest.mark.parametrize("turns", [False, True], ids=["rounds of one turn", "turns"])
def test_planning_follows_what_is_new(turns: bool) -> None:
    """Where no edit pays, a plan is asked for once the conversation has grown by a 32nd: work that stays linear."""
    strategy = Counted()
    cached = Cached(strategy)
    messages, lengths = [Message.user("x" * 400_000)], list[int]()
    for number in range(500):
        cached.send(messages, Message.assistant("ok"))
        lengths.append(len(messages))
        messages += [Message.assistant(f"ok {number}"), Message.user(f"go on {number}")] if turns else looked(number, 5)
    assert cached.reasons == []
    assert sum(strategy.asked) <= 33 * lengths[-1]
    assert len([each for each in strategy.asked if each > lengths[250]]) <= 24
