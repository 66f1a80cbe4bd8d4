"""The next client is asked when one refuses, and never after a delta."""

from __future__ import annotations

import asyncio
import pickle
import sys
from typing import Any

import pytest

from chatstack import (
    ChatOptions,
    ChatStack,
    ChatStackError,
    ChatUpdate,
    ContextOverflowError,
    ContextWindowGuard,
    Fallback,
    FunctionInvoker,
    InputError,
    Message,
    ProgressReporter,
    ProviderError,
    RateLimitError,
    ServerError,
    ToolCall,
    ToolDeclaration,
    WiringError,
)
from chatstack.errors import (
    AuthenticationError,
    BrokenStreamError,
    FallbackError,
    ProviderConnectionError,
    ProviderTimeoutError,
    RequestRefusedError,
)
from chatstack.testing import ScriptedClient, TelemetryCapture
from tests.layers.fallbacks import BOTH, COUNTER, ask, history, model, size, stack_of

REFUSALS = [
    RateLimitError("slow down", provider="one", retry_after_seconds=9),
    ServerError("overloaded", provider="one", status=529),
    ContextOverflowError(9_000, 8_000, provider="one", status=400),
    ProviderTimeoutError("no answer", provider="one"),
    ProviderConnectionError("nobody there", provider="one"),
    AuthenticationError("wrong key", provider="one", status=401),
    RequestRefusedError("no such model", provider="one", status=404),
    BrokenStreamError("ended at once", provider="one"),
]

# Who is asked


@BOTH
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda error: type(error).__name__)
def test_whatever_the_first_one_refuses_with_the_second_is_asked(refusal: ProviderError, stream: bool) -> None:
    first, second = model(refusal, name="one"), model("here I am")
    response = ask(stack_of(first, second).build(), stream=stream)
    assert response.text == "here I am"
    assert response.model == "model-two"
    assert (len(first.requests), len(second.requests)) == (1, 1)
    assert second.requests[0].messages == first.requests[0].messages
    assert second.requests[0].stream is stream


@BOTH
def test_where_the_first_one_answers_nobody_else_is_asked(stream: bool) -> None:
    first, second = model(name="one"), model()
    assert ask(stack_of(first, second).build(), stream=stream).text == "I am one"
    assert second.requests == []


@BOTH
@pytest.mark.parametrize("held", ["previous_response_id", "conversation", "thread"])
def test_where_the_first_ones_server_holds_the_history_nobody_else_is_asked(held: str, stream: bool) -> None:
    refusal = ServerError("overloaded", provider="one")
    first, second = model(refusal, "back again", name="one"), model()
    client = stack_of(first, second).build()
    options = ChatOptions(extra={held: "it"})
    with pytest.raises(ServerError) as caught:
        ask(client, [Message.tool("call_7", "17 degrees")], stream=stream, options=options)
    assert caught.value is refusal
    assert "the history lies at the server of the first one" in caught.value.__notes__[0]
    assert ask(client, stream=stream, options=options).text == "back again"
    assert second.requests == []


def test_every_call_begins_with_the_first_one() -> None:
    first, second = model(ServerError("down"), "back again", name="one"), model()
    client = stack_of(first, second).build()
    assert [ask(client).text for _ in range(2)] == ["I am two", "back again"]


@BOTH
def test_they_are_asked_in_their_order_until_one_answers(stream: bool) -> None:
    first, second = model(REFUSALS[0], name="one"), model(REFUSALS[1])
    third, fourth = model(name="three"), model(name="four")
    assert ask(stack_of(first, second, third, fourth).build(), stream=stream).text == "I am three"
    assert [len(each.requests) for each in (first, second, third, fourth)] == [1, 1, 1, 0]


@BOTH
def test_an_answer_that_has_begun_is_never_started_again_somewhere_else(stream: bool) -> None:
    first = model(["Once upon", BrokenStreamError("cut")], name="one")
    second = model()
    seen: list[ChatUpdate] = []

    async def read() -> None:
        client = stack_of(first, second).build()
        async with client.get_streaming_response("hello") as answer:
            async for update in answer:
                seen.append(update)

    with pytest.raises(BrokenStreamError):
        asyncio.run(read()) if stream else ask(stack_of(first, second).build())
    assert second.requests == []
    assert [update.text for update in seen] == (["Once upon"] if stream else [])


@pytest.mark.parametrize("error", [InputError("no such option"), ValueError("a bug"), ChatStackError("what")], ids=repr)
def test_what_is_no_refusal_surfaces_and_nobody_else_is_asked(error: Exception) -> None:
    second = model()
    with pytest.raises(type(error)) as caught:
        ask(stack_of(model(error, name="one"), second).build())
    assert caught.value is error
    assert second.requests == []


