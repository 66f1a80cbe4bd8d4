"""A stack's context layers in front of a model of Pydantic AI's."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any, cast

import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel, create_model
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, NativeOutput, PromptedOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UploadedFile,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.usage import RequestUsage

from chatstack import (
    ChatStack,
    ContextOverflowError,
    ContextWindowGuard,
    Fallback,
    FunctionInvoker,
    ProgressReporter,
    Summarizer,
    Telemetry,
    Text,
    ToolResultClearer,
    WiringError,
    agent_turn,
    semconv,
)
from chatstack.testing import ScriptedClient, TelemetryCapture
from chatstack_pydantic_ai import PydanticAIClient, StackedModel
from chatstack_pydantic_ai.messages import Converted

LONG = "word " * 400


def look(place: str) -> str:
    """Look around there."""
    return f"{place}: {LONG}"


class Script:
    """A model that plays answers in order, the last one again and again, and keeps what it was asked."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers
        self.received: list[list[ModelMessage]] = []
        self.model = FunctionModel(self.answer, stream_function=self.stream, model_name="script")

    def _next(self, messages: list[ModelMessage]) -> Any:
        answer = self.answers[min(len(self.received), len(self.answers) - 1)]
        self.received.append(messages)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        answer = self._next(messages)
        return ModelResponse([TextPart(answer)]) if isinstance(answer, str) else copy.deepcopy(answer)

    async def stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        answer = self._next(messages)
        if isinstance(answer, str):
            for word in answer.split(" "):
                yield f"{word} "
            return
        for index, part in enumerate(answer.parts):
            yield {index: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}


def called(*calls: tuple[str, str, dict[str, Any]]) -> ModelResponse:
    return ModelResponse([ToolCallPart(name, args, id) for id, name, args in calls])


def looks(rounds: int) -> list[Any]:
    return [*(called((f"c{number}", "look", {"place": f"p{number}"})) for number in range(rounds)), "done"]


def clearing(script: Script, *, at: int = 1_000, capture: TelemetryCapture | None = None) -> StackedModel:
    stack = ChatStack(PydanticAIClient(script.model))
    stack = stack.use(ToolResultClearer, trigger={"tokens": at}, keep={"messages": 1})
    return StackedModel(script.model, stack, resolve=None if capture is None else capture.resolve)


def outputs(messages: list[ModelMessage]) -> list[str]:
    return [
        str(part.content)
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]


def test_what_layers_clear_is_cleared_for_the_model_and_kept_in_the_history() -> None:
    script = Script(looks(4))
    result = Agent(clearing(script), tools=[look], instructions="Be brief.").run_sync("look around")
    assert result.output == "done"
    assert all(LONG in each for each in outputs(result.all_messages()))
    last = outputs(script.received[-1])
    assert len(last) == 4
    assert LONG in last[-1]
    assert LONG not in last[0]
    assert script.received[-1][-1].instructions == "Be brief."  # type: ignore[union-attr]


def test_edited_parts_keep_their_fields_and_the_others_are_the_same_objects() -> None:
    script = Script(looks(4))
    history = Agent(clearing(script), tools=[look]).run_sync("look around").all_messages()
    same = edited = 0
    for sent, kept in zip(script.received[-1], history, strict=False):
        if sent is kept:
            same += 1
            continue
        assert isinstance(sent, ModelRequest)
        assert isinstance(kept, ModelRequest)
        for one, other in zip(sent.parts, kept.parts, strict=True):
            assert isinstance(one, ToolReturnPart)
            assert isinstance(other, ToolReturnPart)
            assert (one.tool_call_id, one.timestamp, one.tool_name) == (
                other.tool_call_id,
                other.timestamp,
                other.tool_name,
            )
            edited += 1
    assert same >= 5
    assert 2 <= edited <= 3


def test_pictures_beside_edited_text_stay_the_objects_that_they_are() -> None:
    picture, file = ImageUrl("https://x.test/z.png"), UploadedFile("file_1", "openai", media_type="image/png")
    prompt, shown = UserPromptPart(["long", picture]), ToolReturnPart("show", ["long", picture, file], "c1")
    converted = Converted([ModelRequest([prompt, shown])])
    asked, result = converted.messages
    output = result.results[0].output
    shorter = msgspec.structs.replace(result.results[0], output=(Text("short"), *output[1:]))
    edited = [asked.edited(parts=(Text("short"), *asked.parts[1:])), result.edited(parts=(shorter,))]
    (request,) = converted.theirs(edited)
    said = [cast("list[Any]", part.content) for part in request.parts]
    assert said == [["short", picture], ["short", picture, file]]
    assert said[0][1] is said[1][1] is picture
    assert said[1][2] is file


