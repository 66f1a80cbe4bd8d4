"""Where the marks for Anthropic's prompt cache stand, and that nothing else is changed by them."""

from __future__ import annotations

import asyncio
import json
import typing
from collections.abc import Mapping
from typing import Any

import anthropic.types as sdk
import httpx2
import pytest
from anthropic import AsyncAnthropicBedrock, AsyncAnthropicVertex
from hypothesis import given
from hypothesis import strategies as st

from chatstack import (
    ChatOptions,
    ChatRequest,
    File,
    Image,
    Message,
    ProviderItem,
    Reasoning,
    RequestRefusedError,
    Text,
    ToolCall,
    ToolDeclaration,
    WiringError,
)
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.anthropic.marks import _MARKABLE, LOOK_BACK, CacheLifetime, mark
from chatstack.providers.anthropic.wire import request_to_wire
from chatstack.values.messages import Annotation
from tests.providers.cache_server import UNMARKABLE, AnthropicCache, Item, blocks_of, marks_of, without_mark

SYSTEM = Message.system("Be brief.")
LOOK = ToolDeclaration("look", "Looks", '{"type":"object"}')
FIND = ToolDeclaration("find", "Finds", '{"type":"object"}')
SHORT = {"cache_control": {"type": "ephemeral"}}
LONG = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
TALK = (Message.user("hello"), Message.assistant("hi"), Message.user("and?"))


def body_of(
    *messages: Message, cache: CacheLifetime = "5m", tools: tuple[Any, ...] = (), **options: object
) -> dict[str, Any]:
    request = ChatRequest(messages, ChatOptions(tools=tools).but(**options))
    return typing.cast("dict[str, Any]", request_to_wire(request, cache=cache))


def marked(body: dict[str, Any]) -> list[str]:
    """The text, or the name, of each block with a mark."""
    found = [block for _, block in blocks_of(body) if block.get("cache_control")]
    return [str(block.get("text") or block.get("name") or block.get("tool_use_id")) for block in found]


def own(text: str, ttl: str | None = None) -> Text:
    """A text that the caller has marked."""
    mark = {"type": "ephemeral"} | ({"ttl": ttl} if ttl else {})
    return Text(text, json.dumps({"anthropic": {"cache_control": mark}}))


def calls(number: int, start: int = 0) -> tuple[Message, ...]:
    """An answer with so many calls, and their results."""
    ids = [f"c{start + each}" for each in range(number)]
    return (
        Message.assistant(*(ToolCall(each, "look", "{}") for each in ids)),
        *(Message.tool(each, f"result {each}") for each in ids),
    )


def test_tools_system_and_tail_are_marked() -> None:
    body = body_of(SYSTEM, *TALK, tools=(LOOK, FIND))
    assert marked(body) == ["find", "Be brief.", "hello", "and?"]
    assert {json.dumps(block["cache_control"]) for _, block in blocks_of(body) if "cache_control" in block} == {
        '{"type": "ephemeral"}'
    }


def test_a_one_shot_prompt_is_marked_behind_the_system_prompt_only() -> None:
    assert marked(body_of(SYSTEM, Message.user("translate this"))) == ["Be brief."]
    assert marked(body_of(Message.user("translate this"))) == []


def test_a_first_prompt_with_tools_is_marked_at_its_end_as_a_round_will_follow() -> None:
    assert marked(body_of(Message.user("look"), tools=(LOOK,))) == ["look", "look"]


def test_of_several_system_blocks_the_last_is_marked() -> None:
    head = (Message.system("one"), Message("system", (Text("two"), Text(" "))))
    assert marked(body_of(*head, Message.user("x"), instructions="zero")) == ["two"]


def test_the_last_edit_is_marked_behind_its_last_block() -> None:
    first, *results = calls(2)
    edited = results[1].edited(parts=results[1].parts, annotation=Annotation("clear"))
    history = (Message.user("go"), first, results[0], edited, *calls(1, 5))
    assert marked(body_of(SYSTEM, *history, tools=(LOOK,))) == ["look", "Be brief.", "c1", "c5"]