# Nobody answers


@BOTH
def test_where_nobody_answers_all_that_they_said_is_there_to_read(stream: bool) -> None:
    too_long = ContextOverflowError(9_000, 8_000, provider="one", status=400, code="context_length_exceeded")
    clients = [model(ServerError("no", provider="two")), model(RateLimitError("no", provider="three"), name="three")]
    with pytest.raises(FallbackError) as caught:
        ask(stack_of(model(too_long, name="one"), *clients).build(), stream=stream)
    error = caught.value
    assert [type(each) for each in error.exceptions] == [ContextOverflowError, ServerError, RateLimitError]
    assert error.exceptions[0] is too_long
    assert error.__cause__ is too_long
    assert (error.provider, error.status, error.code) == ("one", 400, "context_length_exceeded")
    assert "none of 3 clients answered (ContextOverflowError, ServerError, RateLimitError)" in str(error)


def refused_by_both() -> None:
    overflow = ContextOverflowError(9_000, 8_000, provider="one")
    ask(stack_of(model(overflow, name="one"), model(ServerError("down", provider="two"))).build())


def test_it_is_caught_as_what_it_is_and_as_a_group() -> None:
    for kind in (FallbackError, ProviderError, ChatStackError, ExceptionGroup):
        with pytest.raises(kind):
            refused_by_both()
    told: list[str] = []
    try:
        refused_by_both()
    except* ContextOverflowError as group:
        told += [str(each) for each in group.exceptions]
    except* ServerError as group:
        told += [str(each) for each in group.exceptions]
    assert told == ["the request does not fit: 9,000 of 8,000 tokens", "down"]


def test_it_can_be_pickled_with_all_that_is_in_it() -> None:
    with pytest.raises(FallbackError) as caught:
        refused_by_both()
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is FallbackError
    assert str(copy) == str(caught.value)
    assert copy.provider == "one"
    first, second = copy.exceptions
    assert isinstance(first, ContextOverflowError)
    assert (first.actual, first.limit, first.provider) == (9_000, 8_000, "one")
    assert isinstance(second, ServerError)


def test_a_fallback_behind_a_fallback_tells_what_both_said() -> None:
    inner = stack_of(model(ServerError("b")), model(ServerError("c"), name="three")).build()
    with pytest.raises(FallbackError) as caught:
        ask(stack_of(model(ServerError("a"), name="one"), inner).build())
    first, second = caught.value.exceptions
    assert str(first) == "a"
    assert isinstance(second, FallbackError)
    assert [str(each) for each in second.exceptions] == ["b", "c"]


# What belongs to one alone


def test_the_model_and_the_extra_of_a_request_are_for_the_first_one_alone() -> None:
    first, second = model(ServerError("down"), name="one"), model()
    tools = (ToolDeclaration("look", "looks", "{}"),)
    options = ChatOptions(
        model="gpt-9", extra={"service_tier": "flex"}, instructions="be brief", max_tokens=50, temperature=0.5,
        tools=tools, tool_choice="none",
    )  # fmt: skip
    assert ask(stack_of(first, second).build(), options=options).model == "model-two"
    assert first.requests[0].options == options
    assert second.requests[0].options == options.but(model=None, extra={})
    assert second.requests[0].conversation_id is None


def test_a_seed_is_a_hint_for_the_first_one_and_a_stop_is_meant_for_everybody() -> None:
    """Responses has neither, and refuses both."""
    first, second = model(ServerError("down"), ServerError("down"), name="one"), model("yes", "yes")
    stack = stack_of(first, second).build()
    ask(stack, options=ChatOptions(seed=7))
    ask(stack, options=ChatOptions(stop=("END",)))
    assert first.requests[0].options.seed == 7
    assert [(each.options.seed, each.options.stop) for each in second.requests] == [(None, ()), (None, ("END",))]


def test_a_client_may_be_a_stack_of_its_own() -> None:
    def look() -> str:
        """Looks."""
        return "sunny"

    second = model(Message.assistant(ToolCall("a", "look", "{}")), "it is sunny", window=600, counter=COUNTER)
    own = (
        ChatStack(second)
        .use(FunctionInvoker, tools=[look])
        .use(ContextWindowGuard, max_context_tokens=500, prune_on_overflow=True)
        .build()
    )
    response = ask(stack_of(model(ServerError("down"), name="one"), own).build(), history(20))
    assert response.text == "it is sunny"
    assert [message.role for message in response.messages] == ["assistant", "tool", "assistant"]
    assert all(size(request) <= 500 for request in second.requests)


