"""Common mistakes get the line that helps."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

import chatstack
from chatstack import (
    CharCounter,
    ChatOptions,
    ChatRequest,
    ChatStack,
    ChatStream,
    ChatUpdate,
    ContextMemory,
    ContextWindowGuard,
    FunctionInvoker,
    InputError,
    MemoryWorkspace,
    Message,
    MessageContextManager,
    ModelTracer,
    Plan,
    ProgressReporter,
    Spending,
    StrategyContextManager,
    Telemetry,
    Text,
    Tool,
    ToolResult,
    Truncate,
    Windows,
    WiringError,
    agent_turn,
    find,
    from_json,
    to_json,
    tool,
    workspace_tools,
)
from chatstack.client.wiring import name_of
from chatstack.stores.sqlite import SQLiteStore
from chatstack.stores.sqlite_journal import SQLiteJournal
from chatstack.testing import ScriptedClient


def look() -> str:
    return "sunny"


STACK = ChatStack(ScriptedClient())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ProgressReporter(), "ProgressReporter: there is no client .* .use(ProgressReporter)"),  # type: ignore[call-arg]
        (
            lambda: ContextWindowGuard(max_context_tokens=5, strict=True),  # type: ignore[call-arg]
            ".use(ContextWindowGuard, max_context_tokens=..., strict=...)",
        ),
        (lambda: ModelTracer(), ".use(ModelTracer)"),  # type: ignore[call-arg]
        (
            lambda: STACK.use(FunctionInvoker(ScriptedClient())),  # type: ignore[call-overload]
            "use: pass the class, not an instance: .use(FunctionInvoker, ...)",
        ),
        (
            lambda: STACK.use(ProgressReporter).override("ProgressReporter", ProgressReporter(ScriptedClient())),  # type: ignore[arg-type]
            "override: pass the class, not an instance: .override(name, ProgressReporter, ...)",
        ),
        (lambda: STACK.use(int | None), "use: int | None is not a layer: pass its class"),  # type: ignore[call-overload]
        (lambda: STACK.use(int).build(), "int: takes no inner client; a layer's first parameter is what it wraps"),  # type: ignore[call-overload]
        (lambda: STACK.use("ProgressReporter"), "'ProgressReporter' is not a layer: pass its class"),  # type: ignore[call-overload]
        (
            lambda: STACK.use(ContextWindowGuard, max_context_tokens=5, counter=CharCounter).build(),  # type: ignore[call-overload]
            "counter is the class CharCounter itself; pass an instance: CharCounter(...)",
        ),
        (
            lambda: STACK.use(Truncate, max_tokens=5, counter=CharCounter).build(),  # type: ignore[call-overload]
            "layer 'Truncate': counter is the class CharCounter itself",
        ),
        (
            lambda: StrategyContextManager(Truncate(max_tokens=5), counter=CharCounter),  # type: ignore[arg-type]
            "counter is the class CharCounter itself",
        ),
        (
            lambda: ContextWindowGuard(ScriptedClient(), max_context_tokens=5, counter=CharCounter),  # type: ignore[arg-type]
            "ContextWindowGuard: counter is the class CharCounter itself; pass an instance",
        ),
        (
            lambda: STACK.use(ProgressReporter, telemetry=Telemetry).build(),  # type: ignore[call-overload]
            "telemetry is the class Telemetry itself; pass an instance: Telemetry(...)",
        ),
        (
            lambda: STACK.use(ContextWindowGuard, max_context_tokens=5, memory=ContextMemory()).build(),  # type: ignore[call-overload]
            "all layers of a stack share one ContextMemory: bind it in the container that builds the stack, or give "
            "services=ContextServices(memory=...)",
        ),
        (lambda: ChatStack(ScriptedClient(), memory=ContextMemory), "memory is the class ContextMemory; pass a"),  # type: ignore[arg-type]
        (
            lambda: STACK.use(ContextWindowGuard, max_context_token=5).build(),  # type: ignore[call-overload]
            "unknown option 'max_context_token'; did you mean 'max_context_tokens'?",
        ),
    ],
)  # fmt: skip
def test_a_layer_that_is_used_wrongly_is_told_how(make: Callable[[], object], says: str) -> None:
    with pytest.raises(WiringError) as caught:
        make()
    for piece in says.split(" .* "):
        assert piece in str(caught.value)


def test_a_recipe_that_is_asked_like_a_client_says_build() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'get_response'; a stack is a recipe, and what build\(\)"):
        STACK.get_response("hello")  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"'ChatStack' object has no attribute 'overide'$"):
        STACK.overide("x")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FunctionInvoker(ScriptedClient(), tools=[None]), "tool: expected a function, got NoneType"),  # type: ignore[list-item]
        (
            lambda: Truncate(max_tokens=5).as_layer()(ScriptedClient(), counter=0),  # type: ignore[arg-type]
            "counter='int' must be a TokenCounter",
        ),
        (
            lambda: ContextWindowGuard(ScriptedClient(), max_context_tokens=5, counter=""),  # type: ignore[arg-type]
            "ContextWindowGuard: counter='str' must be a TokenCounter: derive your own from it",
        ),
        (
            lambda: StrategyContextManager(Truncate(max_tokens=5), window_tokens="8k"),  # type: ignore[arg-type]
            "StrategyContextManager: window_tokens='8k' must be a whole number, at least 1, or None",
        ),
        (
            lambda: StrategyContextManager(Truncate(max_tokens=5), client="gpt-5"),  # type: ignore[arg-type]
            "StrategyContextManager: client is a name, and no chat client",
        ),
        (lambda: tool(idempotent="no")(look), "tool 'look': idempotent='no' must be True or False"),  # type: ignore[call-overload]
        (
            lambda: FunctionInvoker(ScriptedClient(), resolve="services"),  # type: ignore[arg-type]
            "FunctionInvoker: resolve='services' must be a function from a type to an instance",
        ),
        (lambda: Windows(ask_seconds="5"), "Windows: ask_seconds='5' must be a number greater than 0"),  # type: ignore[arg-type]
        (lambda: MemoryWorkspace(["a.txt"]), "MemoryWorkspace: files=['a.txt'] must be a mapping from paths to texts"),  # type: ignore[arg-type]
        (lambda: Telemetry(span_events="no"), "Telemetry: span_events='no' must be True or False"),  # type: ignore[arg-type]
        (lambda: ChatStack(ScriptedClient(), layers=None), "ChatStack: layers=None must be a tuple of LayerSpec"),  # type: ignore[arg-type]
        (lambda: ChatStack(ScriptedClient(), layers=(5,)), "ChatStack: layers=(5,) must be a tuple of LayerSpec"),  # type: ignore[arg-type]
        (
            lambda: ChatStack(ScriptedClient(), trace_model_calls="no"),  # type: ignore[arg-type]
            "ChatStack: trace_model_calls='no' must be True or False",
        ),
        (lambda: STACK.with_layer(ProgressReporter, 5, {}), "LayerSpec: name=5 must be text"),  # type: ignore[arg-type]
        (lambda: STACK.with_layer(ProgressReporter, None, 5), "LayerSpec: options=<class 'int'> must be a Mapping"),  # type: ignore[arg-type]
        (lambda: find(STACK.build(), "ModelTracer"), "find: kind='ModelTracer' must be the class of a layer"),  # type: ignore[arg-type]
        (
            lambda: MessageContextManager(telemetry="on"),  # type: ignore[arg-type]
            "MessageContextManager: telemetry=<class 'str'> must be a Telemetry or None",
        ),
        (lambda: ContextMemory(clock=5), "ContextMemory: clock=5 must be a function"),  # type: ignore[arg-type]
        (lambda: Windows(clock=5), "Windows: clock=5 must be a function"),  # type: ignore[arg-type]
        (lambda: SQLiteStore("a.db", clock=5), "SQLiteStore: clock=5 must be a function"),  # type: ignore[arg-type]
        (lambda: Spending().of(42), "Spending.of: conversation_id=42 must be text"),  # type: ignore[arg-type]
        (
            lambda: workspace_tools(MemoryWorkspace(), read_only=None),  # type: ignore[arg-type]
            "workspace_tools: read_only=None must be True or False",
        ),
        (lambda: Tool.from_schema(look, name="look", description=5), "tool 'look': description=5 must be text"),  # type: ignore[arg-type]
        (
            lambda: asyncio.run(SQLiteJournal("a.db").forget("run", memory=5)),  # type: ignore[arg-type]
            "SQLiteJournal.forget: memory=5 must be a ContextMemory or None",
        ),
    ],
)
def test_a_value_of_the_wrong_type_is_named(make: Callable[[], object], says: str) -> None:
    with pytest.raises(WiringError) as caught:
        make()
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "apply", [Plan(strategy="mine", reason="old").apply, Plan(strategy="mine", reason="old").apply_to]
)
@pytest.mark.parametrize("given", [5, None, "hi"])
def test_a_plan_is_applied_to_a_list_of_messages(apply: Callable[[Any], object], given: Any) -> None:
    with pytest.raises(InputError, match=r"^messages: expected a list of Message, got \w+"):
        apply(given)


@pytest.mark.parametrize("given", ["hi", Message.user("hi"), [Message.user("hi")], None])
def test_what_is_sent_in_the_place_of_a_request_is_told_where_it_belongs(given: Any) -> None:
    said = r"send: expected a ChatRequest, got \w+; get_response\(\.\.\.\) takes messages"
    with pytest.raises(InputError, match=said):
        asyncio.run(STACK.build().send(given))


@pytest.mark.parametrize("given", [0, [], False])
def test_an_id_of_an_agents_turn_that_is_no_text_is_named(given: Any) -> None:
    with (
        pytest.raises(InputError, match="agent_turn: conversation_id: expected text"),
        agent_turn(conversation_id=given),
    ):
        pass


def test_a_history_as_a_subclass_of_text_is_read() -> None:
    class Marked(str):
        __slots__ = ()

    assert from_json(Marked(to_json([Message.user("hi")]))) == [Message.user("hi")]


@pytest.mark.parametrize("front", ["get_response", "get_streaming_response"])
@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("temperature", "unknown option 'temperature'; how to answer is said by options=ChatOptions(temperature=...)"),
        ("temprature", "options=ChatOptions(temperature=...)"),
        ("max_output_tokens", "options=ChatOptions(max_tokens=...)"),
        ("timeout_second", "did you mean 'timeout_seconds'?"),
        ("system", "options=ChatOptions(instructions=...)"),
        ("response_format", "did you mean 'output_type'?"),
        ("thread_id", "did you mean 'conversation_id'?"),
        ("stream", "get_streaming_response(...) streams"),
        ("zzz", "options=ChatOptions(temperature=0, extra={...})"),
    ],
)
def test_what_a_front_does_not_take_is_told_where_it_belongs(front: str, option: str, says: str) -> None:
    model = ScriptedClient()

    async def ask() -> None:
        answer: Any = getattr(ChatStack(model).build(), front)("hello", **{option: 1})
        if front == "get_response":
            await answer

    with pytest.raises(InputError) as caught:
        asyncio.run(ask())
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"{front}: ")
    assert model.requests == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"options": {"temperature": 0}}, "options: expected ChatOptions, got dict; write ChatOptions(...)"),
        ({"output_type": "Packing"}, "output_type: expected a class, got text 'Packing'"),
    ],
)
def test_what_has_the_wrong_type_is_refused_before_a_model_is_asked(options: dict[str, Any], says: str) -> None:
    model = ScriptedClient()
    with pytest.raises(InputError) as caught:
        asyncio.run(ChatStack(model).build().get_response("hello", **options))
    assert says in str(caught.value)
    assert model.requests == []


class Generating:
    """A client whose ``send`` is the generator itself."""

    async def send(self, request: ChatRequest, /) -> AsyncGenerator[ChatUpdate]:
        yield ChatUpdate(text="hello")


class NotAsync:
    """A client whose ``send`` gives the stream itself."""

    def send(self, request: ChatRequest, /) -> ChatStream:
        return ChatStream(Generating().send(request))


def test_a_client_whose_send_is_no_coroutine_function_is_told_how_to_write_it() -> None:
    client: Any = NotAsync()
    told = r"^NotAsync: send\(\) is no coroutine function: write 'async def send'; ChatStream\.primed"
    with pytest.raises(TypeError, match=told):
        asyncio.run(ChatStack(client).build().get_response("hello"))


def test_a_client_whose_send_is_a_generator_is_refused_when_it_is_wrapped() -> None:
    client: Any = Generating()
    told = r"of type Generating, whose send\(\) has a 'yield': it must return a ChatStream; ChatStream\.primed\("
    with pytest.raises(WiringError, match=f"^ChatStack: provider is {told}"):
        ChatStack(client)
    with pytest.raises(WiringError, match=f"^ContextWindowGuard: inner is {told}"):
        ContextWindowGuard(client, max_context_tokens=5)
    with pytest.raises(WiringError, match=f"^layer 'made': what its factory returned is {told}"):
        STACK.with_layer(lambda inner: client, "made", {}).build()


@pytest.mark.parametrize("client", ["gpt-5", ScriptedClient, None, ChatStack(ScriptedClient())], ids=repr)
@pytest.mark.parametrize("layer", [ProgressReporter, FunctionInvoker, ModelTracer], ids=lambda layer: layer.__name__)
def test_a_layer_around_what_is_no_client_is_refused_when_it_is_made(
    layer: Callable[[Any], object], client: object
) -> None:
    with pytest.raises(
        WiringError, match=f"^{name_of(layer)}: inner is .*(; (write|pass) |: it has no send)"
    ) as caught:
        layer(client)
    assert (caught.value.layer, caught.value.parameter) == (name_of(layer), "inner")


async def fetched() -> str:
    return "x"


@pytest.mark.parametrize(
    "use",
    [
        lambda waits: Message.user(waits),
        lambda waits: Message.system(waits),
        lambda waits: Message("user", (waits,)),
        lambda waits: Message.tool("c", waits),
        lambda waits: ToolResult("c", output=waits),
        lambda waits: Text(waits),
        lambda waits: asyncio.run(ChatStack(ScriptedClient()).build().get_response([waits])),
        lambda waits: asyncio.run(ChatStack(ScriptedClient()).build().get_response(waits)),
    ],
)
def test_a_forgotten_await_is_named(use: Callable[[Any], object]) -> None:
    waits = fetched()
    try:
        with pytest.raises(InputError, match=r"coroutine.*; await it first$"):
            use(waits)
    finally:
        waits.close()


def test_a_stream_that_is_taken_for_an_answer_says_how_to_read_it() -> None:
    stream = ChatStack(ScriptedClient()).build().get_streaming_response("hello")
    with pytest.raises(
        AttributeError, match=r"no attribute 'text'; read it first: \(await stream\.response\(\)\)\.text"
    ):
        stream.text  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(stream, "anything_else")
    with (
        ChatStack(ScriptedClient()).build_sync().get_streaming_response("hello") as blocking,
        pytest.raises(AttributeError, match=r"'SyncStream' .* 'usage'; read it first: stream\.response\(\)\.usage"),
    ):
        blocking.usage  # type: ignore[attr-defined]  # noqa: B018


def test_a_stream_that_is_awaited_says_how_to_open_it() -> None:
    async def asked() -> None:
        await ChatStack(ScriptedClient()).build().get_streaming_response("hello")  # type: ignore[misc]

    with pytest.raises(TypeError, match=r"not awaited: write 'async with client\.get_streaming_response\(\.\.\.\) as"):
        asyncio.run(asked())


def test_an_answer_that_is_not_awaited_is_named_by_python_itself() -> None:
    """What get_response gives stays a plain coroutine: much inspects whether it is one."""
    client = ChatStack(ScriptedClient()).build()
    with (
        pytest.warns(RuntimeWarning, match=r"get_response' was never awaited"),
        pytest.raises(AttributeError, match="'coroutine' object has no attribute 'text'"),
    ):
        client.get_response("hello").text  # type: ignore[attr-defined]  # noqa: B018
    assert inspect.iscoroutinefunction(client.get_response)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Message("human", (Text("hi"),)), "role='human' is not one of .*; write 'user'"),  # type: ignore[arg-type]
        (lambda: Message("developer", ()), "; write 'system'"),  # type: ignore[arg-type]
        (lambda: Message(role="user", parts="hi"), "must be a tuple of parts, not str; try Message.user"),  # type: ignore[arg-type]
        (lambda: Message("user", ("hi",)), r"parts\[0\] is a str, not a part; write Text\(text\), or Message.user"),  # type: ignore[arg-type]
        (lambda: Message("user", ({"type": "text"},)), r"parts\[0\] is a dict, not a part; from_openai_chat"),  # type: ignore[arg-type]
        (lambda: Message.user({"type": "text", "text": "hi"}), "argument 0 is a dict, .*; from_openai_chat"),  # type: ignore[arg-type]
        (lambda: Message.user(["a", "b"]), r"argument 0 is a list, .*Message.user\(\*parts\)"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_message_that_is_made_wrongly_is_told_how(make: Callable[[], object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        make()


@pytest.mark.parametrize("make", [ChatOptions, ChatOptions().but])
@pytest.mark.parametrize(
    ("option", "says"),
    [("temprature", "did you mean 'temperature'?"), ("zzz", "what only the provider knows belongs in extra={...}")],
)
def test_an_unknown_option_of_a_request_is_told_the_nearest_name(make: Any, option: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        make(**{option: 3})
    assert str(caught.value) == f"ChatOptions: unknown option {option!r}; {says}"


def test_a_scripted_client_is_given_a_list() -> None:
    with pytest.raises(ValueError, match="answers must be a list"):
        ScriptedClient("fine")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ContextWindowGard", "; did you mean 'ContextWindowGuard'?"),
        ("Massage", "; did you mean 'Message'?"),
        ("OpenAIChatClient", "; OpenAIChatClient is in chatstack.providers.openai"),
        ("AntropicChatClient", "; AnthropicChatClient is in chatstack.providers.anthropic"),
        ("OpenAI", "; OpenAIChatClient is in chatstack.providers.openai"),
        ("OpenAIResponsesClient", "; OpenAIResponsesClient is in chatstack.providers.openai"),
        ("AnthropicProvider", "; AnthropicChatClient is in chatstack.providers.anthropic"),
        ("Zzzzzz", ""),
    ],
)
def test_a_misspelt_name_of_the_package_is_told_the_right_one(name: str, says: str) -> None:
    with pytest.raises(AttributeError) as asked:
        getattr(chatstack, name)
    assert str(asked.value) == f"module 'chatstack' has no attribute {name!r}{says}"
    with pytest.raises(ImportError) as imported:
        exec(f"from chatstack import {name}")
    assert str(imported.value) == f"cannot import name {name!r} from 'chatstack'{says}"
    assert imported.value.name == name
    assert not hasattr(chatstack, name)


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("providers", "OpenAIChatClient is in chatstack.providers.openai"),
        ("testing", "ScriptedClient is in chatstack.testing"),
    ],
)
def test_a_module_that_nobody_has_imported_is_told_what_is_in_it(module: str, says: str) -> None:
    code = f"import chatstack; chatstack.{module}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.stderr.rstrip().endswith(f"AttributeError: module 'chatstack' has no attribute '{module}'; {says}")


def test_every_name_that_is_told_to_be_elsewhere_is_there() -> None:
    for name in (
        "OpenAIChatClient",
        "AnthropicChatClient",
        "SQLiteStore",
        "SQLiteJournal",
        "LiveView",
        "ScriptedClient",
    ):
        with pytest.raises(ImportError, match=f"; {name} is in ") as caught:
            exec(f"from chatstack import {name}")
        exec(f"from {str(caught.value).rsplit(' ', 1)[1]} import {name}")


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("chatstack.di.injectq", "injectq", "injectq"),
        ("chatstack.di.dependency_injector", "dependency_injector", "dependency-injector"),
    ],
)
def test_a_container_that_is_not_installed_names_its_extra(module: str, package: str, extra: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None\nimport {module}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    said = f"ModuleNotFoundError: {module}: needs {package}; pip install 'chatstack-core[{extra}]'"
    assert ran.stderr.rstrip().endswith(said)