def test_below_every_trigger_the_very_messages_are_sent() -> None:
    bare, script = Script(looks(2)), Script(looks(2))
    Agent(bare.model, tools=[look]).run_sync("look")
    sent: list[Any] = []
    inner = clearing(script, at=100_000)
    original = inner.wrapped.request

    async def noted(messages: list[ModelMessage], *rest: Any) -> ModelResponse:
        sent.append(messages)
        return await original(messages, *rest)

    inner.wrapped.request = noted  # type: ignore[method-assign]
    history = Agent(inner, tools=[look]).run_sync("look").all_messages()
    assert all(one is other for one, other in zip(sent[-1], history, strict=False))
    assert [len(each) for each in script.received] == [len(each) for each in bare.received]


def test_between_edits_each_request_begins_with_the_one_before() -> None:
    script = Script(looks(30))
    Agent(clearing(script, at=4_000), tools=[look]).run_sync("look around")
    texts = [[str(message) for message in outputs(messages)] for messages in script.received]
    broken = sum(after[: len(before)] != before for before, after in pairwise(texts))
    assert 1 <= broken <= 12


def test_parallel_calls_go_and_stay_together() -> None:
    both = called(("a", "look", {"place": "x"}), ("b", "look", {"place": "y"}))
    more = [called((f"c{at}", "look", {"place": "p"}), (f"d{at}", "look", {"place": "q"})) for at in range(4)]
    script = Script([both, *more, "done"])
    stack = ChatStack(PydanticAIClient(script.model))
    stack = stack.use(ContextWindowGuard, max_context_tokens=3_000, prune_on_overflow=True)
    result = Agent(StackedModel(script.model, stack), tools=[look]).run_sync("look")
    assert result.output == "done"
    for messages in script.received:
        asked = {part.tool_call_id for m in messages if isinstance(m, ModelResponse) for part in m.tool_calls}
        given = {
            p.tool_call_id
            for m in messages
            if isinstance(m, ModelRequest)
            for p in m.parts
            if isinstance(p, ToolReturnPart)
        }
        assert asked == given
    assert len(script.received[-1]) < len(result.all_messages()) - 1


def test_streams_are_the_models_own_and_are_learnt_from() -> None:
    script = Script([*looks(4)[:4], "all is well"])
    capture = TelemetryCapture()
    agent = Agent(clearing(script, capture=capture), tools=[look])

    async def run() -> str:
        async with agent.run_stream("look") as result:
            return "".join([each async for each in result.stream_text(delta=True)])

    assert asyncio.run(run()).split() == ["all", "is", "well"]
    assert not any(LONG in each for each in outputs(script.received[-1])[:-1])
    assert len([span for span in capture.spans if span.name.startswith("chat")]) == 5
    assert not capture.open_spans


def test_a_stream_that_is_left_early_ends_its_span() -> None:
    script, capture = Script(["one two three four"]), TelemetryCapture()
    agent = Agent(clearing(script, capture=capture))

    async def run() -> None:
        async with agent.run_stream("hi") as result:
            async for _ in result.stream_text(delta=True, debounce_by=None):
                break

    asyncio.run(run())
    assert not capture.open_spans


def test_structured_output_and_usage_are_as_without_the_layer() -> None:
    class Place(BaseModel):
        name: str

    answer = called(("c1", "final_result", {"name": "here"}))
    answer.usage = RequestUsage(input_tokens=10, output_tokens=2)
    result = Agent(clearing(Script([answer])), output_type=Place).run_sync("where?")
    assert result.output == Place(name="here")
    assert (result.usage.input_tokens, result.usage.output_tokens) == (10, 2)


def test_a_schema_is_counted_with_the_instructions_wherever_it_stands() -> None:
    fields: Any = {f"field_{number}": (str, ...) for number in range(300)}
    large: type[BaseModel] = create_model("Large", **fields)
    script = Script(["unused"])
    stack = ChatStack(PydanticAIClient(script.model)).use(
        ContextWindowGuard, max_context_tokens=1_500, prune_on_overflow=True, strict=True
    )
    for output in (PromptedOutput(large), NativeOutput(large), large):
        with pytest.raises(ContextOverflowError):
            Agent(StackedModel(script.model, stack), output_type=output).run_sync("?")
    assert script.received == []


def test_an_approval_pauses_and_resumes() -> None:
    script = Script(looks(3))
    agent = Agent(clearing(script), output_type=[str, DeferredToolRequests])

    @agent.tool_plain(requires_approval=True)
    def look(place: str) -> str:
        return f"{place}: {LONG}"

    result = agent.run_sync("look")
    for _ in range(3):
        assert isinstance(result.output, DeferredToolRequests)
        approvals = DeferredToolResults(approvals={call.tool_call_id: True for call in result.output.approvals})
        result = agent.run_sync(message_history=result.all_messages(), deferred_tool_results=approvals)
    assert result.output == "done"
    assert LONG not in outputs(script.received[-1])[0]


def test_decisions_hold_over_runs() -> None:
    script = Script(looks(4))
    agent = Agent(clearing(script), tools=[look])
    history = agent.run_sync("look").all_messages()
    first = outputs(script.received[-1])
    agent.run_sync("and now?", message_history=history)
    assert outputs(script.received[-1]) == first


