"""A stack as a model of Pydantic AI's, and their models as providers."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, ImageUrl, NativeOutput, PromptedOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    CompactionPart,
    FunctionToolCallEvent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    ThinkingPart,
    ToolReturnPart,
    UploadedFile,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings, ToolOrOutput
from pydantic_ai.tools import ToolDefinition

from chatstack import (
    ChatOptions,
    ChatStack,
    File,
    FunctionInvoker,
    Image,
    InputError,
    Message,
    Part,
    ProviderInfo,
    RateLimitError,
    Reasoning,
    Text,
    ToolCall,
    ToolDeclaration,
    ToolResultClearer,
    WiringError,
    tool,
)
from chatstack.context.edits.summaries import OPENING
from chatstack.testing import ScriptedClient
from chatstack_pydantic_ai import ChatStackModel, PydanticAIClient
from tests.test_wrapper import LONG, Script, called, look


def over(answers: list[Any]) -> tuple[ChatStackModel, ScriptedClient]:
    provider = ScriptedClient(answers, info=ProviderInfo(name="openai", model="m", window_tokens=9_000))
    stack = ChatStack(provider).use(ToolResultClearer, trigger={"tokens": 1_000}, keep={"messages": 1})
    return ChatStackModel(stack.build()), provider


def calls(rounds: int) -> list[Any]:
    return [*(Message.assistant(ToolCall(f"c{at}", "look", f'{{"place":"p{at}"}}')) for at in range(rounds)), "done"]


def test_an_agent_runs_its_tools_and_the_stack_sees_each_call() -> None:
    model, provider = over(calls(4))
    result = Agent(model, tools=[look], instructions="Be brief.").run_sync("look")
    assert result.output == "done"
    last = [each.results[0].text for each in provider.requests[-1].messages if each.results]
    assert len(last) == 4
    assert LONG in last[-1]
    assert not any(LONG in each for each in last[:-1])
    returned = [part for message in result.all_messages() for part in message.parts if isinstance(part, ToolReturnPart)]
    assert all(LONG in str(part.content) for part in returned)
    assert provider.requests[0].options.instructions == "Be brief."
    assert provider.requests[0].options.tools[0].name == "look"  # type: ignore[union-attr]
    assert result.usage.input_tokens > 0
    assert (model.model_name, model.system, model.context_window) == ("m", "openai", 9_000)


def test_streamed_and_not_are_the_same_response() -> None:
    signed = Reasoning("hm", '{"type":"thinking","thinking":"hm","signature":"s"}', "anthropic")
    answer = Message("assistant", (signed, Text("all is well")))

    async def run() -> tuple[ModelResponse, ModelResponse]:
        agent = Agent(over([answer])[0])
        whole = (await agent.run("hi")).all_messages()[-1]
        async with agent.run_stream("hi") as result:
            assert "".join([each async for each in result.stream_text(delta=True, debounce_by=None)]) == "all is well"
        streamed = result.all_messages()[-1]
        assert isinstance(whole, ModelResponse)
        assert isinstance(streamed, ModelResponse)
        return whole, streamed

    whole, streamed = asyncio.run(run())
    assert whole.parts == streamed.parts
    assert (whole.usage, whole.finish_reason, whole.model_name) == (streamed.usage, streamed.finish_reason, "m")


def thought(text: str, signature: str) -> Reasoning:
    item = f'{{"type":"thinking","thinking":"{text}","signature":"{signature}"}}'
    return Reasoning(text, item, "anthropic")


HIDDEN = Reasoning("", '{"type":"redacted_thinking","data":"x"}', "anthropic")
LOOK = ToolCall("c1", "look", '{"place":"a"}')


async def streamed_by(agent: Agent) -> list[ModelMessage]:
    """Run the agent with each response streamed to its end; return all messages."""
    async with agent.iter("look") as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as events:
                    async for _ in events:
                        pass
    return run.all_messages()


@pytest.mark.parametrize(
    "parts",
    [
        (thought("a", "1"), Text("so"), thought("b", "2"), LOOK),
        (thought("a", "1"), thought("b", "2"), Text("so"), LOOK),
        (Text("well"), thought("a", "1"), LOOK, thought("b", "2")),
        (HIDDEN, thought("a", "1"), Text("so"), HIDDEN, LOOK),
        (Text("so"), LOOK, Text("then")),
    ],
)
def test_several_items_of_reasoning_are_streamed_as_several_in_their_order(parts: tuple[Part, ...]) -> None:
    model, provider = over([Message("assistant", parts), "done", Message("assistant", parts), "done"])
    agent = Agent(model, tools=[look])

    async def run() -> tuple[ModelMessage, ModelMessage]:
        return (await streamed_by(agent))[1], (await agent.run("look")).all_messages()[1]

    streamed, whole = asyncio.run(run())
    assert streamed.parts == whole.parts
    assert [each.messages[1].parts for each in (provider.requests[1], provider.requests[3])] == [parts, parts]


def test_signatures_are_in_the_events_of_a_stream_too() -> None:
    model, _ = over([Message("assistant", (thought("a", "1"), Text("so"), thought("b", "2"), LOOK)), "done"])

    async def run() -> dict[int, ModelResponsePart]:
        found: dict[int, ModelResponsePart] = {}
        async with agent.run_stream_events("look") as events:
            async for event in events:
                if isinstance(event, FunctionToolCallEvent):
                    break
                if isinstance(event, PartStartEvent):
                    found[event.index] = event.part
                elif isinstance(event, PartDeltaEvent):
                    found[event.index] = event.delta.apply(found[event.index])  # type: ignore[arg-type]
        return found

    agent = Agent(model, tools=[look])
    parts = list(asyncio.run(run()).values())
    assert [each.content for each in parts if isinstance(each, TextPart | ThinkingPart)] == ["a", "so", "b"]
    assert [(each.provider_details or {})["chatstack"][1] for each in parts if isinstance(each, ThinkingPart)] == [
        "anthropic",
        "anthropic",
    ]


@pytest.mark.parametrize("stream", [True, False])
def test_arguments_and_signatures_come_back_as_they_were_received(stream: bool) -> None:
    signed = Reasoning("hm", '{"type":"thinking","thinking":"hm","signature":"s"}', "anthropic")
    answer = Message("assistant", (signed, Text("I look"), ToolCall("c1", "look", '{"place":"a"}')))
    model, provider = over([answer, "done"])
    agent = Agent(model, tools=[look])

    async def run() -> None:
        if not stream:
            await agent.run("look")
            return
        await streamed_by(agent)

    asyncio.run(run())
    assert provider.requests[-1].messages[1] == answer


def test_structured_output_by_a_tool_and_natively() -> None:
    class Place(BaseModel):
        """Where it is."""

        name: str

    model, provider = over([Message.assistant(ToolCall("c1", "final_result", '{"name":"here"}'))])
    assert Agent(model, output_type=Place).run_sync("?").output == Place(name="here")
    assert provider.requests[-1].options.tool_choice == "required"
    model, provider = over(['{"name": "there"}'])
    assert Agent(model, output_type=NativeOutput(Place)).run_sync("?").output == Place(name="there")
    schema = provider.requests[-1].options.output_schema
    assert schema is not None
    assert "name" in schema.schema


def test_a_schema_in_the_prompt_reaches_the_provider_with_the_instructions() -> None:
    class Place(BaseModel):
        name: str

    asked: list[str | None] = []

    def bare(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(info.instructions)
        return ModelResponse([TextPart('{"name": "here"}')])

    model, provider = over(['{"name": "here"}'])
    for each in (FunctionModel(bare), model):
        agent = Agent(each, output_type=PromptedOutput(Place), instructions="Be brief.")
        assert agent.run_sync("?").output == Place(name="here")
    options = provider.requests[-1].options
    assert options.instructions == asked[0]
    assert options.output_schema is None
    assert '"name"' in options.instructions


def test_pictures_and_settings_reach_the_provider() -> None:
    model, provider = over(["fine"])
    picture = BinaryContent(b"png", media_type="image/png")
    Agent(model, model_settings={"temperature": 0.5, "max_tokens": 7, "stop_sequences": ["x"]}).run_sync(
        ["what?", picture]
    )
    options = provider.requests[-1].options
    assert (options.temperature, options.max_tokens, options.stop) == (0.5, 7, ("x",))
    assert provider.requests[-1].messages[0].parts == (Text("what?"), Image(data="cG5n", media_type="image/png"))


@pytest.mark.filterwarnings("default")
def test_settings_without_an_option_of_ours_are_sent_by_their_names_or_warned_of() -> None:
    model, provider = over(["fine"])
    settings: Any = {
        "thinking": "high",
        "frequency_penalty": 0.5,
        "top_k": 3,
        "service_tier": "flex",
        "extra_headers": {"x-tenant": "t"},
        "timeout": 5.0,
        "extra_body": {"store": False},
    }
    with pytest.warns(UserWarning, match="ChatStackModel: extra_headers, timeout: no place"):
        Agent(model, model_settings=settings).run_sync("hi")
    options = provider.requests[-1].options
    assert options.reasoning_effort == "high"
    assert options.extra == {"frequency_penalty": 0.5, "top_k": 3, "service_tier": "flex", "store": False}


@pytest.mark.parametrize(
    ("given", "choice", "names"),
    [
        (["look"], "look", ["look", "find", "final_result"]),
        (["look", "final_result"], "required", ["look", "final_result"]),
        (ToolOrOutput(function_tools=["find"]), "required", ["find", "final_result"]),
        ("none", "required", ["final_result"]),
        ("required", "required", ["look", "find"]),
        (None, "required", ["look", "find", "final_result"]),
    ],
)
def test_a_choice_of_tools_reaches_the_provider(given: Any, choice: str, names: list[str]) -> None:
    model, provider = over(["fine"])
    functions, output = [ToolDefinition(name=name) for name in ("look", "find")], ToolDefinition(name="final_result")
    parameters = ModelRequestParameters(
        function_tools=functions, output_tools=[output], output_mode="tool", allow_text_output=False
    )
    settings = ModelSettings(tool_choice=given) if given is not None else None
    asyncio.run(model.request([ModelRequest([UserPromptPart("hi")])], settings, parameters))
    options = provider.requests[-1].options
    assert options.tool_choice == choice
    assert [tool.name for tool in options.tools if isinstance(tool, ToolDeclaration)] == names


def test_options_of_a_request_go_to_their_model_or_are_refused() -> None:
    asked: list[AgentInfo] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(info)
        return ModelResponse([TextPart("fine")])

    client = PydanticAIClient(FunctionModel(answer, profile=ModelProfile(supports_thinking=True)))
    asyncio.run(client.get_response("hi", options=ChatOptions(reasoning_effort="high", seed=3)))
    assert asked[0].model_request_parameters.thinking == "high"
    assert (asked[0].model_settings or {}).get("seed") == 3
    with pytest.raises(InputError, match="other"):
        asyncio.run(client.get_response("hi", options=ChatOptions(model="other")))


PNG = BinaryContent(b"png", media_type="image/png")
KEPT = UploadedFile("file_1", "openai", media_type="application/pdf")
SHOWN = UploadedFile("file_2", "openai", media_type="image/png")


def test_pictures_of_a_tool_and_uploaded_files_reach_the_provider() -> None:
    def show(kind: str) -> Any:
        """Show it."""
        return {"one": PNG, "several": ["see", ImageUrl("https://x.test/z.png"), {"size": 3}]}[kind]

    asking = [Message.assistant(ToolCall(each, "show", f'{{"kind": "{each}"}}')) for each in ("one", "several")]
    provider = ScriptedClient([*asking, "done"])
    Agent(ChatStackModel(provider), tools=[show]).run_sync(["what?", KEPT, SHOWN])
    first, _, one, _, several = provider.requests[-1].messages
    pdf = File(file_id="file_1", media_type="application/pdf")
    assert first.parts == (Text("what?"), pdf, Image(file_id="file_2", media_type="image/png"))
    assert one.results[0].output == (Image(data="cG5n", media_type="image/png"),)
    assert several.results[0].output == (Text("see"), Image(url="https://x.test/z.png"), Text('{"size":3}'))


def test_a_summary_in_a_history_is_sent_as_what_somebody_said_and_not_as_a_system_message() -> None:
    """Pydantic AI's own adapters send one as a user's text: it reports what tools said, too."""
    provider = ScriptedClient(["fine"])
    history = [ModelRequest([CompactionPart("The user likes trains.")]), ModelResponse([TextPart("Good.")])]
    Agent(ChatStackModel(provider)).run_sync("Where next?", message_history=history)
    first, *others = provider.requests[0].messages
    assert (first.role, first.text) == ("user", f"{OPENING}\nThe user likes trains.")
    assert [each.role for each in others] == ["assistant", "user"]


def test_content_that_has_no_part_of_ours_is_refused() -> None:
    model, _ = over(["done"])
    prompt = UserPromptPart("what?")
    prompt.content = [cast("Any", object())]  # whatever a later version has
    with pytest.raises(InputError, match=r'cannot be sent: {"type": "object"}'):
        asyncio.run(model.request([ModelRequest([prompt])], None, ModelRequestParameters()))


class Files(FunctionModel):
    """A model of a provider that keeps files."""

    @property
    def system(self) -> str:
        return "openai"


def test_pictures_of_a_stacks_tool_and_files_by_their_id_reach_a_model_of_theirs() -> None:
    @tool
    def show() -> Any:
        """Show it."""
        return [Text("see"), Image.from_bytes(b"png", "image/png")]

    script = Script([called(("c1", "show", {})), "done"])
    client = ChatStack(PydanticAIClient(Files(script.answer))).use(FunctionInvoker, tools=[show]).build()
    files = (File(file_id="file_1", media_type="application/pdf"), Image(file_id="file_2"))
    asyncio.run(client.get_response([Message.user("what?", *files)]))
    asked = [part for message in script.received[-1] for part in message.parts]
    (prompt,) = [part for part in asked if isinstance(part, UserPromptPart)]
    (shown,) = [part for part in asked if isinstance(part, ToolReturnPart)]
    (text, pdf, image) = prompt.content
    assert text == "what?"
    assert isinstance(pdf, UploadedFile)
    assert isinstance(image, UploadedFile)
    assert (pdf.file_id, pdf.media_type, pdf.provider_name) == ("file_1", "application/pdf", "openai")
    assert (image.file_id, image.media_type) == ("file_2", "image/*")
    see, picture = shown.content
    assert see == "see"
    assert isinstance(picture, BinaryContent)
    assert (picture.data, picture.media_type) == (PNG.data, PNG.media_type)
    nowhere = ChatStack(PydanticAIClient(script.model)).build()
    with pytest.raises(InputError, match="file_1"):
        asyncio.run(nowhere.get_response([Message.user("what?", *files)]))


def test_a_stack_with_tools_of_its_own_and_what_is_no_client_are_refused() -> None:
    with pytest.raises(WiringError, match="give them to the agent"):
        ChatStackModel(ChatStack(ScriptedClient()).use(FunctionInvoker, tools=[look]).build())
    with pytest.raises(WiringError, match="client is of type int, and no chat client"):
        ChatStackModel(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("stream", [True, False])
def test_any_model_of_theirs_is_a_provider(stream: bool) -> None:
    script = Script([called(("c1", "look", {"place": "a"}), ("c2", "look", {"place": "b"})), "all is well"])
    client = ChatStack(PydanticAIClient(script.model)).use(FunctionInvoker, tools=[look]).build()

    async def run() -> None:
        if stream:
            async with client.get_streaming_response("look") as updates:
                text = "".join([update.text async for update in updates])
                response = await updates.response()
        else:
            response = await client.get_response("look")
            text = response.text
        assert text.strip() == "all is well"
        assert [each.role for each in response.messages] == ["assistant", "tool", "tool", "assistant"]
        assert response.messages[0].calls[0].arguments == '{"place":"a"}'

    asyncio.run(run())
    assert len(script.received) == 2


def test_their_errors_are_ours_with_theirs_as_the_cause() -> None:
    error = ModelHTTPError(429, "script", "slow down")
    client = ChatStack(PydanticAIClient(Script([error]).model)).build()
    with pytest.raises(RateLimitError) as raised:
        asyncio.run(client.get_response("hi"))
    assert raised.value.__cause__ is error
