"""A stack as a model of the Agents SDK's, and layers around its models."""

from __future__ import annotations

import asyncio
import copy
from typing import Any, cast

import pytest
from agents import Agent, ModelProvider, RunConfig, Runner, function_tool, handoff, set_tracing_disabled
from agents.exceptions import ModelBehaviorError
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseErrorEvent
from pydantic import BaseModel

from chatstack import (
    ChatOptions,
    ChatStack,
    ContextOverflowError,
    ContextWindowGuard,
    FunctionInvoker,
    InputError,
    Message,
    Summarizer,
    ToolCall,
    ToolDeclaration,
    ToolResultClearer,
    WiringError,
    agent_turn,
    tool,
)
from chatstack.testing import ScriptedClient, TelemetryCapture
from chatstack_openai_agents import AgentsModelClient, StackModel, StackModelProvider

set_tracing_disabled(True)


class TheirError(Exception):
    """As an SDK's."""

    status_code = 400


@function_tool
def look(number: int) -> str:
    """Look something up."""
    return f"{number}: " + "word " * 400


@tool
def recall(name: str) -> str:
    """Recall something."""
    return f"recalled {name}"


def call(number: int) -> Any:
    return function_call("look", {"number": number}, call_id=f"c{number}")


def rounds() -> list[Any]:
    return [[call(0)], [call(1), call(2)], [call(3)], [assistant_message("done now")]]


def layered(model: ScriptedModel, *, resolve: Any = None, trigger: int = 1_000) -> StackModel:
    stack = ChatStack(AgentsModelClient(model)).use(
        ToolResultClearer, trigger={"tokens": trigger}, keep={"messages": 1}
    )
    return StackModel(stack.build(resolve))


async def run(agent: Agent[Any], given: Any, *, stream: bool, **options: Any) -> Any:
    if not stream:
        return await Runner.run(agent, given, **options)
    result = Runner.run_streamed(agent, given, **options)
    async for _ in result.stream_events():
        pass
    return result


@pytest.mark.parametrize("stream", [False, True])
def test_old_results_are_cleared_within_the_loop_and_the_result_keeps_them(stream: bool) -> None:
    model = ScriptedModel(rounds())
    agent = Agent(name="planner", model=layered(model), tools=[look])
    result = asyncio.run(run(agent, "look four times", stream=stream))
    assert result.final_output == "done now"
    kept = [item for item in result.to_input_list() if item.get("type") == "function_call_output"]
    assert all(len(item["output"]) > 2_000 for item in kept)
    last = [item for item in cast("Any", model.calls[-1].input) if item.get("type") == "function_call_output"]
    assert [item["call_id"] for item in last] == ["c0", "c1", "c2", "c3"]
    assert len(last[0]["output"]) < 500 < 2_000 < len(last[-1]["output"])


@pytest.mark.parametrize("stream", [False, True])
def test_below_the_triggers_the_very_arguments_go_through(stream: bool) -> None:
    seen = []
    for model in (bare := ScriptedModel(rounds()), inner := ScriptedModel(rounds())):
        agent = Agent(
            name="planner",
            instructions="Be brief.",
            model=bare if model is bare else layered(inner, trigger=1_000_000),
            tools=[look],
        )
        asyncio.run(run(agent, "look four times", stream=stream))
        seen.append([(c.system_instructions, c.input, c.model_settings, c.output_schema) for c in model.calls])
    assert seen[0] == seen[1]


def test_the_callers_items_stay_as_they_are() -> None:
    items: list[Any] = [{"role": "user", "content": "go"}]
    for number in range(6):
        items.append({"type": "function_call", "call_id": f"c{number}", "name": "look", "arguments": "{}"})
        items.append({"type": "function_call_output", "call_id": f"c{number}", "output": "word " * 400})
    items.append({"role": "user", "content": "and now?"})
    before, objects = copy.deepcopy(items), list(map(id, items))
    model = ScriptedModel([[assistant_message("fine")]])
    asyncio.run(Runner.run(Agent(name="a", model=layered(model)), items))
    assert items == before
    assert list(map(id, items)) == objects
    assert model.calls[0].input != before