def test_a_stack_with_a_guard_of_its_own_is_guarded_by_that_one() -> None:
    second = model(window=600, counter=COUNTER)
    own = ChatStack(second).use(ContextWindowGuard, max_context_tokens=2_000, prune_on_overflow=True).build()
    ask(stack_of(model(ServerError("down"), name="one"), own).build(), history(20))
    assert 600 < size(second.requests[0]) <= 2_000


def test_inside_a_tool_loop_each_round_begins_with_the_first_one() -> None:
    def look() -> str:
        """Looks."""
        return "sunny"

    first = model(Message.assistant(ToolCall("a", "look", "{}")), ServerError("down"), name="one")
    second = model("it is sunny")
    client = ChatStack(first).use(FunctionInvoker, tools=[look]).use(Fallback, clients=[second]).build()
    assert ask(client).text == "it is sunny"
    assert [message.role for message in second.requests[0].messages] == ["user", "assistant", "tool"]


# Spans


def test_each_one_that_is_asked_has_a_span_with_its_own_name() -> None:
    capture = TelemetryCapture()
    stack = ChatStack(model(ServerError("down", status=529), name="one")).use(ProgressReporter)
    ask(stack.use(Fallback, clients=[model()]).build(capture.resolve))
    (root,) = [span for span in capture.spans if span.parent_id is None]
    first, second = (span for span in capture.spans if span.attributes.get("gen_ai.operation.name") == "chat")
    assert [span.parent_id for span in (first, second)] == [root.span_id] * 2
    for span, name in ((first, "one"), (second, "two")):
        assert span.attributes["gen_ai.provider.name"] == name
        assert span.attributes["gen_ai.request.model"] == f"model-{name}"
    assert (first.status, first.attributes["error.type"]) == ("error", "ServerError")
    assert second.status != "error"
    assert root.status != "error"


def test_a_stack_of_its_own_is_traced_once() -> None:
    capture = TelemetryCapture()
    own = ChatStack(model()).build(capture.resolve)
    ask(stack_of(model(ServerError("down"), name="one"), own).build(capture.resolve))
    assert len([span for span in capture.spans if span.attributes.get("gen_ai.provider.name") == "two"]) == 1


# Cancelled and dropped


@pytest.mark.parametrize("slow", ["first", "second"])
def test_a_cancelled_call_asks_nobody_else_and_leaves_nothing_open(slow: str) -> None:
    capture = TelemetryCapture()
    first = model("never", name="one", delay_seconds=10) if slow == "first" else model(ServerError("no"), name="one")
    second, third = model("never", delay_seconds=10), model(name="three")

    async def run() -> None:
        client = stack_of(first, second, third).build(capture.resolve)
        asking = asyncio.ensure_future(client.get_response("hello"))
        await asyncio.sleep(0.05)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
    assert (len(second.requests), len(third.requests)) == (0 if slow == "first" else 1, 0)
    assert (first.open_streams, second.open_streams) == (0, 0)
    assert capture.open_spans == ()


@pytest.mark.skipif(
    sys.version_info >= (3, 12),
    reason="there a refusal that somebody keeps, as this test does, keeps its callers' frames",
)
@pytest.mark.usefixtures("without_collector")
def test_a_stream_that_is_dropped_is_not_kept_alive_by_what_refused_before_it() -> None:
    capture = TelemetryCapture()
    refusal = ContextOverflowError(5_000, 4_000)  # which keeps the frames that it went through
    second = model(ContextOverflowError(2_000, 1_000), "a long answer of many words", window=None)

    async def run() -> None:
        client = stack_of(model(refusal, name="one"), second).build(capture.resolve)
        async for _ in client.get_streaming_response(history(15)):
            break
        await asyncio.sleep(0.01)
        assert second.open_streams == 0
        assert capture.open_spans == ()

    asyncio.run(run())
    assert refusal.__traceback__ is not None


@pytest.mark.parametrize(
    ("clients", "told"),
    [
        ([], "must be a list of chat clients, at least one"),
        (None, "must be a list of chat clients, at least one"),
        ("two", "must be a list of chat clients, at least one"),
        (ScriptedClient(), "must be a list of chat clients, at least one"),
        ([None], r"clients\[0\] is of type NoneType, and no chat client"),
        ([ScriptedClient(), ScriptedClient], r"clients\[1\] is the class ScriptedClient itself; pass an instance"),
    ],
    ids=repr,
)
def test_what_is_no_list_of_clients_fails_at_build(clients: Any, told: str) -> None:
    with pytest.raises(WiringError, match=told) as caught:
        ChatStack(model(name="one")).use(Fallback, clients=clients).build()
    assert (caught.value.layer, caught.value.parameter) == ("Fallback", "clients")
