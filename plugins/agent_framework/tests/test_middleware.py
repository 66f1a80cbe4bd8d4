"""Layers around the model calls of Agent Framework's agents."""

from __future__ import annotations

import asyncio
import copy
from contextlib import nullcontext
from typing import Any, cast

import pytest
from agent_framework import Agent, ChatResponse, Content, Message, chat_middleware, observability
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel

from chatstack import (
    ChatStack,
    ContextOverflowError,
    ContextWindowGuard,
    FunctionInvoker,
    Summarizer,
    ToolResultClearer,
    WiringError,
    agent_turn,
)
from chatstack.testing import ScriptedClient, TelemetryCapture
from chatstack_agent_framework import StackMiddleware
from tests.scripted import TheirClient, TheirError

CLEARING = ChatStack().use(ToolResultClearer, trigger={"tokens": 1_000}, keep={"messages": 1})


def look(number: int) -> str:
    """Look something up."""
    return f"{number}: " + "word " * 400


def call(number: int) -> Content:
    return Content.from_function_call(f"c{number}", "look", arguments=f'{{"number": {number}}}')


def agent(answers: list[Any], stack: ChatStack = CLEARING, **options: Any) -> tuple[Agent[Any], TheirClient]:
    client = TheirClient(answers)
    return Agent(client=client, tools=[look], middleware=[StackMiddleware(stack)], **options), client


def chars(messages: list[Message]) -> int:
    return sum(len(str(c.result or c.text or "")) for m in messages for c in m.contents)


ROUNDS: list[Any] = [[call(0)], [call(1), call(2)], [call(3)], "done now"]


@pytest.mark.parametrize("stream", [False, True])
def test_old_results_are_cleared_within_the_loop_and_the_session_keeps_them(stream: bool) -> None:
    planner, client = agent(list(ROUNDS))

    async def run() -> tuple[str, list[Message]]:
        session = planner.create_session()
        if stream:
            answer = planner.run("look four times", session=session, stream=True)
            text = "".join([update.text async for update in answer])
            assert (await answer.get_final_response()).text == text
        else:
            text = (await planner.run("look four times", session=session)).text
        return text, session.state["in_memory"]["messages"]

    text, kept = asyncio.run(run())
    assert text == "done now"
    assert [len(asked) for asked in client.asked] == [1, 3, 5, 7]
    whole = [content for message in kept for content in message.contents if content.type == "function_result"]
    assert len(whole) == 4
    assert all(len(content.result) > 2_000 for content in whole)
    last = [c for m in client.asked[-1] for c in m.contents if c.type == "function_result"]
    assert [c.call_id for c in last] == ["c0", "c1", "c2", "c3"]
    assert len(str(last[-1].result)) > 2_000
    assert len(str(last[0].result)) < 500
    calls = [c.call_id for m in client.asked[-1] for c in m.contents if c.type == "function_call"]
    assert calls == ["c0", "c1", "c2", "c3"]


def test_streamed_and_whole_the_same_is_sent() -> None:
    asked = []
    for stream in (False, True):
        planner, client = agent(list(ROUNDS))

        async def run(planner: Agent[Any] = planner, stream: bool = stream) -> None:
            answer: Any = planner.run("look four times", stream=stream)
            await (answer.get_final_response() if stream else answer)

        asyncio.run(run())
        asked.append([[(m.role, [(c.type, c.text, c.result) for c in m.contents]) for m in a] for a in client.asked])
    assert asked[0] == asked[1]


@pytest.mark.parametrize("stream", [False, True])
def test_below_the_triggers_the_very_objects_go_through(stream: bool) -> None:
    stack = ChatStack().use(ContextWindowGuard, max_context_tokens=100_000)
    inner, outer = list[Any](), list[Any]()

    @chat_middleware
    async def before(context: Any, call_next: Any) -> None:
        outer.append(list(context.messages))
        await call_next()

    @chat_middleware
    async def after(context: Any, call_next: Any) -> None:
        inner.append((list(context.messages), context.options))
        await call_next()
        inner.append(context.result)

    client = TheirClient(
        [[Content("function_approval_request", id="a", function_call=call(1)), Content.from_text("hm")]]
    )
    message = Message("user", [Content.from_text("hi", annotations=[])], author_name="ann")
    options: Any = {"temperature": 0.5, "metadata": {"x": object()}}

    async def run() -> Any:
        answer: Any = client.get_response(
            [message],
            stream=stream,
            options=options,
            client_kwargs={"middleware": [before, StackMiddleware(stack), after]},
        )
        return await (answer.get_final_response() if stream else answer)

    response = asyncio.run(run())
    assert outer[0][0] is inner[0][0][0]  # the tool loop has copied the caller's, by then
    assert inner[0][0][0].contents[0] is message.contents[0]
    assert inner[0][1]["metadata"] is options["metadata"]
    assert isinstance(response, ChatResponse)
    assert [each.type for each in response.messages[0].contents] == ["function_approval_request", "text"]
    if not stream:
        assert response is inner[1]