def test_a_summary_is_written_by_the_stacks_provider() -> None:
    script, writer = Script(looks(8)), Script(["SUMMARY of what was seen"])
    stack = ChatStack(PydanticAIClient(writer.model)).use(Summarizer, max_tokens=3_000, keep_recent_turns=1)
    assert Agent(StackedModel(script.model, stack), tools=[look]).run_sync("look").output == "done"
    assert writer.received
    assert "SUMMARY of what was seen" in str(script.received[-1])


def test_an_overflow_that_the_model_reports_is_pruned_and_asked_again() -> None:
    body = {"error": {"message": "prompt is too long: 9000 tokens > 1500 maximum"}}
    overflow = ModelHTTPError(400, "script", body)
    script = Script([*looks(3)[:3], overflow, "done"])
    stack = ChatStack(PydanticAIClient(script.model))
    stack = stack.use(ContextWindowGuard, max_context_tokens=100_000, prune_on_overflow=True)
    result = Agent(StackedModel(script.model, stack), tools=[look]).run_sync("look")
    assert result.output == "done"
    assert sum(map(len, outputs(script.received[-1]))) < sum(map(len, outputs(script.received[-2])))


def test_what_the_model_raises_surfaces_as_it_is() -> None:
    error = ModelHTTPError(429, "script", "slow down")
    with pytest.raises(ModelHTTPError) as raised:
        Agent(clearing(Script([error]))).run_sync("hi")
    assert raised.value is error


def test_without_instrumentation_all_calls_are_below_one_root() -> None:
    capture, script = TelemetryCapture(), Script(looks(4))
    stack = ChatStack(PydanticAIClient(script.model))
    stack = stack.use(ToolResultClearer, trigger={"tokens": 1_000}, keep={"messages": 1})
    stack = stack.use(ContextWindowGuard, max_context_tokens=1_100)
    agent = Agent(StackedModel(script.model, stack, resolve=capture.resolve), tools=[look])
    with agent_turn("looker", telemetry=capture.telemetry):
        agent.run_sync("look")
    (root,) = [span for span in capture.spans if span.parent_id is None]
    assert len([span for span in capture.spans if span.name.startswith("chat")]) == 5
    assert root.attributes[semconv.WARNINGS]
    assert root.attributes[semconv.EDIT_COUNT]


def test_in_an_instrumented_agent_each_call_has_one_chat_span_and_edits_are_below_it() -> None:
    exporter = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    script = Script(looks(4))
    stack = ChatStack(PydanticAIClient(script.model))
    stack = stack.use(ToolResultClearer, trigger={"tokens": 1_000}, keep={"messages": 1})
    telemetry = Telemetry(tracer_provider=tracers)
    model = StackedModel(script.model, stack, resolve=lambda kind: telemetry if kind is Telemetry else None)
    agent = Agent(model, tools=[look])
    agent.instrument = InstrumentationSettings(tracer_provider=tracers)
    agent.run_sync("look")
    spans = exporter.get_finished_spans()
    assert len([span for span in spans if span.parent is None]) == 1
    chats = [span for span in spans if span.name.startswith("chat")]
    assert len(chats) == 5
    edits = [span for span in spans if "edit" in span.name or "compact" in span.name]
    assert edits
    assert {span.parent.span_id for span in edits if span.parent} <= {
        span.context.span_id for span in chats if span.context
    }


def test_many_conversations_at_once_see_their_own() -> None:
    def echo(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse([TextPart(str(messages[0].parts[0].content))])  # type: ignore[union-attr]

    model = FunctionModel(echo)
    stack = ChatStack(PydanticAIClient(model)).use(ToolResultClearer, trigger={"tokens": 9}, keep={"messages": 1})
    agent = Agent(StackedModel(model, stack))

    async def one(number: int) -> None:
        assert (await agent.run(f"question {number}")).output == f"question {number}"

    async def run() -> None:
        await asyncio.gather(*map(one, range(200)))

    asyncio.run(run())


def test_layers_that_cannot_work_there_are_refused_with_the_reason() -> None:
    stack, model = ChatStack(ScriptedClient()), Script(["x"]).model
    for unfit, reason in (
        (stack.use(FunctionInvoker, tools=[look]), "the agent runs the tools"),
        (stack.use(ProgressReporter), "agent_turn"),
        (stack.use(Fallback, clients=[ScriptedClient()]), "ChatStackModel"),
    ):
        with pytest.raises(WiringError, match=reason):
            StackedModel(model, unfit)


def test_a_cancelled_run_cancels_the_model_and_ends_its_spans() -> None:
    capture, cancelled, begun = TelemetryCapture(), list[bool](), asyncio.Event()

    async def hang(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)
        raise AssertionError

    model = FunctionModel(hang)
    stack = ChatStack(PydanticAIClient(model)).use(ToolResultClearer, trigger={"tokens": 9}, keep={"messages": 1})
    agent = Agent(StackedModel(model, stack, resolve=capture.resolve))

    async def run() -> None:
        task = asyncio.create_task(agent.run("hi"))
        await begun.wait()
        assert capture.open_spans
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert cancelled == [True]
    assert not capture.open_spans