def test_a_summary_is_an_edit() -> None:
    summary = Message("assistant", (Text("so far"),), mark="summary")
    assert "so far" in marked(body_of(Message.user("task"), summary, Message.user("x"), *calls(1)))


def test_an_end_before_that_a_look_back_does_not_reach_is_marked_rather_than_the_tools() -> None:
    history = (Message.user("go"), *calls(LOOK_BACK // 2))  # 20 blocks behind "go"
    assert marked(body_of(SYSTEM, *history, tools=(LOOK,))) == ["look", "Be brief.", "go", "c9"]
    first, *results = calls(2, 50)
    edited = results[1].edited(parts=results[1].parts, annotation=Annotation("clear"))
    history = (Message.user("go"), first, results[0], edited, *calls(12))
    assert marked(body_of(SYSTEM, *history, tools=(LOOK,))) == ["look", "Be brief.", "c51", "c11"]  # one place
    history = (Message.user("go"), first, results[0], edited, *calls(1, 70), *calls(12))
    assert marked(body_of(SYSTEM, *history, tools=(LOOK,))) == ["Be brief.", "c51", "c70", "c11"]


@pytest.mark.parametrize("kind", UNMARKABLE)
def test_thinking_is_never_marked(kind: str) -> None:
    thought = Reasoning("hm", json.dumps({"type": kind, "thinking": "hm", "signature": "s"}), "anthropic")
    paused = Message("assistant", (Text("I think"), thought))
    assert marked(body_of(Message.user("x"), paused)) == ["x", "I think"]


def test_an_item_that_only_the_api_knows_is_never_marked() -> None:
    item = ProviderItem("anthropic", '{"type": "later_block", "x": 1}')
    assert marked(body_of(Message.user("x"), Message("assistant", (Text("so"), item)))) == ["x", "so"]


def test_empty_text_is_never_marked() -> None:
    blank = ProviderItem("anthropic", '{"type": "text", "text": " "}')
    assert marked(body_of(Message.user("x"), Message("assistant", (Text("so"), blank)))) == ["x", "so"]


def test_a_tool_that_is_loaded_on_demand_is_never_marked() -> None:
    later = ToolDeclaration("later", extra_json='{"anthropic": {"defer_loading": true}}')
    server = ProviderItem("anthropic", '{"type":"mcp_toolset","default_config":{"defer_loading":true}}')
    assert marked(body_of(Message.user("x"), tools=(LOOK, later, server))) == ["look", "x"]
    assert marked(body_of(Message.user("x"), tools=(later,))) == ["x"]


def test_off_marks_nothing() -> None:
    assert "cache_control" not in json.dumps(body_of(SYSTEM, *TALK, tools=(LOOK,), cache="off"))


def test_an_hour_is_said() -> None:
    body = body_of(SYSTEM, *TALK, tools=(LOOK,), cache="1h")
    assert [ttl for _, ttl in marks_of(body)] == ["1h"] * 4
    assert body["system"][-1] == {"type": "text", "text": "Be brief.", **LONG}


def test_marks_of_the_callers_stay_and_count() -> None:
    """By weight: the end, behind the system prompt, and so on; four in all."""
    two = Message("user", (own("a"), own("b")))
    body = body_of(SYSTEM, two, Message.assistant("hi"), Message.user("and?"), tools=(LOOK,))
    assert marked(body) == ["Be brief.", "a", "b", "and?"]
    four = Message("user", (own("a"), own("b"), own("c"), own("d")))
    assert marked(body_of(SYSTEM, four, *TALK[1:], tools=(LOOK,))) == ["a", "b", "c", "d"]
    five = Message("user", tuple(own(each) for each in "abcde"))  # the API will say so
    assert marked(body_of(SYSTEM, five, *TALK[1:])) == list("abcde")


def test_marks_within_a_result_and_a_document_count() -> None:
    inside = json.dumps(
        {"anthropic": {"source": {"type": "content", "content": [{"type": "text", "text": "x", **SHORT}]}}}
    )
    result = Message.tool("c0", (own("in"), own("side")))
    document = Message.user(File(text="x", extra_json=inside))
    body = body_of(document, calls(1)[0], result, tools=(LOOK,))
    assert json.dumps(body).count("cache_control") == 4
    assert marked(body) == ["c0"]


@pytest.mark.parametrize("kind", [list, tuple])
def test_marks_of_the_callers_count_in_whatever_sequence_extra_holds_them(kind: type[list[Any]]) -> None:
    system = kind({"type": "text", "text": each, **SHORT} for each in "abc")
    body = body_of(*TALK, tools=(LOOK,), extra={"system": system})
    assert json.dumps(body).count("cache_control") == 4


def test_a_word_in_the_arguments_of_a_call_is_no_mark() -> None:
    call = ToolCall("c0", "look", '{"cache_control": {"type": "ephemeral"}}')
    history = (Message.user("x"), Message.assistant(call), Message.tool("c0", "y"))
    assert marked(body_of(SYSTEM, *history, tools=(LOOK,))) == ["look", "Be brief.", "x", "c0"]


def test_a_longer_lifetime_never_comes_behind_a_shorter_one() -> None:
    late = body_of(SYSTEM, Message("user", (own("a", "1h"),)), *TALK[1:], tools=(LOOK,))
    assert [ttl for _, ttl in marks_of(late)] == ["1h", "1h", "1h", "5m"]
    early = body_of(Message("system", (own("s"),)), *TALK, tools=(LOOK,), cache="1h")
    assert [ttl for _, ttl in marks_of(early)] == ["1h", "5m", "5m", "5m"]


def test_an_automatic_mark_is_the_tail() -> None:
    body = body_of(SYSTEM, *TALK, tools=(LOOK,), extra={"cache_control": {"type": "ephemeral", "ttl": "1h"}})
    assert marked(body) == ["look", "Be brief.", "hello"]
    assert [ttl for _, ttl in marks_of(body)] == ["1h"] * 4


@pytest.mark.parametrize("name", ["messages", "system", "tools"])
def test_fields_that_extra_brings_are_sent_as_they_are(name: str) -> None:
    given: dict[str, Any] = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "mine"}]}],
        "system": [{"type": "text", "text": "mine"}],
        "tools": [{"name": "mine", "input_schema": {}}],
    }
    before = json.dumps(given[name])
    body = body_of(SYSTEM, *TALK, tools=(LOOK,), extra={name: given[name]})
    assert json.dumps(body[name]) == before
    assert "mine" not in marked(body)
    assert len(marked(body)) >= 1
    assert json.dumps(body_of(*TALK, extra={"system": "text"})["system"]) == '"text"'