@pytest.mark.parametrize("stream", [False, True])
def test_handoffs_go_by_a_model_provider_around_every_model(stream: bool) -> None:
    first = ScriptedModel([[function_call("transfer_to_second", {}, call_id="h1")]])
    second = ScriptedModel([[assistant_message("I am second")]])

    class Provider(ModelProvider):
        def get_model(self, model_name: str | None) -> Any:
            return {"one": first, "two": second}[model_name or ""]

    capture = TelemetryCapture()
    stack = ChatStack().use(ContextWindowGuard, max_context_tokens=10)
    config = RunConfig(model_provider=StackModelProvider(stack, Provider(), resolve=capture.resolve), group_id="g-1")
    target = Agent(name="second", model="two")
    agent = Agent(name="first", model="one", handoffs=[handoff(target)])

    async def turn() -> Any:
        with agent_turn("first", telemetry=capture.telemetry):
            return await run(agent, "over to the second one, please, and quickly", stream=stream, run_config=config)

    result = asyncio.run(turn())
    assert result.final_output == "I am second"
    assert result.last_agent.name == "second"
    (root,) = [span for span in capture.spans if span.parent_id is None]
    chats = [span for span in capture.spans if span.name.startswith("chat")]
    assert len(chats) == 2
    assert {span.parent_id for span in chats} == {root.span_id}
    assert "context_window_exceeded" in cast("Any", root.attributes["chatstack.warnings"])


class Weather(BaseModel):
    city: str


@pytest.mark.parametrize("stream", [False, True])
def test_a_stack_with_a_provider_of_ours_answers_an_agent(stream: bool) -> None:
    model = ScriptedClient(
        [
            Message.assistant(
                "Let me look. ", ToolCall("c1", "look", '{"number":1}'), ToolCall("c2", "look", '{"number":2}')
            ),
            '{"city": "Rome"}',
        ]
    )
    agent = Agent(name="a", instructions="Be brief.", model=StackModel(ChatStack(model).build()), tools=[look])
    agent.output_type = Weather
    result = asyncio.run(run(agent, "where?", stream=stream))
    assert result.final_output == Weather(city="Rome")
    first, second = model.requests
    assert first.options.instructions == "Be brief."
    assert [each.name for each in first.options.tools if isinstance(each, ToolDeclaration)] == ["look"]
    assert first.options.output_schema is not None
    assert [[each.call_id for each in m.results] for m in second.messages if m.role == "tool"] == [["c1"], ["c2"]]
    assert second.messages[1].text == "Let me look. "
    assert result.context_wrapper.usage.requests == 2


@pytest.mark.parametrize("stream", [False, True])
def test_tools_of_the_stack_run_inside_and_are_not_seen(stream: bool) -> None:
    model = ScriptedClient([Message.assistant("Hm. ", ToolCall("r1", "recall", '{"name": "ann"}')), "It was ann."])
    stack = ChatStack(model).use(FunctionInvoker, tools=[recall])
    result = asyncio.run(run(Agent(name="a", model=StackModel(stack.build())), "who?", stream=stream))
    assert [item.type for item in result.new_items] == ["message_output_item", "message_output_item"]
    assert result.final_output == "It was ann."


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_of_a_tool_that_nobody_has_reaches_the_runner(stream: bool) -> None:
    model = ScriptedClient([Message.assistant(ToolCall("c1", "lok", '{"number": 1}')), "sorry"])
    with pytest.raises(ModelBehaviorError, match="lok"):
        asyncio.run(run(Agent(name="a", model=StackModel(model), tools=[look]), "go", stream=stream))
    model = ScriptedClient([Message.assistant(ToolCall("c1", "lok", '{"number": 1}')), "sorry"])
    built = ChatStack(model).use(FunctionInvoker, tools=[recall]).build()
    result = asyncio.run(run(Agent(name="a", model=StackModel(built), tools=[look]), "go", stream=stream))
    assert result.final_output == "sorry"  # the stack's own loop has told the model


