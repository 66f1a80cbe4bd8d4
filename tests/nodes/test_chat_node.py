"""The chat node: trims for one call, and gives back the whole."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import pytest
from injectq import Inject, InjectQ

from chatstack import (
    ChatOptions,
    ChatRequest,
    ChatStack,
    ChatStream,
    ClearThenDrop,
    Fallback,
    FunctionInvoker,
    InputError,
    Message,
    ModelTracer,
    OldestFirst,
    Plan,
    ProviderInfo,
    RateLimitError,
    Strategy,
    ToolCall,
    TurnTimeoutError,
    WiringError,
    tool,
)
from chatstack.context.edits.context import Context
from chatstack.context.requests.services import ContextServices
from chatstack.nodes.chat_node import ChatNode
from chatstack.nodes.managers import AwaitedContextManager, BaseContextManager, MessageContextManager
from chatstack.nodes.state import AgentState
from chatstack.testing import ScriptedClient, TelemetryCapture
from tests.context.strictness import size


def turns(count: int) -> list[Message]:
    asked = [(Message.user(f"question {n}"), Message.assistant(f"answer {n}")) for n in range(count)]
    return [*(message for each in asked for message in each), Message.user("and now?")]


def run(node: ChatNode, state: Any, **named: Any) -> Any:
    return asyncio.run(node(state, **named))


def sent_to(model: ScriptedClient) -> list[Message]:
    return list(model.requests[-1].messages)


class Summarizing(AwaitedContextManager[AgentState]):
    """Keeps the last message alone, after some waiting."""

    async def atrim_context(self, state: AgentState) -> AgentState:
        await asyncio.sleep(0)
        return self.with_messages(state, state.messages[-1:])


class Rough(BaseContextManager[AgentState]):
    """Changes the very state that it is given, in every way it can."""

    def trim_context(self, state: AgentState) -> AgentState:
        assert isinstance(state.messages, list)
        del state.messages[:-1]
        state.messages = list(state.messages)
        return state

    async def atrim_context(self, state: AgentState) -> AgentState:
        return self.trim_context(state)


TRIMMING: list[BaseContextManager[Any] | Strategy] = [
    MessageContextManager(1),
    Summarizing(),
    Rough(),
    OldestFirst(30, 15),
]


@pytest.mark.parametrize("manager", TRIMMING, ids=lambda manager: type(manager).__name__)
def test_what_is_sent_is_trimmed_and_what_goes_on_is_whole(manager: BaseContextManager[Any] | Strategy) -> None:
    """The original hands the trimmed state on to the next node, and to the checkpointer."""
    model = ScriptedClient(["fine"])
    history = turns(3)
    state = AgentState(list(history), {"step": 1})
    after = run(ChatNode(model, context_manager=manager), state)
    assert len(sent_to(model)) < len(history)
    assert sent_to(model)[-1] is history[-1]
    assert after == AgentState([*history, Message.assistant("fine")], {"step": 1})
    assert state == AgentState(history, {"step": 1})


@pytest.mark.parametrize("manager", TRIMMING, ids=lambda manager: type(manager).__name__)
def test_many_turns_through_a_node_lose_nothing(manager: BaseContextManager[Any] | Strategy) -> None:
    model = ScriptedClient()
    node = ChatNode(model, context_manager=manager)
    state = AgentState()
    for number in range(8):
        state = run(node, AgentState([*state.messages, Message.user(f"question {number}")], state.extra))
    assert len(state.messages) == 16
    assert max(len(request.messages) for request in model.requests) < 12


@pytest.mark.parametrize("named", [{"trim_context": False, "context_manager": MessageContextManager(1)}, {}])
def test_without_trimming_everything_is_sent(named: dict[str, Any]) -> None:
    model = ScriptedClient()
    run(ChatNode(model, **named), AgentState(turns(3)))
    assert sent_to(model) == turns(3)


def test_a_client_with_a_context_layer_is_something_to_trim_with() -> None:
    model = ScriptedClient()
    client = ChatStack(model).use(OldestFirst(20, 10)).build()
    run(ChatNode(client, trim_context=True), AgentState(turns(3)))
    assert len(sent_to(model)) < 6


def test_a_strategy_is_not_applied_where_trimming_is_off() -> None:
    model = ScriptedClient()
    run(ChatNode(model, trim_context=False, context_manager=OldestFirst(20, 10)), AgentState(turns(3)))
    assert sent_to(model) == turns(3)


def test_the_answer_alone_can_be_had() -> None:
    """For graphs that add to the state by themselves."""
    model = ScriptedClient(["fine"])
    answer = asyncio.run(ChatNode(model, context_manager=MessageContextManager(1)).answer(AgentState(turns(3))))
    assert answer.messages == (Message.assistant("fine"),)
    assert sent_to(model) == turns(3)[-1:]


def test_everything_that_the_turn_adds_goes_on() -> None:
    @tool
    def look(at: str) -> str:
        """Look at something."""
        return f"{at} is blue"

    model = ScriptedClient([Message.assistant(ToolCall("c", "look", '{"at": "sky"}')), "blue"])
    client = ChatStack(model).use(FunctionInvoker, tools=[look]).build()
    after = run(ChatNode(client, context_manager=MessageContextManager(1)), AgentState(turns(2)))
    assert [message.role for message in after.messages[5:]] == ["assistant", "tool", "assistant"]
    assert after.messages[-1].text == "blue"


@dataclass(frozen=True, slots=True)
class Mine:
    messages: tuple[Message, ...]
    step: int


def test_a_state_of_ones_own_goes_through() -> None:
    after = run(ChatNode(ScriptedClient(), context_manager=MessageContextManager(1)), Mine(tuple(turns(2)), 4))
    assert after == Mine((*turns(2), Message.assistant("fine")), 4)


class Odd:
    """A state that a copy does not do for."""

    def __init__(self, lines: Sequence[Message]) -> None:
        self.lines = tuple(lines)

    @property
    def messages(self) -> Sequence[Message]:
        return self.lines


class OfOdd(MessageContextManager):
    def with_messages(self, state: Odd, messages: Sequence[Message]) -> Odd:
        return Odd(messages)


def test_how_the_manager_makes_a_state_is_how_the_node_makes_it() -> None:
    model = ScriptedClient()
    after = run(ChatNode(model, context_manager=OfOdd(1)), Odd(turns(2)))
    assert after.lines == (*turns(2), Message.assistant("fine"))
    assert sent_to(model) == turns(2)[-1:]


class Lines(NamedTuple):
    messages: Sequence[Message]


@pytest.mark.parametrize("state", [Lines(turns(2)), Odd(turns(2))])
@pytest.mark.parametrize("options", [{}, {"context_manager": OldestFirst(100, 50)}, {"trim_context": False}])
def test_a_state_that_cannot_be_copied_is_refused_before_anything_is_done(state: Any, options: dict[str, Any]) -> None:
    paid: list[int] = []

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    model = ScriptedClient([[ToolCall("1", "pay", '{"amount": 100}')], "done"])
    node = ChatNode(ChatStack(model).use(FunctionInvoker, tools=[pay]).build(), **options)
    told = f"^{type(state).__name__}: cannot be copied with other messages; await node.answer"
    with pytest.raises(WiringError, match=told):
        run(node, state)
    assert (model.requests, paid) == ([], [])
    assert asyncio.run(node.answer(state)).text == "done"


# What goes wrong surfaces


class Broken(BaseContextManager[AgentState]):
    """Has a mistake in it."""

    def trim_context(self, state: AgentState) -> AgentState:
        raise NotImplementedError

    async def atrim_context(self, state: Any) -> AgentState:
        return cast("AgentState", state.no_such_thing)


class Forgetful(Broken):
    async def atrim_context(self, state: Any) -> Any:
        self.with_messages(state, [])


class NotAsync(Broken):
    def atrim_context(self, state: Any) -> Any:
        return state


class Emptying(Broken):
    async def atrim_context(self, state: Any) -> Any:
        return self.with_messages(state, [])


@dataclass(frozen=True)
class BrokenStrategy(Strategy):
    def plan(self, context: Context) -> Plan | None:
        raise AttributeError("no_such_thing")


@pytest.mark.parametrize(
    ("manager", "error", "told"),
    [
        (Broken(), AttributeError, "no_such_thing"),
        (BrokenStrategy(), AttributeError, "no_such_thing"),
        (Forgetful(), InputError, "Forgetful: atrim_context returned None instead of a state"),
        (NotAsync(), InputError, "NotAsync: atrim_context is no coroutine function: write 'async def atrim_context'"),
        (Emptying(), InputError, "messages: empty"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_inside_a_manager_surfaces_and_nothing_is_sent(
    manager: Any, error: type[Exception], told: str
) -> None:
    """The original swallows an AttributeError, and sends the untrimmed history."""
    model = ScriptedClient()
    with pytest.raises(error, match=told):
        run(ChatNode(model, context_manager=manager), AgentState(turns(2)))
    assert model.requests == []


def test_what_the_client_raises_surfaces_and_the_state_stays() -> None:
    history = turns(2)
    state = AgentState(history)
    node = ChatNode(ScriptedClient([RateLimitError("later")]), context_manager=MessageContextManager(1))
    with pytest.raises(RateLimitError):
        run(node, state)
    assert state.messages is history
    assert history == turns(2)


def test_a_state_without_messages_is_an_error() -> None:
    with pytest.raises(InputError, match="messages: empty"):
        run(ChatNode(ScriptedClient()), AgentState())
    with pytest.raises(InputError, match="dict: is no state"):
        run(ChatNode(ScriptedClient()), {"messages": turns(1)})


class ForeignContextManager:
    """Of the same name, maybe, but of another framework."""


@pytest.mark.parametrize(
    ("options", "parameter", "told"),
    [
        ({"client": "gpt"}, "client", r"client is a name, and no chat client"),
        ({"client": ScriptedClient}, "client", "client is the class ScriptedClient itself"),
        (
            {"context_manager": ForeignContextManager()},
            "context_manager",
            r"is a tests\.nodes\.test_chat_node\.ForeignContextManager; pass an instance of chatstack's",
        ),
        ({"context_manager": ChatStack()}, "context_manager", r"ChatStack; pass StackContextManager\(stack\)"),
        ({"context_manager": MessageContextManager}, "context_manager", "is the class MessageContextManager itself"),
        ({"context_manager": OldestFirst}, "context_manager", "is the class OldestFirst itself"),
        ({"trim_context": "yes"}, "trim_context", "pass True or False"),
        ({"options": {"model": "m"}}, "options", r"options={'model': 'm'} must be ChatOptions\(...\)"),
        ({"timeout_seconds": "5"}, "timeout_seconds", "timeout_seconds='5' must be a number greater than 0, or None"),
        ({"timeout_seconds": -1}, "timeout_seconds", "timeout_seconds=-1 must be a number greater than 0"),
        ({"timeout_seconds": True}, "timeout_seconds", "timeout_seconds=True must be a number greater than 0"),
        ({"trim_context": True}, "trim_context", "trim_context=True, and nothing to trim with; pass context_manager="),
    ],
)
def test_mistakes_are_told_when_the_node_is_made(options: dict[str, Any], parameter: str, told: str) -> None:
    with pytest.raises(WiringError, match=f"^ChatNode: .*{told}") as caught:
        ChatNode(**{"client": ScriptedClient(), **options})
    assert (caught.value.layer, caught.value.parameter) == ("ChatNode", parameter)


@pytest.mark.parametrize("parameter", ["client", "context_manager"])
def test_a_lazy_default_that_nothing_has_filled_in_is_refused_and_finds_nothing_by_it(parameter: str) -> None:
    """What it finds first it keeps, for every container."""
    first, second = InjectQ(), InjectQ()
    first.bind_instance(ScriptedClient, ScriptedClient(["first"]))
    second.bind_instance(ScriptedClient, own := ScriptedClient(["second"]))
    lazy: Any = Inject[ScriptedClient]
    for given in (lazy, ChatStack(lazy).build()) if parameter == "client" else (lazy,):
        with first.context(), pytest.raises(WiringError, match=r"Inject\[...\] default") as caught:
            ChatNode(**cast("dict[str, Any]", {"client": ScriptedClient(), parameter: given}))
        assert caught.value.parameter == parameter
    fresh: Any = Inject[ScriptedClient]
    with first.context(), pytest.raises(WiringError):
        ChatNode(**{"client": ScriptedClient(), parameter: fresh})
    with second.context():
        assert fresh.requests is own.requests


# What goes along


def test_options_and_conversation_go_to_the_client() -> None:
    model = ScriptedClient()
    node = ChatNode(model, options=ChatOptions(instructions="be kind"), context_manager=MessageContextManager(1))
    run(node, AgentState(turns(1)), conversation_id="c-1")
    assert model.requests[0].options.instructions == "be kind"
    assert model.requests[0].conversation_id == "c-1"


def test_the_time_limit_is_for_the_turn() -> None:
    node = ChatNode(ScriptedClient(delay_seconds=60), timeout_seconds=0.01)
    with pytest.raises(TurnTimeoutError):
        run(node, AgentState(turns(1)))


def test_a_client_that_has_send_alone_will_do() -> None:
    class Bare:
        async def send(self, request: ChatRequest, /) -> ChatStream:
            return await ScriptedClient(["fine"]).send(request)

    assert run(ChatNode(Bare()), AgentState(turns(1))).messages[-1].text == "fine"


def test_streams_are_closed_when_the_node_is_cancelled() -> None:
    async def check() -> None:
        model = ScriptedClient(["one two three"], delay_seconds=60)
        task = asyncio.ensure_future(ChatNode(model)(AgentState(turns(1))))
        await asyncio.sleep(0)
        assert model.open_streams == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert model.open_streams == 0

    asyncio.run(check())


def test_a_strategy_is_applied_as_in_a_stack() -> None:
    """It learns the window from the client, is verified, and decides once."""
    capture = TelemetryCapture()
    model = ScriptedClient(info=ProviderInfo(name="scripted", window_tokens=300))
    node = ChatNode(model, context_manager=ClearThenDrop(target=0.4), resolve=capture.resolve)
    state = AgentState(turns(40))
    for _ in range(3):
        state = run(node, AgentState([*state.messages, Message.user("so?")]))
        assert size(sent_to(model)) < 300
    assert len(state.messages) == 81 + 6
    assert len(capture.spans_named("compact_context clear_then_drop")) == 1
    assert sent_to(model)[: len(model.requests[0].messages)] == list(model.requests[0].messages)


def test_a_bad_plan_of_a_strategy_is_not_applied_and_is_warned_of() -> None:
    @dataclass(frozen=True)
    class Reckless(Strategy):
        def plan(self, context: Context) -> Plan | None:
            return Plan(strategy="reckless", reason="why not", drop=(len(context.messages) - 1,))

    capture, model = TelemetryCapture(), ScriptedClient()
    run(ChatNode(model, context_manager=Reckless(), resolve=capture.resolve), AgentState(turns(1)))
    assert capture.warnings == ("plan_rejected",)
    assert sent_to(model) == turns(1)


@pytest.mark.parametrize("manager", [MessageContextManager(1), OldestFirst(30, 15)])
def test_a_model_call_is_traced_once(manager: Any) -> None:
    """By the client's own tracer: the node adds no spans."""
    capture = TelemetryCapture()
    client = ChatStack(ScriptedClient()).build(capture.resolve)
    run(ChatNode(client, context_manager=manager, resolve=capture.resolve), AgentState(turns(3)))
    assert len([span for span in capture.spans if span.name.startswith("chat ")]) == 1