def test_what_has_a_mark_can_have_one_by_the_types_of_the_sdk() -> None:
    params: dict[str, Mapping[str, object]] = {}
    for each in typing.get_args(sdk.ContentBlockParam):
        hints = typing.get_type_hints(each)
        params[typing.get_args(hints["type"])[0]] = hints
    assert {kind for kind in _MARKABLE if "cache_control" in params[kind]} == _MARKABLE
    assert not any("cache_control" in params[kind] for kind in UNMARKABLE)


parts = st.sampled_from(["text", "call", "image", "thinking", "item", "blank"])


@st.composite
def growing(draw: st.DrawFn) -> list[tuple[Message, ...]]:
    """A conversation: the new messages of each call. Up to 45 blocks come with one."""
    rounds: list[tuple[Message, ...]] = [(Message.user("go"),)]
    for number in range(draw(st.integers(1, 5))):
        kinds = draw(st.lists(parts, min_size=1, max_size=4))
        said: list[Any] = [_part(kind) for kind in kinds]
        count = draw(st.sampled_from([0, 1, 2, 10, 22]))
        asked = calls(count, 100 * number)
        answer = Message("assistant", (*said, *asked[0].parts))
        follow = asked[1:] if count else (Message.user("and?"),)
        steering = (Message.user("hurry"),) if draw(st.booleans()) else ()
        rounds.append((answer, *follow, *steering))
    return rounds