def test_streamed_text_comes_in_pieces() -> None:
    stack = ChatStack(ScriptedClient(["one two three four"]))

    async def texts() -> list[str]:
        result = Runner.run_streamed(Agent(name="a", model=StackModel(stack.build())), "go")
        return [
            cast("Any", event).data.delta
            async for event in result.stream_events()
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        ]

    assert "".join(found := asyncio.run(texts())) == "one two three four"
    assert len(found) > 1


def test_a_summary_is_written_by_the_model_below() -> None:
    model = ScriptedModel([[assistant_message("We spoke of the sea.")], [assistant_message("fine")]])
    stack = ChatStack(AgentsModelClient(model)).use(Summarizer, max_tokens=2_000, keep_recent_turns=1)
    items: list[Any] = [
        {"role": "user" if n % 2 == 0 else "assistant", "content": f"{n} " + "sea " * 500} for n in range(8)
    ]
    items.append({"role": "user", "content": "and now?"})
    result = asyncio.run(Runner.run(Agent(name="a", model=StackModel(stack.build())), items))
    assert result.final_output == "fine"
    assert "We spoke of the sea." in str(model.calls[1].input)
    assert not model.calls[0].tools


@pytest.mark.parametrize("stream", [False, True])
def test_an_overflow_is_tried_again_smaller(stream: bool) -> None:
    model = ScriptedModel([TheirError("prompt is too long: 3000 tokens > 2000 maximum"), [assistant_message("fine")]])
    stack = ChatStack(AgentsModelClient(model)).use(
        ContextWindowGuard, max_context_tokens=100_000, prune_on_overflow=True
    )
    items: list[Any] = [
        {"role": "user" if n % 2 == 0 else "assistant", "content": f"{n} " + "sea " * 300} for n in range(9)
    ]
    result = asyncio.run(run(Agent(name="a", model=StackModel(stack.build())), items, stream=stream))
    assert result.final_output == "fine"
    assert len(model.calls[0].input) == 9 > len(model.calls[1].input)


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_model_raises_surfaces_as_it_was_raised(stream: bool) -> None:
    error = TheirError("bad request")
    with pytest.raises(TheirError) as raised:
        asyncio.run(run(Agent(name="a", model=layered(ScriptedModel([error]))), "go", stream=stream))
    assert raised.value is error


def test_a_refusal_of_a_layer_is_an_error_of_ours() -> None:
    model = ScriptedModel([[assistant_message("fine")]])
    stack = ChatStack(AgentsModelClient(model)).use(ContextWindowGuard, max_context_tokens=100, strict=True)
    with pytest.raises(ContextOverflowError):
        asyncio.run(Runner.run(Agent(name="a", model=StackModel(stack.build())), "word " * 1_000))
    assert not model.calls


@pytest.mark.parametrize("stream", [False, True])
def test_malformed_items_are_the_models_to_refuse(stream: bool) -> None:
    model = ScriptedModel([[assistant_message("fine")]])
    items: list[Any] = [{"type": "message", "id": "m"}]
    result = asyncio.run(run(Agent(name="a", model=layered(model)), items, stream=stream))
    assert result.final_output == "fine"
    with pytest.raises(InputError):
        asyncio.run(run(Agent(name="a", model=StackModel(ScriptedClient(["x"]))), items, stream=stream))


def test_a_failure_event_reaches_the_runner() -> None:
    async def events(_: object) -> Any:
        yield ResponseErrorEvent(type="error", code="server_error", message="boom", param=None, sequence_number=0)

    with pytest.raises(ModelBehaviorError):
        asyncio.run(run(Agent(name="a", model=layered(ScriptedModel([ModelStep.stream(events)]))), "go", stream=True))