@pytest.mark.parametrize("manager", [None, MessageContextManager(1), OldestFirst(30, 15)])
@pytest.mark.parametrize("is_traced_already", [False, True])
def test_the_calls_of_a_bare_provider_are_traced_and_measured_once(manager: Any, is_traced_already: bool) -> None:
    capture, provider = TelemetryCapture(), ScriptedClient()
    client = ModelTracer(provider, telemetry=capture.telemetry) if is_traced_already else provider
    run(ChatNode(client, context_manager=manager, resolve=capture.resolve), AgentState(turns(3)))
    (span,) = capture.spans_named("chat script")
    assert int(str(span.attributes["gen_ai.usage.input_tokens"])) > 0
    assert [point.count for point in capture.metric("gen_ai.client.operation.duration")] == [1]


def test_what_a_fallback_asks_is_not_traced_twice() -> None:
    capture = TelemetryCapture()
    second = ScriptedClient(info=ProviderInfo(name="scripted", model="second"))
    client = Fallback(
        ScriptedClient([RateLimitError("no")]), clients=[second], services=ContextServices(telemetry=capture.telemetry)
    )
    run(ChatNode(client, resolve=capture.resolve), AgentState(turns(1)))
    assert [span.name for span in capture.spans if span.name.startswith("chat ")] == ["chat second"]


