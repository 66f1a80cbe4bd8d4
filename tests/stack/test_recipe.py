"""The recipe: immutable, checked, built as often as wanted."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, MutableSequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Generic, TypeVar

import anthropic
import openai
import pytest

from chatstack import (
    FROM_CONTAINER,
    BuiltClient,
    CharCounter,
    ChatClient,
    ChatFronts,
    ChatRequest,
    ChatStack,
    ChatStream,
    Context,
    ContextMemory,
    ContextWindowGuard,
    FunctionInvoker,
    Injected,
    LayerOrderWarning,
    Message,
    ModelTracer,
    OldestFirst,
    Plan,
    ProgressReporter,
    Strategy,
    SyncClient,
    TellsKind,
    ToolCall,
    ToolResultClearer,
    WiringError,
    find,
    named,
    tool,
)
from chatstack.client.protocol import layer_kind
from chatstack.testing import ScriptedClient, TelemetryCapture
from tests.strangers import DropsThanks, ToldToEdit

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Stamp(ChatFronts):
    """Appends its mark to the last message, so that the order shows."""

    inner: ChatClient
    _: KW_ONLY
    mark: str = "?"
    key: str = field(default="", repr=False)

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(request.but(messages=(Message.user(request.messages[-1].text + self.mark),)))


@dataclass(frozen=True, slots=True, eq=False)
class Closing(Stamp):
    closed: list[str] = field(default_factory=list)

    async def aclose(self) -> None:
        self.closed.append(self.mark)


def asked(client: BuiltClient) -> str:
    """What reached the provider."""
    asyncio.run(client.get_response(">"))
    provider = find(client, ScriptedClient)
    assert provider is not None
    return provider.requests[-1].messages[-1].text


def two_stamps() -> ChatStack:
    return ChatStack(ScriptedClient()).use(named("a", Stamp), mark="a").use(named("b", Stamp), mark="b")


# The recipe


def test_the_first_layer_used_is_the_first_to_see_a_request() -> None:
    assert asked(two_stamps().build()) == ">ab"


def test_a_stack_without_layers_is_the_provider_with_its_tracer() -> None:
    client = ChatStack(ScriptedClient(["fine"])).build()
    assert asyncio.run(client.get_response("hello")).text == "fine"
    assert find(client, ModelTracer) is not None


def test_using_gives_a_new_recipe_and_leaves_the_old_one_alone() -> None:
    stack = ChatStack(ScriptedClient())
    longer = stack.use(Stamp, mark="x")
    assert (len(stack.layers), len(longer.layers)) == (0, 1)


def test_a_recipe_can_be_built_again_and_again_into_fresh_layers() -> None:
    stack = two_stamps()
    one, other = stack.build(), stack.build()
    assert find(one, Stamp) is not find(other, Stamp)
    assert (asked(one), asked(other)) == (">ab", ">ab")


def test_overriding_options_keeps_the_others_and_the_place() -> None:
    stack = ChatStack(ScriptedClient()).use(named("a", Stamp), mark="a", key="k").use(named("b", Stamp), mark="b")
    client = stack.override("a", mark="X").build()
    assert asked(client) == ">Xb"
    layer = find(client, Stamp)
    assert layer is not None
    assert layer.key == "k"


def test_overriding_with_another_layer_takes_its_own_options_only() -> None:
    def shout(inner: ChatClient, *, times: int) -> ChatClient:
        return Stamp(inner, mark="!" * times)

    assert asked(two_stamps().override("a", shout, times=2).build()) == ">!!b"


def test_what_is_put_in_a_layers_place_may_bring_its_own_name() -> None:
    stack = two_stamps().override("a", named("c", Stamp), mark="c")
    assert [spec.name for spec in stack.layers] == ["c", "b"]
    assert asked(stack.override("c", mark="d").build()) == ">db"
    with pytest.raises(WiringError, match=r"layer 'b': there is one of that name already"):
        two_stamps().override("a", named("b", Stamp), mark="c")


def test_leaving_a_layer_out() -> None:
    assert asked(two_stamps().without("a").build()) == ">b"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda stack: stack.override("aa", mark="x"), "override: no layer 'aa' in this stack; did you mean 'a'?"),
        (lambda stack: stack.without("zzz"), "without: no layer 'zzz' in this stack; known: a, b"),
    ],
)
def test_changing_a_layer_that_is_not_there_names_the_nearest(change: Callable[[ChatStack], object], said: str) -> None:
    with pytest.raises(WiringError) as caught:
        change(two_stamps())
    assert str(caught.value) == said


@pytest.mark.parametrize("change", [ChatStack.override, ChatStack.without])
def test_a_layer_that_is_named_by_its_class_is_told_its_name(change: Callable[..., ChatStack]) -> None:
    with pytest.raises(WiringError, match=f"{change.__name__}: pass the layer's name: 'ContextWindowGuard'$"):
        change(two_stamps(), ContextWindowGuard)


@pytest.mark.parametrize(
    ("services", "said"), [({}, "got dict; pass services.get, a function"), (5, "got int; pass a function")]
)
def test_a_container_in_place_of_its_get_is_refused(services: Any, said: str) -> None:
    with pytest.raises(WiringError, match=f"build: resolve: expected a function from a type to an instance, {said}$"):
        two_stamps().build(services)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("telemetry", "bind Telemetry in the container, or give it to the layers: build({Telemetry: telemetry}.get)"),
        ("memry", "did you mean 'memory'? Options of a layer are given to use()"),
    ],
)
def test_an_option_that_a_recipe_has_not_is_told_where_it_belongs(option: str, said: str) -> None:
    with pytest.raises(WiringError) as caught:
        ChatStack(ScriptedClient(), **{option: 1})  # type: ignore[arg-type]
    assert str(caught.value) == f"ChatStack: unknown option {option!r}; {said}"
    assert caught.value.parameter == option


def test_two_layers_of_one_name_are_refused_with_the_remedy() -> None:
    with pytest.raises(WiringError) as caught:
        ChatStack(ScriptedClient()).use(Stamp).use(Stamp)
    assert str(caught.value) == (
        "layer 'Stamp': there is one of that name already; use named('...', ...), or name in a file"
    )
    assert (caught.value.layer, caught.value.parameter) == ("Stamp", "name")


@pytest.mark.parametrize(
    ("provider", "said"),
    [
        (None, "of type NoneType, and no chat client: it has no send()"),
        (object(), "of type object, and no chat client: it has no send()"),
        ("gpt-5-mini", "a name, and no chat client; write OpenAIChatClient('gpt-5-mini')"),
        ("openai:gpt-5-mini", "a name, and no chat client; write OpenAIChatClient('gpt-5-mini')"),
        ("claude-sonnet-5", "a name, and no chat client; write AnthropicChatClient('claude-sonnet-5')"),
        (
            openai.AsyncOpenAI(api_key="k"),
            "of type AsyncOpenAI, and no chat client; write OpenAIChatClient(model, client=...), "
            "or keep your client with wrap(client, stack)",
        ),
        (
            anthropic.AsyncAnthropic(api_key="k"),
            "of type AsyncAnthropic, and no chat client; write AnthropicChatClient(model, client=...), "
            "or keep your client with wrap(client, stack)",
        ),
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_provider_without_send_is_refused_with_what_to_write(provider: Any, said: str) -> None:
    with pytest.raises(WiringError) as caught:
        ChatStack(provider)
    assert str(caught.value) == f"ChatStack: provider is {said}"
    assert caught.value.parameter == "provider"


def test_a_provider_that_was_never_made_is_refused() -> None:
    with pytest.raises(WiringError) as caught:
        ChatStack(ScriptedClient)  # type: ignore[arg-type]
    assert str(caught.value) == "ChatStack: provider is the class ScriptedClient itself; pass an instance"


def test_a_layer_that_is_none_is_refused() -> None:
    with pytest.raises(WiringError, match="use: 'guard' is not a layer: pass its class, a factory, or a strategy"):
        ChatStack(ScriptedClient()).use("guard")  # type: ignore[call-overload]


# Building


def test_an_unknown_option_fails_at_build_by_layer_and_name() -> None:
    stack = ChatStack(ScriptedClient()).use(named("guard", ContextWindowGuard), max_context_token=5)  # type: ignore[call-overload]
    with pytest.raises(WiringError) as caught:
        stack.build()
    assert str(caught.value) == (
        "layer 'guard': unknown option 'max_context_token'; did you mean 'max_context_tokens'?"
    )


def test_a_required_option_that_is_missing_fails_at_build_by_name() -> None:
    with pytest.raises(WiringError, match="max_context_tokens is required; pass max_context_tokens="):
        ChatStack(ScriptedClient()).use(ContextWindowGuard).build()  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (FunctionInvoker, "two tool loops in one stack: FunctionInvoker and again; leave one out"),
        (ProgressReporter, "two progress reporters in one stack: ProgressReporter and again; leave one out"),
    ],
)
def test_two_loops_or_two_reporters_are_refused(layer: Callable[..., ChatClient], said: str) -> None:
    with pytest.raises(WiringError) as caught:
        ChatStack(ScriptedClient()).use(layer).use(named("again", layer)).build()
    assert str(caught.value) == said
    assert caught.value.layer == "again"


def test_a_name_as_an_option_is_deprecated_and_still_taken() -> None:
    with pytest.warns(DeprecationWarning, match=r"\.use\(named\('again', ContextWindowGuard\)\)"):
        stack = ChatStack(ScriptedClient()).use(ContextWindowGuard, name="again", max_context_tokens=9)  # type: ignore[call-overload]
    assert [spec.name for spec in stack.layers] == ["again"]


def test_a_strategy_can_be_named_made_or_not() -> None:
    stack = ChatStack(ScriptedClient()).use(named("one", OldestFirst), max_tokens=20, target_tokens=10)
    stack = stack.use(named("two", OldestFirst(max_tokens=20, target_tokens=10)))
    assert stack.build().names[:2] == ("one", "two")
    assert stack.override("two", max_tokens=30) is not None


@pytest.mark.parametrize("name", ["", None, 5])
def test_a_name_is_text(name: Any) -> None:
    with pytest.raises(WiringError, match="is no name; pass text"):
        named(name, ContextWindowGuard)


def test_options_are_given_by_name() -> None:
    use: Any = ChatStack(ScriptedClient()).use
    with pytest.raises(
        WiringError, match=r"use: 8000: options are given by name: \.use\(ContextWindowGuard, \.\.\.=\.\.\.\)"
    ):
        use(ContextWindowGuard, 8000)


class Ledger:
    total = 3


@dataclass(frozen=True, slots=True, eq=False)
class Counting(Stamp):
    ledger: Ledger = FROM_CONTAINER


def test_what_a_container_supplies_is_asked_of_it_and_missed_where_there_is_none() -> None:
    stack = ChatStack(ScriptedClient()).use(Counting)
    ledger = Ledger()
    found = find(stack.build({Ledger: ledger}.__getitem__), Counting)
    assert found is not None
    assert found.ledger is ledger
    with pytest.raises(WiringError, match=r"ledger \(\w+\) is required"):
        stack.build()
    with pytest.raises(WiringError, match="made without what its container supplies"):
        _ = Counting(ScriptedClient()).ledger.total


def test_inspecting_a_module_that_imports_the_placeholder_is_no_use_of_it() -> None:
    """``unittest.mock.create_autospec(module)`` asks every object in it for ``_is_coroutine``."""
    assert not hasattr(FROM_CONTAINER, "_is_coroutine")
    assert inspect.unwrap(FROM_CONTAINER) is FROM_CONTAINER


def test_a_class_from_a_container_in_the_place_of_an_instance_is_refused() -> None:
    """By a layer when the stack is built, and by a tool when it is called: both would get a class for an instance."""
    said = "build: resolve: the container gave the class Ledger itself; bind an instance of Ledger"

    @tool
    def spend(ledger: Injected[Ledger]) -> int:
        """Spends."""
        return ledger.total

    calls = ScriptedClient([Message.assistant(ToolCall("a", "spend", "{}")), "done"])
    client = ChatStack(calls).use(FunctionInvoker, tools=[spend]).build({Ledger: Ledger}.get)
    with pytest.raises(WiringError) as caught:
        asyncio.run(client.get_response("go"))
    assert str(caught.value) == said
    with pytest.raises(WiringError) as caught:
        ChatStack(ScriptedClient()).use(Counting).build({Ledger: Ledger}.get)
    assert str(caught.value) == said


def test_a_context_layer_outside_the_tool_loop_is_warned_of() -> None:
    stack = ChatStack(ScriptedClient()).use(ContextWindowGuard, max_context_tokens=10).use(FunctionInvoker)
    with pytest.warns(LayerOrderWarning, match="'ContextWindowGuard' is outside the tool loop 'FunctionInvoker'"):
        stack.build()


class Misspelt(DropsThanks):
    kind = "contxt"


class OddKind(DropsThanks):
    kind = 7


def test_a_strangers_context_layer_outside_the_tool_loop_is_warned_of_once_it_says_that_it_is_one() -> None:
    stack = ChatStack(ScriptedClient()).use(ToldToEdit).use(FunctionInvoker)
    with pytest.warns(LayerOrderWarning, match="'ToldToEdit' is outside the tool loop 'FunctionInvoker'"):
        client = stack.build()
    assert isinstance(client.layers[0], TellsKind)
    for layer in (DropsThanks, OddKind):
        assert layer_kind(layer) == ""
        ChatStack(ScriptedClient()).use(layer).use(FunctionInvoker).build()


def test_a_kind_that_is_none_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(WiringError) as caught:
        ChatStack(ScriptedClient()).use(Misspelt).build()
    assert str(caught.value) == "layer 'Misspelt': kind='contxt' is no kind of layer; did you mean 'context'?"
    assert (caught.value.layer, caught.value.parameter) == ("Misspelt", "kind")


def test_the_default_order_is_not_warned_of() -> None:
    stack = (
        ChatStack(ScriptedClient())
        .use(ProgressReporter)
        .use(FunctionInvoker)
        .use(OldestFirst, max_tokens=20, target_tokens=10)
        .use(ContextWindowGuard, max_context_tokens=10)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find(stack.build(), ContextWindowGuard) is not None


def test_the_tracer_goes_right_around_the_provider() -> None:
    client = two_stamps().build()
    assert [type(layer).__name__ for layer in client.layers] == ["Stamp", "Stamp", "ModelTracer"]


def test_the_tracer_can_be_left_out_or_placed_by_hand() -> None:
    bare = ChatStack(ScriptedClient(), trace_model_calls=False).use(Stamp).build()
    placed = ChatStack(ScriptedClient()).use(ModelTracer).use(Stamp).build()
    assert [type(layer).__name__ for layer in bare.layers] == ["Stamp"]
    assert [type(layer).__name__ for layer in placed.layers] == ["ModelTracer", "Stamp"]


def test_the_container_gives_what_type_hints_ask_for() -> None:
    capture = TelemetryCapture()
    client = ChatStack(ScriptedClient()).use(ContextWindowGuard, max_context_tokens=10).build(capture.resolve)
    guard = find(client, ContextWindowGuard)
    assert guard is not None
    assert guard.telemetry is capture.telemetry


# Strategies


@dataclass(frozen=True)
class Nothing(Strategy):
    """Never edits."""

    times: int = 1

    def plan(self, context: Context) -> Plan | None:
        return None


@pytest.mark.parametrize(
    "use",
    [
        lambda stack: stack.use(Nothing(times=3)),
        lambda stack: stack.use(Nothing, times=3),
    ],
    ids=["a value", "its class with options"],
)
def test_a_strategy_is_used_like_a_layer(use: Callable[[ChatStack], ChatStack]) -> None:
    client = use(ChatStack(ScriptedClient(["fine"]))).build()
    assert client.layers[0].strategy == Nothing(times=3)  # type: ignore[attr-defined]
    assert asyncio.run(client.get_response("hello")).text == "fine"
    assert "Nothing(times=3)" in repr(client)


@dataclass(frozen=True)
class Reckless(Strategy):
    """Drops everything but the last message."""

    name = "reckless"

    def plan(self, context: Context) -> Plan | None:
        return Plan(strategy=self.name, reason="why not", drop=tuple(range(len(context.messages) - 1)))


def test_a_plan_that_breaks_a_promise_is_not_sent_and_warned_of() -> None:
    capture, provider = TelemetryCapture(), ScriptedClient(["fine"])
    messages = [Message.system("be brief, and never mention hunter2"), Message.user("hello")]
    asyncio.run(ChatStack(provider).use(Reckless()).build(capture.resolve).get_response(messages))
    assert provider.requests[0].messages == tuple(messages)
    assert capture.warnings == ("plan_rejected",)
    span = capture.span("compact_context reckless")
    assert span.attributes["chatstack.warning.message"] == (
        "the plan of 'reckless' was not applied: the system message at 0 is dropped"
    )
    assert (span.status, span.attributes["error.type"]) == ("error", "plan_rejected")
    assert span.attributes["openinference.span.kind"] == "CHAIN"


def test_a_plan_that_holds_all_promises_is_sent() -> None:
    provider = ScriptedClient(["fine"])
    messages = [Message.assistant("once"), Message.user("hello")]
    asyncio.run(ChatStack(provider).use(Reckless()).build().get_response(messages))
    assert provider.requests[0].messages == (Message.user("hello"),)


def test_a_strategys_unknown_option_fails_at_build_by_layer() -> None:
    with pytest.raises(WiringError, match=r"layer 'Nothing': .*'tims'"):
        ChatStack(ScriptedClient()).use(Nothing, tims=3).build()  # type: ignore[call-overload]


def test_a_strategys_own_refusal_surfaces() -> None:
    with pytest.raises(WiringError, match="target_tokens=20 must be at most max_tokens=10"):
        ChatStack(ScriptedClient()).use(OldestFirst, max_tokens=10, target_tokens=20).build()


# Shared memory


def memory_of(client: BuiltClient) -> ContextMemory:
    guard = find(client, ContextWindowGuard)
    assert guard is not None
    return guard.memory


def test_builds_and_derived_recipes_share_one_memory() -> None:
    stack = ChatStack(ScriptedClient()).use(ContextWindowGuard, max_context_tokens=10)
    memory = memory_of(stack.build())
    assert memory_of(stack.build()) is memory
    assert memory_of(stack.use(Stamp).override("ContextWindowGuard", strict=True).build()) is memory


def test_two_stacks_do_not_share_a_memory_unless_it_is_given() -> None:
    def stack(memory: ContextMemory | None = None) -> BuiltClient:
        return ChatStack(ScriptedClient(), memory=memory).use(ContextWindowGuard, max_context_tokens=10).build()

    assert memory_of(stack()) is not memory_of(stack())
    given = ContextMemory()
    assert memory_of(stack(given)) is given
    assert memory_of(stack(given)) is given


# The built client


def test_closing_closes_the_layers_outermost_first_and_not_the_provider() -> None:
    class Provider(ScriptedClient):
        closed = False

        async def aclose(self) -> None:
            self.closed = True

    async def run() -> tuple[list[str], bool]:
        closed: list[str] = []
        provider = Provider()
        stack = ChatStack(provider)
        for mark in "abc":
            stack = stack.use(named(mark, Closing), mark=mark, closed=closed)
        async with stack.build():
            pass
        return closed, provider.closed

    assert asyncio.run(run()) == (["a", "b", "c"], False)


def test_one_layer_that_fails_to_close_does_not_keep_the_others_open() -> None:
    class Stuck(Stamp):
        async def aclose(self) -> None:
            raise RuntimeError("stuck")

    async def run() -> list[str]:
        closed: list[str] = []
        stack = ChatStack(ScriptedClient()).use(Closing, mark="a", closed=closed)
        client = stack.use(Stuck).use(named("c", Closing), mark="c", closed=closed).build()
        with pytest.raises(RuntimeError, match="stuck"):
            await client.aclose()
        return closed

    assert asyncio.run(run()) == ["a", "c"]


def test_a_layer_that_fails_to_close_is_named_and_hides_no_error() -> None:
    class Full(Stamp):
        async def aclose(self) -> None:
            raise OSError("disk full")

    class Plain(Stamp):
        closed = 0

        def aclose(self) -> None:
            Plain.closed += 1

    async def run() -> None:
        stack = ChatStack(ScriptedClient()).use(named("logs", Full)).use(Plain)
        for opened in (stack.open(), stack.build()):
            async with opened:
                raise KeyError("the real error")

    with pytest.raises(OSError, match="disk full") as caught:
        asyncio.run(run())
    assert caught.value.__notes__ == ["while closing layer 'logs'"]
    assert isinstance(caught.value.__context__, KeyError)
    assert Plain.closed == 1


class Delegating:
    """A layer that looks up whatever it lacks in the client inside."""

    def __init__(self, inner: ChatClient) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(request)


class Closable(ScriptedClient):
    is_closed = False

    async def aclose(self) -> None:
        self.is_closed = True


def test_a_layer_that_delegates_is_not_taken_for_what_it_wraps() -> None:
    stack = ChatStack(Closable(["fine"])).use(Delegating).use(ProgressReporter)
    loop = stack.use(named("another", Delegating)).use(FunctionInvoker).use(ContextWindowGuard, max_context_tokens=100)

    async def run() -> str:
        async with loop.use(named("last", Delegating)).open() as client:
            assert find(client, FunctionInvoker) is not None
            return (await client.get_response("hello")).text

    assert asyncio.run(run()) == "fine"
    assert not loop.provider.is_closed  # type: ignore[attr-defined]


def test_open_gives_fresh_layers_and_closes_them_at_the_end() -> None:
    async def run() -> list[str]:
        closed: list[str] = []
        stack = ChatStack(ScriptedClient()).use(Closing, mark="a", closed=closed)
        async with stack.open() as one, stack.open() as other:
            assert find(one, Closing) is not find(other, Closing)
            assert closed == []
            assert (await one.get_response("hello")).text == "fine"
        return closed

    assert asyncio.run(run()) == ["a", "a"]


def test_the_repr_of_a_built_client_is_the_stack_without_secrets_or_defaults() -> None:
    client = ChatStack(ScriptedClient()).use(Stamp, mark="x", key="sk-secret").use(named("plain", Stamp)).build()
    assert repr(client) == "Stamp(mark='x')\n  └ Stamp()\n    └ ModelTracer()\n      └ ScriptedClient(1 answers)"


def test_the_repr_of_a_recipe_reads_like_the_code() -> None:
    stack = ChatStack(ScriptedClient()).use(Stamp, mark="x").use(named("plain", Stamp))
    assert (
        repr(stack)
        == "ChatStack(ScriptedClient(1 answers))\n    .use(Stamp, mark='x')\n    .use(named('plain', Stamp))"
    )


def test_the_repr_of_a_recipe_shows_no_secret_either() -> None:
    stack = ChatStack(ScriptedClient()).use(Stamp, mark="x", key="sk-secret")
    assert repr(stack).endswith(".use(Stamp, mark='x', key=...)")


@dataclass
class Shop:
    api_key: str

    def find(self, query: str) -> str:
        return query


def search(query: str, api_key: str = "") -> str:
    return query


BOUND = functools.partial(search, api_key="sk-secret")
SHOWN = "partial(search, ...)"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tools": [BOUND, Shop("sk-secret").find]}, f"tools=[{SHOWN}, Shop.find]"),
        ({"tools": (BOUND,)}, f"tools=({SHOWN},)"),
    ],
)
def test_the_repr_of_a_recipe_shows_a_bound_function_by_name_and_not_what_it_is_bound_to(
    options: dict[str, Any], told: str
) -> None:
    stack = ChatStack(ScriptedClient()).use(FunctionInvoker, **options)
    assert repr(stack).endswith(f".use(FunctionInvoker, {told})")


@pytest.mark.parametrize("options", [{"tools": BOUND}, {"max_concurrency": BOUND}])
def test_an_error_shows_a_bound_function_by_name_too(options: dict[str, Any]) -> None:
    with pytest.raises(WiringError) as caught:
        ChatStack(ScriptedClient()).use(FunctionInvoker, **options).build()
    assert f"{SHOWN} must be" in str(caught.value)
    assert "sk-secret" not in str(caught.value)


def test_the_class_of_a_strategy_takes_its_own_options_and_those_of_its_layer() -> None:
    provider = ScriptedClient()
    counter = CharCounter(chars_per_token=1)
    stack = ChatStack(provider).use(OldestFirst, max_tokens=50, target_tokens=40, counter=counter)  # type: ignore[call-overload]
    long = [Message.user("x" * 20), Message.assistant("y" * 20), Message.user("z" * 20)]
    asyncio.run(stack.build().get_response(long))
    assert len(provider.requests[0].messages) == 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_tokens": 50, "target_token": 40}, "unknown option 'target_token'; did you mean 'target_tokens'?"),
        ({"max_tokens": 50, "target_tokens": 40, "servces": 1}, "unknown option 'servces'; did you mean 'services'?"),
        ({"max_tokens": 50, "target_tokens": 40, "memory": 1}, "unknown option 'memory'; all layers of a stack share"),
        ({"max_tokens": 50}, "missing 1 required positional argument: 'target_tokens'"),
        ({"max_tokens": "5", "target_tokens": 4}, "max_tokens='5' must be a whole number, at least 1"),
    ],
)
def test_mistakes_in_the_options_of_a_strategy_name_it_and_the_remedy(options: dict[str, Any], told: str) -> None:
    with pytest.raises(WiringError, match="OldestFirst") as caught:
        ChatStack(ScriptedClient()).use(OldestFirst, **options).build()
    assert told in str(caught.value)


def test_a_strategy_that_cannot_be_told_from_another_is_refused() -> None:
    class Nameless(Strategy):
        def plan(self, context: Context) -> Plan | None:
            return None

    with pytest.raises(WiringError, match=r"Nameless: .* make the strategy a dataclass"):
        ChatStack(ScriptedClient()).use(Nameless()).build()


@pytest.mark.parametrize(("logging", "shown"), [("", 1), ("import logging; logging.basicConfig()", 2)])
def test_a_wrong_order_is_printed_once_unless_a_log_is_configured(logging: str, shown: int) -> None:
    code = (
        f"{logging}\nfrom chatstack import ChatStack, ContextWindowGuard, FunctionInvoker\n"
        "from chatstack.testing import ScriptedClient\n"
        "stack = ChatStack(ScriptedClient()).use(ContextWindowGuard, max_context_tokens=9)\n"
        "stack.use(FunctionInvoker, tools=[]).build()\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert ran.stderr.count("add it after 'FunctionInvoker'") == shown


def test_two_model_tracers_are_one_too_many() -> None:
    stack = ChatStack(ScriptedClient()).use(named("mine", lambda inner: ModelTracer(inner)))
    with pytest.raises(WiringError, match="two model tracers in one stack: mine and ModelTracer"):
        stack.build()


def test_a_memory_that_is_none_is_refused() -> None:
    with pytest.raises(WiringError, match="memory is a int; pass a ContextMemory"):
        ChatStack(ScriptedClient(), memory=5)  # type: ignore[arg-type]


# Recipes as values


def test_a_recipe_has_its_own_copy_of_the_callers_dicts_and_lists() -> None:
    trigger, tools = {"tokens": 100_000}, [tool(look)]
    stack = ChatStack(ScriptedClient()).use(FunctionInvoker, tools=tools).use(ToolResultClearer, trigger=trigger)
    stack = stack.override("ToolResultClearer", keep=(keep := {"messages": 4}))
    trigger["tokens"] = keep["messages"] = 5
    tools.clear()
    assert stack.layers[0].options["tools"][0].name == "look"  # type: ignore[index]
    assert stack.layers[1].options == {"trigger": {"tokens": 100_000}, "keep": {"messages": 4}}


@pytest.mark.parametrize("hint", [list[str], MutableSequence[str], Any, object])
def test_what_a_layer_may_write_to_stays_the_callers(hint: Any) -> None:
    def writing(inner: ChatClient, *, heard: Any) -> ChatClient:
        heard.append("made")
        return inner

    writing.__annotations__["heard"] = hint
    heard: list[str] = []
    ChatStack(ScriptedClient()).use(writing, heard=heard).build()
    assert heard == ["made"]


def look() -> str:
    """Look."""
    return ""


def test_a_recipe_is_its_own_copy_and_a_key() -> None:
    stack = ChatStack(ScriptedClient(), memory=ContextMemory()).use(ContextWindowGuard, max_context_tokens=10)
    assert copy.deepcopy(stack) is copy.copy(stack) is stack
    assert {stack: 1}[stack] == 1
    assert stack.use(Stamp) != stack


@pytest.mark.parametrize("build", [ChatStack.build, ChatStack.build_sync], ids=["async", "sync"])
def test_a_built_client_is_its_own_copy_and_not_pickled(build: Callable[[ChatStack], BuiltClient | SyncClient]) -> None:
    client = build(ChatStack(ScriptedClient(["fine"])).use(ContextWindowGuard, max_context_tokens=10_000))
    assert copy.deepcopy(client) is copy.copy(client) is copy.deepcopy({"client": [client]})["client"][0] is client
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(WiringError, match=r"Client: cannot be pickled, .*; build one in each process"):
            pickle.dumps(client, protocol)


def test_a_recipe_is_pickled_without_what_it_has_made_and_not_with_a_memory() -> None:
    stack = ChatStack(ScriptedClient(["fine"]), trace_model_calls=False)
    stack = stack.use(ProgressReporter).use(named("early", ContextWindowGuard), max_context_tokens=10_000)
    memory_of(stack.build())
    unpickled: ChatStack = pickle.loads(pickle.dumps(stack))
    assert repr(unpickled) == repr(stack)
    assert not unpickled.trace_model_calls
    assert asyncio.run(unpickled.build().get_response("hello")).text == "fine"
    with pytest.raises(WiringError, match="memory cannot be pickled; make the recipe in each process") as caught:
        pickle.dumps(replace(stack, memory=ContextMemory()))
    assert caught.value.parameter == "memory"


def test_a_generic_layer_or_strategy_may_be_used_with_its_parameter() -> None:
    @dataclass(frozen=True)
    class Keeping(Strategy, Generic[T]):
        value: T

        def plan(self, context: Context) -> Plan | None:
            return None

    @dataclass(frozen=True, slots=True, eq=False)
    class Asking(ChatFronts, Generic[T]):
        inner: ChatClient
        _: KW_ONLY
        value: T

        async def send(self, request: ChatRequest, /) -> ChatStream:
            return await self.inner.send(request)

    stack = ChatStack(ScriptedClient(["fine"])).use(Asking[int], value=1).use(Keeping[int], value=2)
    stack = stack.override("Asking", Asking[str], value="3").use(named("more", Asking[int]), value=4)
    assert [(each.name, each.options) for each in stack.layers] == [
        ("Asking", {"value": "3"}),
        ("Keeping", {"value": 2}),
        ("more", {"value": 4}),
    ]
    assert asyncio.run(stack.build().get_response("hello")).text == "fine"
    with pytest.raises(WiringError, match="unknown option 'valu'"):
        stack.override("Asking", Asking[int], valu=2).build()