def test_a_model_of_theirs_answers_for_a_stack_with_a_tool_loop() -> None:
    model = ScriptedModel([[function_call("recall", {"name": "ann"}, call_id="r1")], [assistant_message("it was ann")]])
    built = ChatStack(AgentsModelClient(model)).use(FunctionInvoker, tools=[recall]).build()

    async def both() -> tuple[Any, str]:
        whole = await built.get_response("who?")
        async with built.get_streaming_response("who?") as stream:
            return whole, "".join([update.text async for update in stream])

    model.extend([[function_call("recall", {"name": "ann"}, call_id="r1")], [assistant_message("it was ann")]])
    whole, text = asyncio.run(both())
    assert whole.text == text == "it was ann"
    assert cast("Any", model.calls[1].input)[-1]["output"] == "recalled ann"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("is_theirs", [False, True])
def test_a_conversation_at_the_server_gets_the_results_of_a_stacks_own_tools_alone(
    is_theirs: bool, stream: bool
) -> None:
    model = ScriptedModel([[function_call("recall", {"name": "ann"}, call_id="r1")], [assistant_message("it was ann")]])
    built = ChatStack(AgentsModelClient(model)).use(FunctionInvoker, tools=[recall]).build()
    if is_theirs:
        asyncio.run(run(Agent(name="a", model=StackModel(built)), "who?", stream=stream, conversation_id="conv_1"))
    else:
        asyncio.run(built.get_response("who?", options=ChatOptions(extra={"conversation": "conv_1"})))
    assert [each.conversation_id for each in model.calls] == ["conv_1", "conv_1"]
    assert [item["type"] for item in cast("Any", model.calls[1].input)] == ["function_call_output"]


def test_conversations_side_by_side_do_not_meet() -> None:
    stack = ChatStack().use(ToolResultClearer, trigger={"tokens": 1_000}, keep={"messages": 1})

    async def one(number: int) -> None:
        model = ScriptedModel([[call(number)], [assistant_message(f"answer {number}")]])

        class Provider(ModelProvider):
            def get_model(self, model_name: str | None) -> Any:
                return model

        config = RunConfig(model_provider=StackModelProvider(stack, Provider()))
        result = await Runner.run(Agent(name="a", model="m", tools=[look]), f"question {number}", run_config=config)
        assert result.final_output == f"answer {number}"
        assert f"question {number}" in str(cast("Any", model.calls[1].input)[0])

    async def everybody() -> None:
        await asyncio.gather(*map(one, range(200)))

    asyncio.run(everybody())


@pytest.mark.parametrize("takes_one", [False, True])
def test_the_runner_gives_its_prompt_cache_key_to_a_model_that_takes_one(takes_one: bool) -> None:
    class Theirs(ScriptedModel):
        def _supports_default_prompt_cache_key(self) -> bool:
            return takes_one

    async def run(stacked: bool) -> object:
        model = Theirs([ModelStep(output=[assistant_message("hi")])])
        used = StackModel(ChatStack(AgentsModelClient(model)).build()) if stacked else model
        await Runner.run(Agent("a", model=used), "hello", run_config=RunConfig(group_id="g"))
        return (model.calls[0].model_settings.extra_args or {}).get("prompt_cache_key")

    bare, stacked = asyncio.run(run(False)), asyncio.run(run(True))
    assert bare == stacked
    assert (bare is not None) is takes_one


def test_what_is_no_client_or_model_is_refused() -> None:
    model = ScriptedModel([])
    with pytest.raises(WiringError, match="StackModel"):
        StackModel(cast("Any", model))
    with pytest.raises(WiringError, match="AgentsModelClient"):
        AgentsModelClient(cast("Any", "gpt-5"))
    with pytest.raises(WiringError, match="StackModelProvider"):
        StackModelProvider(ChatStack(AgentsModelClient(model)))