def test_a_stack_that_was_told_to_trace_nothing_is_taken_at_its_word() -> None:
    capture = TelemetryCapture()
    client = ChatStack(ScriptedClient(), trace_model_calls=False).build(capture.resolve)
    run(ChatNode(client, resolve=capture.resolve), AgentState(turns(1)))
    assert capture.spans == ()


# As a node


def test_a_graph_can_tell_that_it_has_to_be_awaited() -> None:
    node = ChatNode(ScriptedClient())
    assert inspect.iscoroutinefunction(node.__call__)
    assert list(inspect.signature(node).parameters) == ["state", "conversation_id"]


def test_its_repr_names_what_it_was_made_of() -> None:
    assert repr(ChatNode(ScriptedClient(), context_manager=MessageContextManager(3))).startswith(
        "ChatNode(client=ScriptedClient(1 answers), trim_context=None, "
        "context_manager=MessageContextManager(max_messages=3,"
    )


def test_one_node_serves_many_conversations_at_once() -> None:
    class Echo(ScriptedClient):
        async def send(self, request: ChatRequest, /) -> ChatStream:
            await asyncio.sleep(0)
            return await ScriptedClient([request.messages[-1].text]).send(request)

    async def check() -> None:
        node = ChatNode(Echo(), context_manager=MessageContextManager(1))
        states = [AgentState([Message.user(f"a{who}"), Message.user(f"b{who}")]) for who in range(300)]
        after = await asyncio.gather(*(node(state) for state in states))
        assert [[m.text for m in state.messages] for state in after] == [
            [f"a{who}", f"b{who}", f"b{who}"] for who in range(300)
        ]
        assert all(len(state.messages) == 2 for state in states)

    asyncio.run(check())


def test_what_others_add_while_the_model_thinks_is_not_mixed_in() -> None:
    """The state that goes on is the one that came in, and the answer to it."""

    async def check() -> None:
        history = turns(1)
        task = asyncio.ensure_future(ChatNode(ScriptedClient(delay_seconds=0.001))(AgentState(history)))
        await asyncio.sleep(0)
        history.append(Message.user("by the way"))
        assert (await task).messages == [*turns(1), Message.assistant("fine")]

    asyncio.run(check())