def test_the_callers_messages_stay_as_they_are() -> None:
    planner, _ = agent(["fine"])
    history = [Message("user", ["go"])]
    for number in range(6):
        history.append(Message("assistant", [call(number)]))
        history.append(Message("tool", [Content.from_function_result(f"c{number}", result=look(number))]))
    history.append(Message("user", ["and now?"]))
    before = [copy.deepcopy(message.to_dict()) for message in history]
    objects = list(map(id, history))
    asyncio.run(planner.run(history))
    assert [message.to_dict() for message in history] == before
    assert list(map(id, history)) == objects


def test_an_edited_message_keeps_what_was_not_edited() -> None:
    client = TheirClient(["fine"])
    picture = Content.from_uri("https://example.com/a.png", media_type="image/png")
    called = Message("assistant", [Content.from_text("let me"), call(0)], author_name="planner", message_id="m-1")
    results = Message("tool", [Content.from_function_result("c0", result=look(0))], additional_properties={"mine": 1})
    newest = [Message("assistant", [call(1)]), Message("tool", [Content.from_function_result("c1", result=look(1))])]
    history = [Message("user", [picture, "what is it?"]), called, results, *newest]

    async def run() -> None:
        stack = ChatStack().use(ToolResultClearer, trigger={"tokens": 500}, keep={"messages": 1})
        await client.get_response(history, client_kwargs={"middleware": [StackMiddleware(stack)]})

    asyncio.run(run())
    (sent,) = client.asked
    assert sent[0].contents == history[0].contents
    assert sent[0].contents[0] is picture
    assert (sent[1].contents, sent[1].author_name, sent[1].message_id) == (called.contents, "planner", "m-1")
    assert len(sent[2].contents[0].result) < 500 < len(results.contents[0].result)
    assert sent[2].additional_properties["mine"] == 1
    assert [message.contents[0] for message in sent[3:]] == [message.contents[0] for message in newest]


def test_a_summary_is_written_by_the_agents_own_client() -> None:
    stack = ChatStack().use(Summarizer, max_tokens=2_000, keep_recent_turns=1)
    client = TheirClient(["We spoke of the sea.", "fine"])
    history = [Message("user" if n % 2 == 0 else "assistant", [f"{n} " + "sea " * 500]) for n in range(8)]
    history.append(Message("user", ["and now?"]))

    async def run() -> ChatResponse:
        return await client.get_response(history, client_kwargs={"middleware": [StackMiddleware(stack)]})

    assert asyncio.run(run()).text == "fine"
    assert len(client.asked) == 2
    assert "We spoke of the sea." in " ".join(message.text for message in client.asked[1])
    assert client.asked[1][-1].contents[0] is history[-1].contents[0]


def test_an_overflow_is_tried_again_smaller() -> None:
    stack = ChatStack().use(ContextWindowGuard, max_context_tokens=100_000, prune_on_overflow=True)
    client = TheirClient([TheirError("prompt is too long: 3000 tokens > 2000 maximum", 400), "fine"])
    history = [Message("user" if n % 2 == 0 else "assistant", [f"{n} " + "sea " * 300]) for n in range(9)]

    async def run(stream: bool) -> Any:
        answer: Any = client.get_response(
            history, stream=stream, client_kwargs={"middleware": [StackMiddleware(stack)]}
        )
        return await (answer.get_final_response() if stream else answer)

    assert asyncio.run(run(stream=False)).text == "fine"
    assert len(client.asked[0]) == 9 > len(client.asked[1])
    client.answers.insert(0, TheirError("prompt is too long: 3000 tokens > 2000 maximum", 400))
    assert asyncio.run(run(stream=True)).text == "fine"


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_client_raises_surfaces_as_it_was_raised(stream: bool) -> None:
    error = TheirError("slow down", 429)
    client = TheirClient([error])

    async def run() -> None:
        answer: Any = client.get_response(
            [Message("user", ["hi"])], stream=stream, client_kwargs={"middleware": [StackMiddleware(CLEARING)]}
        )
        await (answer.get_final_response() if stream else answer)

    with pytest.raises(TheirError) as raised:
        asyncio.run(run())
    assert raised.value is error


