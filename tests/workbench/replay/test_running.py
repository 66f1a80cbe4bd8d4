"""Every recorded answer is asked for again through each policy's stack, and what was sent is added up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from chatstack import (
    FROM_CONTAINER,
    ChatClient,
    ChatRequest,
    ChatStack,
    ChatStream,
    ContextOverflowError,
    Message,
    Telemetry,
)
from chatstack.layers.progress import ProgressReporter
from chatstack.providers.openai.chat_wire import messages_from_wire
from chatstack.values.requests import ToolDeclaration
from chatstack.workbench.replay.measures.figures import PolicyFigures
from chatstack.workbench.replay.measures.measuring import WireCounter
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.parallel import replay
from chatstack.workbench.replay.policies import Policy, policies_for
from chatstack.workbench.replay.reading.recordings import BrokenLine, Recording
from chatstack.workbench.replay.recorder import Recorder
from tests.workbench.replay.conversations import (
    assistant,
    by_name,
    conversation,
    data_file,
    outcome_of,
    recording,
    recordings_in,
    result,
    setup_of,
    talk,
    user,
)


@dataclass(frozen=True, slots=True, eq=False)
class Spy:
    """Keeps what goes through it."""

    inner: ChatClient
    seen: list[ChatRequest]

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.seen.append(request)
        return await self.inner.send(request)


@dataclass(frozen=True, slots=True, eq=False)
class Cutter:
    """Sends the last ``keep`` messages, whatever they are, and says that it edited."""

    inner: ChatClient
    keep: int
    telemetry: Telemetry = FROM_CONTAINER

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.telemetry.edit("cutter", "cut", {}, tokens_before=2, tokens_after=1)
        return await self.inner.send(request.but(messages=request.messages[-self.keep :] if self.keep else ()))


@dataclass(frozen=True, slots=True, eq=False)
class Refuser:
    """Refuses every request of more than three messages."""

    inner: ChatClient

    async def send(self, request: ChatRequest, /) -> ChatStream:
        if len(request.messages) > 3:
            raise ContextOverflowError(10, 5)
        return await self.inner.send(request)


@dataclass(frozen=True, slots=True, eq=False)
class Asker:
    """Asks the model something else before it passes the request on."""

    inner: ChatClient

    async def send(self, request: ChatRequest, /) -> ChatStream:
        await (await self.inner.send(ChatRequest((Message.user("12345"),)))).response()
        return await self.inner.send(request)


def through(
    policy: Policy, *items: Recording | BrokenLine, window: int = 1_000, tools: tuple[ToolDeclaration, ...] = ()
) -> Outcome:
    return outcome_of(setup_of(policy, window=window, tools=tools), *items)


def figures_of(policy: Policy, *items: Recording | BrokenLine, window: int = 1_000) -> PolicyFigures:
    return through(policy, *items, window=window).figures[0]


def using(layer: Callable[..., ChatClient], **options: Any) -> Policy:
    return Policy("mine", lambda ceiling, model: ChatStack(model).use(layer, **options))


THREE_CALLS = conversation(
    user("q"), assistant(None, "a"), result("a", "r"), assistant("so"), user("w"), assistant("z")
)


def test_each_recorded_answer_is_asked_for_with_everything_before_it() -> None:
    seen: list[ChatRequest] = []

    figures = figures_of(using(Spy, seen=seen), recording(THREE_CALLS))

    whole = messages_from_wire(THREE_CALLS["messages"])  # type: ignore[arg-type]
    assert [request.messages for request in seen] == [whole[:1], whole[:3], whole[:5]]
    assert (figures.conversations, figures.calls) == (1, 3)


def test_the_figures_of_sending_everything_are_the_sizes_of_the_recording() -> None:
    (nothing,) = policies_for([], ["nothing"])

    figures = figures_of(nothing, recording(THREE_CALLS), window=40)

    first, call, answer = 1 + 4, 4 + len("look") + len('{"at": "it"}'), 2 + 4
    sizes = [first, first + call + 5, first + call + 5 + answer + 5]
    assert figures.tokens_sent == sum(sizes)
    assert figures.peak_tokens == sizes[2] == 41
    assert (figures.over_limit, figures.invalid_requests, figures.edits) == (1, 0, 0)


def test_an_answer_that_nothing_precedes_is_no_call() -> None:
    (nothing,) = policies_for([], ["nothing"])

    assert figures_of(nothing, recording(conversation(assistant("hi"), user("q"), assistant("so")))).calls == 1


def test_the_client_answers_with_the_recorded_message() -> None:
    said = Message.assistant("so it is")
    recorder = Recorder(100)
    recorder.expect(said)

    async def ask() -> tuple[Message, ...]:
        return (await (await recorder.send(ChatRequest((Message.user("q"),)))).response()).messages

    assert asyncio.run(ask()) == (said,)


def test_each_recording_is_a_conversation_of_its_own() -> None:
    seen: list[ChatRequest] = []

    figures_of(using(Spy, seen=seen), recording(THREE_CALLS), recording(THREE_CALLS, line=2))

    ids = [request.conversation_id for request in seen]
    assert len(set(ids)) == 2
    assert ids[0] == ids[1] == ids[2] != ids[3] == ids[5]


def test_the_ceiling_reaches_a_stack_as_the_window_of_its_model() -> None:
    given: list[int] = []

    def stack(ceiling: int, model: ChatClient) -> ChatStack:
        info = model.info  # type: ignore[attr-defined]
        given.extend((ceiling, info.window_tokens))
        return ChatStack(model)

    through(Policy("mine", stack), window=4_321)

    assert given == [4_321, 4_321]


def test_edits_are_those_that_the_stack_reports_with_a_reporter_around_it_too() -> None:
    def stack(ceiling: int, model: ChatClient) -> ChatStack:
        return ChatStack(model).use(ProgressReporter).use(Cutter, keep=1)

    assert figures_of(Policy("mine", stack), recording(THREE_CALLS)).edits == 3


@pytest.mark.parametrize(("keep", "faults"), [(0, {"empty request": 3}), (1, {"result without a call": 1})])
def test_a_policy_that_breaks_requests_is_found_out(keep: int, faults: dict[str, int]) -> None:
    figures = figures_of(using(Cutter, keep=keep), recording(THREE_CALLS))

    assert figures.faults == faults
    assert figures.invalid_requests == sum(faults.values())


def test_a_policy_that_loses_the_only_user_message_is_found_out() -> None:
    figures = figures_of(using(Cutter, keep=1), recording(conversation(user("q"), assistant("a"), assistant("b"))))

    assert figures.faults == {"no user message": 1}


def test_what_a_stack_refuses_to_send_is_counted_and_ends_nothing() -> None:
    figures = figures_of(using(Refuser), recording(THREE_CALLS))

    assert (figures.calls, figures.refused, figures.faults) == (3, 1, {"ContextOverflowError": 1})


def test_all_that_a_layer_sends_for_a_call_is_counted() -> None:
    (nothing,) = policies_for([], ["nothing"])
    plain = figures_of(nothing, recording(THREE_CALLS))

    figures = figures_of(using(Asker), recording(THREE_CALLS))

    assert figures.calls == 3
    assert figures.tokens_sent == plain.tokens_sent + 3 * (5 + 4)
    assert figures.peak_tokens == plain.peak_tokens


def test_tools_go_with_every_call_and_count() -> None:
    (nothing,) = policies_for([], ["nothing"])
    tool = ToolDeclaration("look", parameters='{"type":"object"}')

    outcome = through(nothing, recording(THREE_CALLS), tools=(tool,))

    plain = figures_of(nothing, recording(THREE_CALLS))
    tools_tokens = setup_of(nothing, tools=(tool,)).tools_tokens
    assert tools_tokens > 0
    assert outcome.figures[0].tokens_sent == plain.tokens_sent + 3 * tools_tokens


def test_the_guard_keeps_every_request_under_the_ceiling_and_valid() -> None:
    setup = setup_of(*policies_for([]), window=1_000, counter=WireCounter.best())

    figures = by_name(outcome_of(setup, recording(talk(30))).figures)

    assert figures["nothing"].over_limit > 0
    assert figures["guard"].over_limit == 0
    assert figures["guard"].peak_tokens <= 1_000
    assert figures["guard"].invalid_requests == 0
    assert 0 < figures["guard"].edits < 30
    assert figures["guard"].tokens_sent < figures["nothing"].tokens_sent


def test_a_pipeline_file_is_a_policy_named_after_it(tmp_path: Path) -> None:
    path = tmp_path / "tight.toml"
    path.write_text('[[layers]]\nuse = "ContextWindowGuard"\nmax_context_tokens = "auto"\nprune_on_overflow = true\n')
    policies = policies_for([path, path], ["guard"])

    outcome = outcome_of(setup_of(*policies, window=1_000, counter=WireCounter.best()), recording(talk(30)))

    assert [policy.name for policy in policies] == ["guard", "tight", str(path)]
    assert by_name(outcome.figures)["tight"].edits > 0


def test_broken_lines_are_collected_and_the_rest_is_replayed() -> None:
    (nothing,) = policies_for([], ["nothing"])
    broken = BrokenLine("talks.jsonl", 2, "not valid JSON")
    malformed = recording(conversation({"role": "nobody", "content": "q"}), line=3)

    outcome = through(nothing, recording(THREE_CALLS), broken, malformed, recording(THREE_CALLS, line=4))

    assert outcome.conversations == outcome.figures[0].conversations == 2
    assert outcome.broken_count == 2
    assert [(each.file, each.line) for each in outcome.broken] == [("talks.jsonl", 2), ("talks.jsonl", 3)]
    assert outcome.broken[1].error.startswith("messages[0].role: ")


def test_progress_is_told_again_and_again_and_at_the_end() -> None:
    """After some conversations at a time: here, of 401 messages, after each."""
    (nothing,) = policies_for([], ["nothing"])
    told: list[int] = []
    long = recording(conversation(*[user("q")] * 400, assistant("a")))

    replay(setup_of(nothing), [long] * 3, on_progress=told.append)
    replay(setup_of(nothing), [recording(THREE_CALLS)] * 3, on_progress=told.append)

    assert told == [1, 2, 3, 3]


def test_of_several_requests_for_a_call_the_last_is_looked_at_for_its_values() -> None:
    plain = conversation(user("look at it, at F1111"), assistant(None, "a"), result("a", "it"), assistant("so"))
    plain["messages"][1]["tool_calls"][0]["function"]["arguments"] = '{"at": "F1111"}'  # type: ignore[index]

    figures = figures_of(using(Asker), recording(plain))

    assert (figures.grounding.values, figures.grounding.found) == (1, 1)
    assert (figures.calls, figures.requests) == (2, 4)


def test_everything_is_measured_whichever_policies_run() -> None:
    (nothing,) = policies_for([], ["nothing"])
    whole = figures_of(nothing, recording(THREE_CALLS))

    everything = through(using(Cutter, keep=1), recording(THREE_CALLS)).everything

    assert (everything.calls, everything.tokens_sent) == (whole.calls, whole.tokens_sent)
    assert everything.spending.cost == whole.spending.cost


def test_the_prices_of_the_recorded_models_are_kept() -> None:
    (nothing,) = policies_for([], ["nothing"])
    known, unknown = recording(THREE_CALLS), recording({**THREE_CALLS, "model": "no-such-model"})

    assert list(through(nothing, known, unknown).prices) == ["gpt-4o"]
    assert through(nothing, known).figures[0].spending.usd == Decimal("2.5") * (5 + 30 + 41) / 1_000_000
    assert through(nothing, known, unknown).figures[0].spending.usd is None


def replayed(items: Sequence[Recording | BrokenLine], window: int) -> dict[str, PolicyFigures]:
    outcome = outcome_of(setup_of(*policies_for([]), window=window, counter=WireCounter.best()), *items)
    assert outcome.broken_count == 0
    return by_name(outcome.figures)


@pytest.mark.slow
@pytest.mark.data
def test_all_airline_conversations_stay_valid_and_under_the_ceiling() -> None:
    figures = replayed(recordings_in(data_file("tau_airline_gpt4o.dev.jsonl.gz")), 4_000)

    nothing, guard = figures["nothing"], figures["guard"]
    assert (nothing.conversations, nothing.calls) == (guard.conversations, guard.calls) == (100, 1_243)
    assert nothing.invalid_requests == guard.invalid_requests == 0
    assert nothing.over_limit > 0 == guard.over_limit
    assert guard.peak_tokens <= 4_000 < nothing.peak_tokens
    assert guard.tokens_sent < nothing.tokens_sent


@pytest.mark.slow
@pytest.mark.data
def test_coding_runs_stay_valid_and_under_the_ceiling() -> None:
    figures = replayed(recordings_in(data_file("swe_gemini3_mini.dev.jsonl.gz"))[:8], 8_000)

    assert figures["nothing"].invalid_requests == figures["guard"].invalid_requests == 0
    assert figures["guard"].over_limit < figures["nothing"].over_limit
    assert figures["guard"].edits > 0
