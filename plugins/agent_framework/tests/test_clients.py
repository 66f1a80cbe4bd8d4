"""A stack as a chat client of Agent Framework's, and a chat client of theirs as the provider of a stack."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest
from agent_framework import Agent, Content, Message
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel

from chatstack import (
    ChatOptions,
    ChatRequest,
    ChatStack,
    ChatUpdate,
    ContextWindowGuard,
    File,
    FunctionInvoker,
    Image,
    InputError,
    RateLimitError,
    Reasoning,
    Text,
    ToolCall,
    ToolDeclaration,
    Usage,
    WiringError,
    tool,
)
from chatstack import Message as Ours
from chatstack.testing import ScriptedClient
from chatstack_agent_framework import AgentFrameworkClient, ChatStackClient
from chatstack_agent_framework.contents import Counterparts, from_theirs, kept_of, to_theirs
from chatstack_agent_framework.options import from_their_options, to_their_options
from tests.scripted import TheirClient, TheirError


def look(number: int) -> str:
    """Look something up."""
    return f"found {number}"


@tool
def recall(name: str) -> str:
    """Recall something."""
    return f"recalled {name}"


CALLS = Ours(
    "assistant",
    (
        Reasoning("hm", '{"signature": "abc"}', "anthropic"),
        ToolCall("c1", "look", '{"number":1}', extra_json='{"openai": {"signature": "s"}}'),
        ToolCall("c2", "look", '{"number":2}'),
    ),
)


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_runs_over_a_stack_and_carries_out_its_own_tools(stream: bool) -> None:
    model = ScriptedClient([CALLS, "both found"])
    stack = ChatStack(model).use(ContextWindowGuard, max_context_tokens=100_000)
    planner = Agent(client=ChatStackClient(stack.build()), tools=[look], instructions="Be brief.")

    async def run() -> Any:
        session = planner.create_session(session_id="s-1")
        answer: Any = planner.run("look twice", stream=stream, session=session)
        return await (answer.get_final_response() if stream else answer)

    response = asyncio.run(run())
    assert response.text.endswith("both found")
    first, second = model.requests
    assert first.conversation_id == second.conversation_id == "s-1"
    assert first.options.instructions == "Be brief."
    assert [each.name for each in first.options.tools if isinstance(each, ToolDeclaration)] == ["look"]
    assert second.messages[1] == CALLS
    assert [(each.call_id, each.output) for m in second.messages for each in m.results] == [
        ("c1", "found 1"),
        ("c2", "found 2"),
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_tools_of_the_stack_run_inside_and_are_told_for_information(stream: bool) -> None:
    model = ScriptedClient([Ours("assistant", (ToolCall("r1", "recall", '{"name": "ann"}'),)), "it was ann", "yes"])
    stack = ChatStack(model).use(FunctionInvoker, tools=[recall])
    planner = Agent(client=ChatStackClient(stack.build()), tools=[look])

    async def run() -> Any:
        session = planner.create_session()
        answer: Any = planner.run("who was it?", stream=stream, session=session)
        response = await (answer.get_final_response() if stream else answer)
        await planner.run("sure?", session=session)
        return response

    response = asyncio.run(run())
    types = [content.type for message in response.messages for content in message.contents if content.type != "usage"]
    assert types == ["function_call", "function_result", "text"]
    assert response.text.strip() == "it was ann"
    last = model.requests[-1].messages
    assert [each.role for each in last] == ["user", "assistant", "tool", "assistant", "user"]
    assert last[2].results[0].output == "recalled ann"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("loop", [False, True])
def test_a_call_of_a_tool_that_nobody_has_is_answered(stream: bool, loop: bool) -> None:
    model = ScriptedClient([Ours("assistant", (ToolCall("c1", "lok", '{"number": 1}'),)), "sorry"])
    stack = ChatStack(model).use(FunctionInvoker, tools=[recall]) if loop else ChatStack(model)
    planner = Agent(client=ChatStackClient(stack.build()), tools=[look])

    async def run() -> Any:
        answer: Any = planner.run("look", stream=stream)
        return await (answer.get_final_response() if stream else answer)

    response = asyncio.run(run())
    assert response.text.strip() == "sorry"
    (result,) = model.requests[1].messages[-1].results
    assert result.call_id == "c1"
    assert result.is_error


class Weather(BaseModel):
    city: str


@pytest.mark.parametrize("stream", [False, True])
def test_structured_output_and_usage(stream: bool) -> None:
    model = ScriptedClient(['{"city": "Rome"}'])
    client = ChatStackClient(ChatStack(model).build())

    async def run() -> Any:
        answer: Any = client.get_response(
            [Message("user", ["where?"])], stream=stream, options=cast("Any", {"response_format": Weather})
        )
        return await (answer.get_final_response() if stream else answer)

    response = asyncio.run(run())
    assert response.value == Weather(city="Rome")
    shape = model.requests[0].options.output_schema
    assert shape is not None
    assert shape.name == "Weather"
    assert response.usage_details["input_token_count"] >= 0


class InParts(ScriptedClient):
    """Tells the input as it begins to answer, and the rest at the end."""

    async def _play(self, answer: Any, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        yield ChatUpdate(text="so ", usage=Usage(1_500, 0, 500))
        yield ChatUpdate(message_done=Ours.assistant("so "), usage=Usage(0, 20), finish_reason="stop")


@pytest.mark.parametrize("stream", [False, True])
def test_usage_that_is_told_in_parts_is_added_up(stream: bool) -> None:
    client = ChatStackClient(ChatStack(InParts(["so"])).build())

    async def run() -> Any:
        answer: Any = client.get_response([Message("user", ["where?"])], stream=stream)
        return await (answer.get_final_response() if stream else answer)

    used = asyncio.run(run()).usage_details
    assert (used["input_token_count"], used["output_token_count"]) == (1_500, 20)


def test_their_client_answers_for_a_stack() -> None:
    client = TheirClient(
        [[Content.from_text("I look. "), Content.from_function_call("c1", "look", arguments={"number": 1})]]
    )
    built = ChatStack(AgentFrameworkClient(client)).build()
    declaration = ToolDeclaration("look", "Look.", '{"type": "object", "properties": {"number": {"type": "integer"}}}')
    options = ChatOptions(tools=(declaration,), temperature=0.5, tool_choice="look", instructions="Be brief.")

    async def run() -> tuple[Any, Any, str]:
        whole = await built.get_response("go", options=options)
        async with built.get_streaming_response("go", options=options) as stream:
            text = "".join([update.text async for update in stream])
            return whole, await stream.response(), text

    whole, streamed, text = asyncio.run(run())
    assert whole.messages == streamed.messages
    assert whole.messages[0].parts == (Text("I look. "), ToolCall("c1", "look", '{"number": 1}'))
    assert text == whole.text == "I look. "
    assert whole.usage == streamed.usage
    assert (whole.usage.input_tokens, whole.usage.cache_read_tokens) == (100, 64)
    assert client.options[0]["tool_choice"] == {"mode": "required", "required_function_name": "look"}
    assert client.options[0]["tools"][0].parameters()["properties"] == {"number": {"type": "integer"}}
    assert client.options[0]["instructions"] == "Be brief."
    assert len(client.asked) == 2  # its own tool loop is left out


def test_the_stacks_tool_loop_runs_over_their_client() -> None:
    client = TheirClient([[Content.from_function_call("r1", "recall", arguments='{"name": "ann"}')], "it was ann"])
    built = ChatStack(AgentFrameworkClient(client)).use(FunctionInvoker, tools=[recall]).build()
    response = asyncio.run(built.get_response("who?"))
    assert response.text == "it was ann"
    assert client.asked[1][2].contents[0].result == "recalled ann"


def test_errors_of_their_side_are_told() -> None:
    built = ChatStack(AgentFrameworkClient(TheirClient([TheirError("slow down", 429)]))).build()
    with pytest.raises(RateLimitError) as raised:
        asyncio.run(built.get_response("hi"))
    assert isinstance(raised.value.__cause__, TheirError)


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_over_a_stack_over_their_client_is_one_tree(stream: bool, exported: InMemorySpanExporter) -> None:
    client = TheirClient([[Content.from_function_call("c1", "look", arguments='{"number": 1}')], "found"])
    built = ChatStack(AgentFrameworkClient(client)).build()
    planner = Agent(client=ChatStackClient(built), tools=[look], name="planner")

    async def run() -> None:
        answer: Any = planner.run("look", stream=stream)
        await (answer.get_final_response() if stream else answer)

    asyncio.run(run())
    spans = exported.get_finished_spans()
    (root,) = [span for span in spans if span.parent is None]
    assert root.name == "invoke_agent planner"
    names = sorted(span.name for span in spans if span is not root)
    assert names == ["chat gpt-5-mini", "chat gpt-5-mini", "execute_tool look"]


PARTS = [
    Content.from_text("hi"),
    Content.from_text_reasoning(text="hm", protected_data="signed"),
    Content.from_data(b"\x89PNG", "image/png"),
    Content.from_uri("https://example.com/a.pdf", media_type="application/pdf"),
    Content.from_function_call("c", "f", arguments='{"a":1}'),
    Content.from_function_result("c", result=[Content.from_text("x"), Content.from_data(b"\x89PNG", "image/png")]),
    Content.from_hosted_file("file-1"),
]


@pytest.mark.parametrize("content", PARTS, ids=lambda content: content.type)
def test_contents_come_back_as_they_were(content: Content) -> None:
    message = Message("assistant", [content])
    ours = from_theirs(message)
    theirs = to_theirs(ours, Counterparts())
    assert theirs.contents[0].to_dict() == content.to_dict()
    assert from_theirs(theirs) == ours


def test_an_edited_message_of_a_stacks_is_never_sent_with_contents_of_another_one() -> None:
    history: list[Message] = []
    for at in range(300):
        named = [f"{at}a", f"{at}b", f"{at}c"]
        calls = [ToolCall(each, "look", "{}") for each in named]
        said = Ours("assistant", (Reasoning("hm", '{"signature": "s"}', "anthropic"), *calls))
        contents = [Content.from_function_call(each, "look", arguments="{}", informational_only=True) for each in named]
        contents[-1].additional_properties.update(kept_of(said))
        history.append(Message("assistant", [Content.from_text_reasoning(text="hm"), *contents]))
    counterparts = Counterparts()
    ours = [from_theirs(message, counterparts) for message in history]
    for message, theirs in zip(ours, history, strict=True):
        first, second, third = message.calls
        made = ToolCall(first.id, "look", '{"cleared": true}')
        edited = message.edited(parts=(message.parts[0], made, second, third))
        sent = to_theirs(edited, counterparts).contents
        assert [each.call_id for each in sent] == [None, first.id, second.id, third.id]
        assert sent[1].arguments == made.arguments
        assert sent[2] is theirs.contents[2]
        assert from_theirs(Message("assistant", sent)).calls == (made, second, third)


def test_files_that_lie_at_the_provider_reach_it_and_what_cannot_be_sent_is_refused() -> None:
    model = ScriptedClient(["a report"])
    planner = Agent(client=ChatStackClient(model))
    pdf = Content.from_hosted_file("file-1", media_type="application/pdf", name="a.pdf")
    asked = Message("user", ["what is it?", pdf, Content.from_hosted_file("file-2", media_type="image/png")])
    asyncio.run(planner.run(asked))
    file = File(file_id="file-1", media_type="application/pdf", name="a.pdf")
    (message,) = model.requests[0].messages
    assert message.parts == (Text("what is it?"), file, Image(file_id="file-2", media_type="image/png"))
    assert to_theirs(message, Counterparts()).contents[1].to_dict() == pdf.to_dict()
    store = Message("user", ["what is it?", Content.from_hosted_vector_store("vs-1")])
    with pytest.raises(InputError, match="hosted_vector_store"):
        asyncio.run(planner.run(store))
    client = TheirClient(["fine"])
    asyncio.run(Agent(client=ChatStackClient(ChatStack(AgentFrameworkClient(client)).build())).run(store))
    assert client.asked[0][0].contents[1] is store.contents[1]


def test_options_come_back_as_they_were() -> None:
    given = {
        "model": "m",
        "temperature": 0.1,
        "stop": ["x"],
        "tools": [{"type": "web_search"}],
        "tool_choice": "required",
        "allow_multiple_tool_calls": False,
        "conversation_id": "conv_1",
        "store": True,
    }
    assert to_their_options(from_their_options(given)) == given
    with pytest.raises(InputError, match="reasoning_effort"):
        to_their_options(ChatOptions(reasoning_effort="high"))


def test_what_is_no_client_is_refused() -> None:
    with pytest.raises(WiringError, match="ChatStackClient"):
        ChatStackClient(cast("Any", TheirClient(["x"])))
    for wrong in (TheirClient, object(), ScriptedClient(["x"])):
        with pytest.raises(WiringError, match="AgentFrameworkClient"):
            AgentFrameworkClient(cast("Any", wrong))