def test_a_refusal_of_a_layer_is_an_error_of_ours() -> None:
    planner, client = agent(["fine"], ChatStack().use(ContextWindowGuard, max_context_tokens=100, strict=True))
    with pytest.raises(ContextOverflowError):
        asyncio.run(planner.run("word " * 1_000))
    assert client.asked == []


class Weather(BaseModel):
    city: str
    degrees: int


@pytest.mark.parametrize("stream", [False, True])
def test_structured_output_is_parsed(stream: bool) -> None:
    planner, _ = agent(['{"city": "Rome", "degrees": 30}'])

    async def run() -> Any:
        answer: Any = planner.run("how warm?", stream=stream, options=cast("Any", {"response_format": Weather}))
        return (await (answer.get_final_response() if stream else answer)).value

    assert asyncio.run(run()) == Weather(city="Rome", degrees=30)


def test_where_the_service_keeps_the_history_layers_stand_aside() -> None:
    client = TheirClient(["fine"])
    results = [Message("tool", [Content.from_function_result("c0", result=look(0))])]
    stack = ChatStack().use(ContextWindowGuard, max_context_tokens=100, strict=True)

    async def run(messages: list[Message], options: Any) -> None:
        await client.get_response(messages, options=options, client_kwargs={"middleware": [StackMiddleware(stack)]})

    asyncio.run(run(results, {}))
    asyncio.run(run([Message("user", ["word " * 500])], {"conversation_id": "conv_1"}))
    assert len(client.asked) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("theirs", [False, True])
def test_the_spans_are_one_tree_whoever_traces_the_calls(
    theirs: bool, stream: bool, exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observability.OBSERVABILITY_SETTINGS, "enable_instrumentation", theirs)
    assert observability.OBSERVABILITY_SETTINGS.ENABLED is theirs
    stack = ChatStack().use(ContextWindowGuard, max_context_tokens=1_500)
    planner, client = agent(list(ROUNDS), stack, name="planner")

    async def run() -> None:
        with nullcontext() if theirs else agent_turn("planner"):
            answer: Any = planner.run("look four times", stream=stream)
            await (answer.get_final_response() if stream else answer)

    asyncio.run(run())
    spans = exported.get_finished_spans()
    (root,) = [span for span in spans if span.parent is None]
    assert root.name == "invoke_agent planner"
    chats = [span for span in spans if span.name.startswith("chat ")]
    assert len(chats) == len(client.asked) == 4
    assert sum(int(cast("Any", span.attributes)["gen_ai.usage.input_tokens"]) for span in chats) == 400
    if not theirs:
        assert "context_window_exceeded" in cast("Any", root.attributes)["chatstack.warnings"]


def test_a_warning_is_seen_where_agent_framework_traces() -> None:
    capture = TelemetryCapture()
    client = TheirClient(list(ROUNDS))
    layer = StackMiddleware(ChatStack().use(ContextWindowGuard, max_context_tokens=1_500), resolve=capture.resolve)
    asyncio.run(Agent(client=client, tools=[look], middleware=[layer]).run("look four times"))
    assert capture.warnings == ("context_window_near_limit", "context_window_exceeded")


def test_a_reader_that_stops_closes_the_answer() -> None:
    planner, client = agent(["one two three four five six"])

    async def run() -> None:
        stream = planner.run("go", stream=True)
        async for _ in stream:
            break
        close = getattr(stream, "close", None)
        if close is None:
            pytest.skip("streams of this version cannot be closed")
        await close()
        assert client.closed == 1
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


def test_conversations_side_by_side_do_not_meet() -> None:
    layer = StackMiddleware(CLEARING)

    async def one(number: int) -> None:
        client = TheirClient([[call(number)], f"answer {number}"])
        planner = Agent(client=client, tools=[look], middleware=[layer])
        response = await planner.run(f"question {number}", session=planner.create_session())
        assert response.text.endswith(f"answer {number}")
        assert client.asked[1][0].text == f"question {number}"
        assert str(client.asked[1][2].contents[0].result).startswith(f"{number}: ")

    async def run() -> None:
        await asyncio.gather(*map(one, range(300)))

    asyncio.run(run())


def test_what_cannot_work_there_is_refused() -> None:
    with pytest.raises(WiringError, match="tool"):
        StackMiddleware(ChatStack(ScriptedClient(["x"])).use(FunctionInvoker, tools=[]))
    with pytest.raises(WiringError, match="pass a ChatStack"):
        StackMiddleware(cast("Any", ScriptedClient(["x"])))
