"""A stack's context layers around an agent's model calls."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain_core.exceptions import ContextOverflowError as TheirOverflowError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import BaseModel

from chatstack import (
    ChatStack,
    ContextWindowGuard,
    Fallback,
    FunctionInvoker,
    ProgressReporter,
    Summarizer,
    ToolResultClearer,
    WiringError,
    agent_turn,
    semconv,
)
from chatstack.nodes.conversions import Conversions
from chatstack.testing import ScriptedClient, TelemetryCapture
from chatstack_langchain import LangChainClient, StackMiddleware
from chatstack_langchain.turns import content_of, plainly
from tests.models import ScriptedModel, called

LONG = "word " * 400


def look(place: str) -> str:
    """Look around there."""
    return f"{place}: {LONG}"


def clearing(model: Any, capture: TelemetryCapture | None = None, *, at: int = 1_000) -> StackMiddleware:
    stack = ChatStack(LangChainClient(model)).use(ToolResultClearer, trigger={"tokens": at}, keep={"messages": 1})
    return StackMiddleware(stack, resolve=None if capture is None else capture.resolve)


def looks(rounds: int) -> list[Any]:
    return [*(called((f"c{number}", "look", {"place": f"p{number}"})) for number in range(rounds)), "done"]


def outputs(messages: list[Any]) -> list[str]:
    return [str(each.content) for each in messages if isinstance(each, ToolMessage)]


@pytest.mark.parametrize("is_async", [True, False])
def test_what_layers_clear_is_cleared_for_the_model_and_kept_in_the_state(is_async: bool) -> None:
    model = ScriptedModel(answers=looks(4))
    agent = create_agent(model, [look], middleware=[clearing(model)], system_prompt="Be brief.")
    given: Any = {"messages": [HumanMessage("look around")]}
    state = asyncio.run(agent.ainvoke(given)) if is_async else agent.invoke(given)
    assert all(LONG in each for each in outputs(state["messages"]))
    assert len(outputs(state["messages"])) == 4
    last = outputs(model.received[-1])
    assert len(last) == 4
    assert LONG in last[-1]
    assert not any(LONG in each for each in last[:-1])
    assert isinstance(model.received[-1][0], SystemMessage)


def test_an_edited_message_keeps_its_fields_and_the_others_their_objects() -> None:
    model = ScriptedModel(answers=looks(4))
    agent = create_agent(model, [look], middleware=[clearing(model)])
    state = agent.invoke({"messages": [HumanMessage("look around")]})
    kept = {each.id: each for each in state["messages"]}
    for sent in model.received[-1]:
        assert sent.id in kept
        if sent is not kept[sent.id]:
            assert isinstance(sent, ToolMessage)
            assert sent.model_copy(update={"content": ""}) == kept[sent.id].model_copy(update={"content": ""})
    assert any(sent is kept[sent.id] for sent in model.received[-1])


def test_between_edits_each_request_begins_with_the_one_before() -> None:
    model = ScriptedModel(answers=looks(30))
    agent = create_agent(model, [look], middleware=[clearing(model, at=4_000)])
    agent.invoke({"messages": [HumanMessage("look around")]}, {"recursion_limit": 200})
    broken = 0
    for before, after in zip(model.received, model.received[1:], strict=False):
        broken += [each.content for each in before] != [each.content for each in after[: len(before)]]
    assert 1 <= broken <= 12


def test_below_every_trigger_the_request_is_the_very_same() -> None:
    seen: list[Any] = []

    class Innermost(AgentMiddleware[Any, Any, Any]):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            seen.append(request)
            return handler(request)

    class Outermost(AgentMiddleware[Any, Any, Any]):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            seen.append(request)
            return handler(request)

    model = ScriptedModel(answers=looks(2))
    layers = [Outermost(), clearing(model, at=100_000), Innermost()]
    create_agent(model, [look], middleware=layers).invoke({"messages": [HumanMessage("look around")]})
    assert len(seen) == 6
    assert all(one is other for one, other in zip(seen[::2], seen[1::2], strict=True))


def test_messages_are_equal_and_identical_before_and_after() -> None:
    model = ScriptedModel(answers=looks(4))
    given = [HumanMessage("look around", id="h1")]
    before = copy.deepcopy(given)
    create_agent(model, [look], middleware=[clearing(model)]).invoke({"messages": given})
    assert given == before


def test_the_state_is_the_same_as_without_the_layer() -> None:
    def run(*middleware: Any) -> list[Any]:
        parallel = called(("a", "look", {"place": "x"}), ("b", "look", {"place": "y"}), text="both")
        parallel.usage_metadata = UsageMetadata(input_tokens=10, output_tokens=2, total_tokens=12)
        model = ScriptedModel(answers=[parallel, "done"])
        agent = create_agent(model, [look], middleware=middleware)
        found: list[Any] = agent.invoke({"messages": [HumanMessage("look around", id="h1")]})["messages"]
        return [each.model_dump(exclude={"id"}) for each in found]

    assert run() == run(clearing(ScriptedModel(answers=["x"])))


def test_tokens_are_streamed_by_the_agents_own_model() -> None:
    model = ScriptedModel(answers=[called(("c1", "look", {"place": "p"}), text="let me see"), "all is well here"])
    agent = create_agent(model, [look], middleware=[clearing(model)])

    async def run() -> list[str]:
        stream = agent.astream({"messages": [HumanMessage("look")]}, stream_mode="messages")
        return [str(chunk.text) async for chunk, _ in stream if isinstance(chunk, AIMessage)]

    assert "".join(asyncio.run(run())) == "let me seeall is well here"


def test_a_summary_is_written_by_the_stacks_provider_and_not_streamed_to_the_user() -> None:
    model = ScriptedModel(answers=looks(8))
    writer = ScriptedModel(answers=["SUMMARY of what was seen"])
    stack = ChatStack(LangChainClient(writer)).use(Summarizer, max_tokens=3_000, keep_recent_turns=1)
    agent = create_agent(model, [look], middleware=[StackMiddleware(stack)])

    async def run() -> str:
        stream = agent.astream({"messages": [HumanMessage("look")]}, {"recursion_limit": 100}, stream_mode="messages")
        return "".join([str(chunk.text) async for chunk, _ in stream if isinstance(chunk, AIMessage)])

    assert asyncio.run(run()) == "done"
    assert writer.received
    assert any("SUMMARY of what was seen" in str(each.content) for each in model.received[-1])


def test_structured_output_is_as_without_the_layer() -> None:
    class Answer(BaseModel):
        place: str

    model = ScriptedModel(answers=[called(("c1", "Answer", {"place": "here"}))])
    agent = create_agent(model, [look], middleware=[clearing(model)], response_format=Answer)
    state = agent.invoke({"messages": [HumanMessage("where?")]})
    assert state["structured_response"] == Answer(place="here")


@pytest.mark.parametrize("is_async", [True, False])
def test_an_interrupt_pauses_and_a_checkpoint_resumes(is_async: bool) -> None:
    model = ScriptedModel(answers=looks(3))
    pausing = HumanInTheLoopMiddleware(interrupt_on={"look": True})
    agent = create_agent(model, [look], middleware=[pausing, clearing(model)], checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "t-1"}}

    def ask(given: Any) -> Any:
        return asyncio.run(agent.ainvoke(given, thread)) if is_async else agent.invoke(given, thread)

    state = ask({"messages": [HumanMessage("look")]})
    for _ in range(3):
        assert state["__interrupt__"]
        state = ask(Command(resume={"decisions": [{"type": "approve"}]}))
    assert state["messages"][-1].content == "done"
    assert LONG not in outputs(model.received[-1])[0]
    assert len(outputs(state["messages"])) == 3


def test_decisions_hold_over_calls_of_the_agent() -> None:
    model = ScriptedModel(answers=looks(4))
    agent = create_agent(model, [look], middleware=[clearing(model)], checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "t-1"}}
    agent.invoke({"messages": [HumanMessage("look")]}, thread)
    first = [each.content for each in model.received[-1]]
    agent.invoke({"messages": [HumanMessage("and now?")]}, thread)
    assert [each.content for each in model.received[-1]][: len(first)] == first


@pytest.mark.parametrize("is_async", [True, False])
def test_an_overflow_that_the_model_reports_is_pruned_and_asked_again(is_async: bool) -> None:
    overflow = ValueError("prompt is too long: 9000 tokens > 1500 maximum")
    model = ScriptedModel(answers=[*looks(3)[:3], overflow, "done"])
    stack = ChatStack(LangChainClient(model)).use(
        ContextWindowGuard, max_context_tokens=100_000, prune_on_overflow=True
    )
    agent = create_agent(model, [look], middleware=[StackMiddleware(stack)])
    given: Any = {"messages": [HumanMessage("look")]}
    state = asyncio.run(agent.ainvoke(given)) if is_async else agent.invoke(given)
    assert state["messages"][-1].content == "done"
    assert len(outputs(state["messages"])) == 3
    assert sum(map(len, outputs(model.received[-1]))) < sum(map(len, outputs(model.received[-2])))


@pytest.mark.parametrize("is_async", [True, False])
def test_what_the_model_raises_surfaces_as_it_is(is_async: bool) -> None:
    class Refused(Exception):
        status_code = 400

    error = Refused("bad")
    model = ScriptedModel(answers=[error])
    agent = create_agent(model, [look], middleware=[clearing(model)])
    given: Any = {"messages": [HumanMessage("look")]}
    with pytest.raises(Refused) as raised:
        asyncio.run(agent.ainvoke(given)) if is_async else agent.invoke(given)
    assert raised.value is error
    assert error.__cause__ is None


def test_a_context_that_cannot_be_made_to_fit_is_langchains_overflow() -> None:
    model = ScriptedModel(answers=["fine"])
    stack = ChatStack(LangChainClient(model)).use(ContextWindowGuard, max_context_tokens=300, strict=True)
    agent = create_agent(model, [look], middleware=[StackMiddleware(stack)])
    with pytest.raises(TheirOverflowError):
        agent.invoke({"messages": [HumanMessage(LONG * 3)]})
    assert not model.received


def test_all_model_calls_of_a_run_are_one_span_tree_with_its_warnings() -> None:
    capture = TelemetryCapture()
    model = ScriptedModel(answers=looks(4))
    stack = ChatStack(LangChainClient(model))
    stack = stack.use(ToolResultClearer, trigger={"tokens": 1_000}, keep={"messages": 1})
    stack = stack.use(ContextWindowGuard, max_context_tokens=1_100)
    agent = create_agent(model, [look], middleware=[StackMiddleware(stack, resolve=capture.resolve)])

    async def run() -> None:
        with agent_turn("looker", conversation_id="t-1", telemetry=capture.telemetry):
            await agent.ainvoke({"messages": [HumanMessage("look")]}, {"configurable": {"thread_id": "t-1"}})

    asyncio.run(run())
    (root,) = [span for span in capture.spans if span.parent_id is None]
    assert root.name == "invoke_agent looker"
    chats = [span for span in capture.spans if span.name.startswith("chat")]
    assert len(chats) == 5
    assert {span.parent_id for span in chats} == {root.span_id}
    assert root.attributes[semconv.WARNINGS]
    assert root.attributes[semconv.EDIT_COUNT]
    assert chats[-1].attributes["gen_ai.conversation.id"] == "t-1"


def test_synchronous_calls_are_in_the_same_tree() -> None:
    capture = TelemetryCapture()
    model = ScriptedModel(answers=looks(2))
    agent = create_agent(model, [look], middleware=[clearing(model, capture)])
    with agent_turn("looker", telemetry=capture.telemetry):
        agent.invoke({"messages": [HumanMessage("look")]})
    assert len({span.trace_id for span in capture.spans}) == 1


def test_many_conversations_at_once_see_their_own() -> None:
    class Echo(ScriptedModel):
        def _next(self, messages: list[Any], kwargs: Any) -> AIMessage:
            return AIMessage(str(messages[0].content))

    model = Echo(answers=["x"])
    agent = create_agent(model, [], middleware=[clearing(model)])

    async def one(number: int) -> None:
        thread: Any = {"configurable": {"thread_id": str(number)}}
        state = await agent.ainvoke({"messages": [HumanMessage(f"question {number}")]}, thread)
        assert state["messages"][-1].content == f"question {number}"

    async def run() -> None:
        await asyncio.gather(*map(one, range(200)))

    asyncio.run(run())


def test_it_works_synchronously_inside_of_a_running_loop() -> None:
    async def run() -> str:
        model = ScriptedModel(answers=looks(3))
        agent = create_agent(model, [look], middleware=[clearing(model)])
        return str(agent.invoke({"messages": [HumanMessage("look")]})["messages"][-1].content)

    assert asyncio.run(run()) == "done"


def test_layers_that_cannot_work_there_are_refused_with_the_reason() -> None:
    stack = ChatStack(ScriptedClient())
    for unfit, reason in (
        (stack.use(FunctionInvoker, tools=[look]), "the agent runs the tools"),
        (stack.use(ProgressReporter), "agent_turn"),
        (stack.use(Fallback, clients=[ScriptedClient()]), "ChatStackModel"),
    ):
        with pytest.raises(WiringError, match=reason):
            StackMiddleware(unfit)
    with pytest.raises(WiringError, match="pass a ChatStack"):
        StackMiddleware(stack.build())  # type: ignore[arg-type]


def test_equal_messages_are_converted_once_and_one_that_somebody_changes_again() -> None:
    converted: list[Any] = []
    known = Conversions(lambda message: (converted.append(message), plainly(message))[1], content_of)
    message = called(("c1", "look", {"place": "a"}), text="I look")
    first = known.of(message)
    assert known.of(message) is first
    message.tool_calls[0]["args"]["place"] = "b"
    assert known.of(message)[0].calls[0].arguments == '{"place": "b"}'
    message.content = "I looked"
    assert known.of(message)[0].text == "I looked"
    assert len(converted) == 3
    assert known.of(message.model_copy(deep=True)) is known.of(message)
    tool_result = ToolMessage("seen", tool_call_id="c1", artifact=object())
    assert known.of(tool_result) is known.of(tool_result)


def test_a_cancelled_run_cancels_the_model_and_ends_its_spans() -> None:
    capture, cancelled, begun = TelemetryCapture(), list[bool](), asyncio.Event()

    class Hanging(ScriptedModel):
        async def _agenerate(self, *given: Any, **named: Any) -> Any:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(True)

    model = Hanging(answers=["x"])
    agent = create_agent(model, [look], middleware=[clearing(model, capture)])

    async def run() -> None:
        task = asyncio.create_task(agent.ainvoke({"messages": [HumanMessage("look")]}))
        await begun.wait()
        assert capture.open_spans
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert cancelled == [True]
    assert not capture.open_spans
    assert capture.spans[-1].attributes["error.type"] == "cancelled"


def test_what_is_no_exception_cancels_a_synchronous_run_and_surfaces() -> None:
    capture = TelemetryCapture()

    class Interrupted(ScriptedModel):
        def _generate(self, *given: Any, **named: Any) -> Any:
            raise KeyboardInterrupt

    model = Interrupted(answers=["x"])
    layer = clearing(model, capture)
    agent = create_agent(model, [look], middleware=[layer])
    with pytest.raises(KeyboardInterrupt):
        agent.invoke({"messages": [HumanMessage("look")]})
    assert not capture.open_spans