def _part(kind: str) -> Any:
    thought = '{"type":"thinking","thinking":"hm","signature":"s"}'
    return {
        "text": Text("so"),
        "call": Text("I look"),
        "image": Image(data="eA==", media_type="image/png"),
        "thinking": Reasoning("hm", thought, "anthropic"),
        "item": ProviderItem("anthropic", '{"type":"server_tool_use","id":"s","name":"n","input":{}}'),
        "blank": Text("  "),
    }[kind]


@given(rounds=growing(), has_tools=st.booleans(), has_system=st.booleans(), cache=st.sampled_from(["5m", "1h"]))
def test_every_call_reads_what_the_last_one_wrote(
    rounds: list[tuple[Message, ...]], has_tools: bool, has_system: bool, cache: CacheLifetime
) -> None:
    server = AnthropicCache(lambda body: [{"type": "text", "text": "fine"}])
    history: tuple[Message, ...] = (SYSTEM,) if has_system else ()
    for new in rounds:
        history += new
        server.played(body_of(*history, tools=(LOOK,) if has_tools else (), cache=cache))
    for number, (before, call) in enumerate(zip(server.calls, server.calls[1:], strict=False)):
        assert call.read == before.read + before.written, number
        # A blank answer is not sent: without another one, that call looked like one that nothing follows.
        if has_tools or any(message["role"] == "assistant" for message in before.body["messages"]):
            assert call.read  # the end before was marked


@given(rounds=growing(), cache=st.sampled_from(["5m", "1h"]))
def test_nothing_but_the_marks_is_changed_and_the_same_request_is_the_same(
    rounds: list[tuple[Message, ...]], cache: CacheLifetime
) -> None:
    history = (SYSTEM, *(message for new in rounds for message in new))
    plain = body_of(*history, tools=(LOOK,), cache="off")
    body = body_of(*history, tools=(LOOK,), cache=cache)
    assert json.dumps(body) == json.dumps(body_of(*history, tools=(LOOK,), cache=cache))
    _unmark(body)
    assert json.dumps(body) == json.dumps(plain)


def _unmark(body: Item) -> None:
    for blocks in (body["tools"], body["system"], *(message["content"] for message in body["messages"])):
        blocks[:] = [without_mark(block) for block in blocks]


def test_a_body_with_odd_fields_is_left_alone() -> None:
    """``extra`` may hold anything; the API tells what is wrong with it."""
    body: dict[str, object] = {"messages": [5, {"role": "user", "content": "text"}], "tools": "x", "system": None}
    before = json.dumps(body)
    mark(body, "5m", extra={})
    assert json.dumps(body) == before


def test_a_lifetime_that_there_is_not_is_named() -> None:
    with pytest.raises(WiringError, match="cache must be one of 'off', '5m', '1h', not '2h'") as caught:
        AnthropicChatClient("claude", api_key="k", cache="2h")  # type: ignore[arg-type]
    assert caught.value.parameter == "cache"


@pytest.mark.parametrize("cloud", [AsyncAnthropicBedrock, AsyncAnthropicVertex])
def test_the_clients_of_other_clouds_send_marks_too(cloud: Any) -> None:
    bodies: list[Item] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        bodies.append(json.loads(request.content))
        return httpx2.Response(400, json={"type": "error", "error": {"type": "invalid_request_error", "message": "m"}})

    async def ask() -> None:
        http_client = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
        where: dict[str, str] = (
            {"api_key": "k", "aws_region": "eu-west-1"}
            if cloud is AsyncAnthropicBedrock
            else {"region": "eu", "project_id": "p", "access_token": "t"}
        )
        client = cloud(http_client=http_client, max_retries=0, **where)
        provider = AnthropicChatClient("claude-sonnet-5", client=client)
        with pytest.raises(RequestRefusedError):
            await provider.get_response([SYSTEM, *TALK])
        await client.close()

    asyncio.run(ask())
    assert marked(bodies[0]) == ["Be brief.", "hello", "and?"]
