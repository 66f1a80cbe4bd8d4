"""Messages to the forms of the three APIs and back: what came from one goes back as it was, also its SDK's objects."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from anthropic.types import Message as AnthropicMessage
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessage
from openai.types.responses import Response

from chatstack import (
    ChatStack,
    File,
    InputError,
    Message,
    ProviderItem,
    Text,
    ToolCall,
    from_anthropic,
    from_json,
    from_openai_chat,
    from_openai_responses,
    to_anthropic,
    to_openai_chat,
    to_openai_responses,
)
from chatstack.providers.anthropic.blocks import WIRE as ANTHROPIC
from chatstack.providers.call_ids import sendable_name
from chatstack.providers.openai.chat_parts import WIRE as CHAT
from chatstack.providers.openai.responses_parts import WIRE as RESPONSES
from chatstack.providers.wires import read_request
from chatstack.testing import ScriptedClient
from chatstack.testing.generated import MESSAGES
from tests.histories import PROPERTY
from tests.providers.test_between_wires import CONVERSATIONS
from tests.workbench.replay.conversations import data_file


def _read_anthropic(written: Any) -> list[Message]:
    return from_anthropic(**written)


READ: dict[str, Callable[[Any], list[Message]]] = {
    CHAT: from_openai_chat,
    RESPONSES: from_openai_responses,
    ANTHROPIC: _read_anthropic,
}
WRITE: dict[str, Callable[[Sequence[Message]], Any]] = {
    CHAT: to_openai_chat,
    RESPONSES: to_openai_responses,
    ANTHROPIC: to_anthropic,
}
HISTORY = [
    Message.system("be kind"),
    Message.user("weather?"),
    Message.assistant("I look.", ToolCall("c1", "look", '{"at": "sky"}'), ToolCall("c2", "look", '{"at": "sea"}')),
    Message.tool("c1", "blue", name="look"),
    Message.tool("c2", "grey", name="look"),
    Message.assistant("Blue and grey."),
    Message.user("thanks"),
]
WIRES = pytest.mark.parametrize("wire", [CHAT, RESPONSES, ANTHROPIC])


@WIRES
def test_a_plain_history_comes_back_equal(wire: str) -> None:
    read = READ[wire](json.loads(json.dumps(WRITE[wire](HISTORY))))
    assert [(each.role, each.text, each.calls, each.results) for each in read] == [
        (each.role, each.text, each.calls, each.results) for each in HISTORY
    ]


@pytest.mark.parametrize("wire", [CHAT, RESPONSES])
def test_what_came_from_an_api_goes_back_as_it_was(wire: str) -> None:
    assert WRITE[wire](READ[wire](CONVERSATIONS[wire])) == CONVERSATIONS[wire]


def test_what_came_from_anthropic_goes_back_as_it_was() -> None:
    messages = CONVERSATIONS[ANTHROPIC]
    written = to_anthropic(from_anthropic(messages[1:], system=messages[0]["content"]))
    assert written == {"system": messages[0]["content"], "messages": messages[1:]}
    assert to_anthropic(from_anthropic(messages)) == written


def said(messages: Sequence[Message]) -> Counter[str]:
    """Every text, call and result that is not blank, with how often it is there; ids may change, as an API wants, and
    names of calls on Anthropic's, whose form holds whole requests."""
    found: Counter[str] = Counter()
    for message in messages:
        found.update(part.text for part in message.parts if isinstance(part, Text) and part.text.strip())
        found.update(f"call {sendable_name(call.name, ())}" for call in message.calls)
        found.update(f"result {result.text.strip()}" for result in message.results)
    return found


@WIRES
@PROPERTY
@given(st.lists(MESSAGES, max_size=4))
def test_what_was_written_for_an_api_is_read_whole_and_settles(wire: str, messages: list[Message]) -> None:
    try:
        written = WRITE[wire](messages)
    except InputError:
        return
    read = READ[wire](written)
    assert said(messages) <= said(read)
    again = WRITE[wire](read)
    assert WRITE[wire](READ[wire](again)) == again


@pytest.mark.data
def test_recorded_requests_come_back_as_they_were() -> None:
    seen = {CHAT: 0, ANTHROPIC: 0}
    with gzip.open(data_file("provider_pairs.dev.jsonl.gz")) as lines:
        for row in map(json.loads, lines):
            wire = CHAT if row["kind"] == "openai-chat" else ANTHROPIC
            body = row["request"]
            given = body["messages"] if wire == CHAT else {k: body[k] for k in ("system", "messages") if k in body}
            once = WRITE[wire](READ[wire](given))
            assert WRITE[wire](READ[wire](once)) == once
            seen[wire] += 1
    assert all(seen.values())


# The SDKs' own objects


def test_an_answer_of_the_openai_sdk_among_dicts_is_a_message() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    answer = ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": None, "refusal": None, "function_call": None, "tool_calls": [call]}
    )
    messages = from_openai_chat([{"role": "user", "content": "hi"}, answer])
    assert messages == [Message.user("hi"), Message.assistant(ToolCall("c", "look"))]
    assert to_openai_chat(messages)[1] == {"role": "assistant", "content": None, "tool_calls": [call]}


def test_an_answer_of_the_anthropic_sdk_and_its_blocks_are_messages() -> None:
    answer = AnthropicMessage.model_validate(
        {
            "id": "m", "type": "message", "role": "assistant", "model": "claude", "stop_reason": "end_turn",
            "usage": {"input_tokens": 1, "output_tokens": 1},
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "hello", "citations": None},
            ],
        }
    )  # fmt: skip
    whole = from_anthropic([{"role": "user", "content": "hi"}, answer])
    blocks = from_anthropic([{"role": "user", "content": "hi"}, {"role": "assistant", "content": answer.content}])
    assert whole == blocks
    assert whole[1].text == "hello"
    assert to_anthropic(whole)["messages"][1]["content"][0] == {  # type: ignore[index]
        "type": "thinking",
        "thinking": "hm",
        "signature": "s",
    }


def test_the_output_of_a_response_of_the_openai_sdk_is_a_message() -> None:
    response = Response.model_validate(
        {
            "id": "r", "object": "response", "created_at": 0, "model": "gpt", "parallel_tool_calls": True,
            "tool_choice": "auto", "tools": [],
            "output": [
                {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "e"},
                {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}", "id": "fc"},
            ],
        }
    )  # fmt: skip
    messages = from_openai_responses([{"role": "user", "content": "hi"}, *response.output])
    assert [each.role for each in messages] == ["user", "assistant"]
    assert [item["type"] for item in to_openai_responses(messages)[1:]] == ["reasoning", "function_call"]


# Mistakes


@pytest.mark.parametrize(
    ("read", "given", "says"),
    [
        (from_openai_chat, {"role": "user"}, "messages: expected a list, got dict"),
        (from_openai_chat, "hi", "messages: expected a list, got str"),
        (from_openai_chat, [Message.user("hi")], r"messages\[0\]: is a Message of chatstack already"),
        (from_openai_chat, [5], r"messages\[0\]: holds something that JSON|messages\[0\]: expected an object, got int"),
        (from_openai_chat, [{"role": "user", "content": object()}], r"messages\[0\]: holds something that JSON"),
        (from_openai_chat, [{"role": "robot", "content": "hi"}], r"messages\[0\]\.role"),
        (
            from_openai_chat,
            [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "x"}]}],
            r"messages\[0\]\.content\[0\]\.type: 'tool_result' is of another API; read it with from_anthropic",
        ),
        (
            from_openai_chat,
            [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}],
            r"read it with from_openai_responses",
        ),
        (
            from_anthropic,
            [{"role": "assistant", "content": "x", "tool_calls": []}],
            r"messages\[0\]\.tool_calls: .*; read it with from_openai_chat",
        ),
        (from_anthropic, [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}], r"tool_use_id"),
        (
            from_openai_responses,
            [{"role": "tool", "content": "x", "tool_call_id": "c"}],
            r"input\[0\]\.tool_call_id: .*; read it with from_openai_chat",
        ),
        (from_openai_responses, [{"role": "tool", "content": "x"}], r"input\[0\]\.role: expected one of"),
        (from_openai_responses, [{"type": "function_call", "name": "look"}], r"input\[0\]\.call_id: expected text"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_and_its_place_is_named(read: Any, given: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(given)


def test_what_holds_itself_is_an_error_of_ours() -> None:
    circle: dict[str, Any] = {"role": "user", "content": "hi"}
    circle["x"] = circle
    with pytest.raises(InputError, match=r"^messages\[1\]: nested too deeply"):
        from_openai_chat([{"role": "user", "content": "hi"}, circle])


HALF = "patient John Doe\ud800"


@pytest.mark.parametrize(
    ("read", "given", "says"),
    [
        (from_openai_chat, {"role": "user", "content": HALF}, "messages[1]: parts[0].text"),
        (from_openai_chat, {"role": "tool", "tool_call_id": "c", "content": HALF}, "messages[1]: parts[0].output"),
        (from_anthropic, {"role": "user", "content": HALF}, "messages[1]: parts[0].text"),
        (
            from_anthropic,
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": HALF}]},
            "messages[1]: parts[0].output",
        ),
        (from_openai_responses, {"role": "user", "content": HALF}, "input[1]: parts[0].text"),
        (
            from_openai_responses,
            {"type": "function_call_output", "call_id": "c", "output": HALF},
            "input[1]: parts[0].output",
        ),
    ],
)
def test_text_that_cannot_be_sent_is_told_with_the_place_of_its_message(read: Any, given: Any, says: str) -> None:
    with pytest.raises(InputError) as caught:
        read([{"role": "assistant", "content": HALF}, given])  # of the model's own text nobody is to blame
    assert str(caught.value).startswith(f"{says} has half a character (a lone surrogate) at position 16, which cannot")
    assert caught.value.__suppress_context__


ODD = {"role": "user", "content": [{"type": "odd", "x": HALF}]}
BROKEN = Message("assistant", (ProviderItem("openai", HALF), ProviderItem("anthropic", HALF)))
HALVES: dict[str, tuple[Callable[[], object], str]] = {
    "from chat": (lambda: from_openai_chat([ODD]), r"messages\[0\]: holds half a character"),
    "from Responses": (lambda: from_openai_responses([ODD]), r"input\[0\]: holds half a character"),
    "from Anthropic": (lambda: from_anthropic([ODD]), r"messages\[0\]: holds half a character"),
    "an object's": (
        lambda: from_openai_chat([ChatCompletionMessage.model_construct(role="assistant", name=HALF)]),
        r"messages\[0\]: holds half a character",
    ),
    "to chat": (lambda: to_openai_chat([Message.user("hi"), BROKEN]), r"messages\[1\]: holds half a character"),
    "to Responses": (lambda: to_openai_responses([BROKEN]), r"messages\[0\]: holds half a character"),
    "to Anthropic": (lambda: to_anthropic([BROKEN]), r"messages\[0\]: holds half a character"),
    "a request": (lambda: read_request("responses", {"input": [ODD]}), r"input\[0\]: holds half a character"),
    "JSON": (lambda: from_json(f'{{"version":1,"x":"{HALF}"}}'), r"from_json: .* at position 34, or half a character"),
    "bytes": (lambda: from_json(b'{"version":1,"x":"patient John Doe\xff"}'), r"from_json: .* no UTF-8 at position 34"),
    "a file": (
        lambda: to_anthropic([Message.user(File.from_bytes(b"patient John Doe\xff", "text/plain"))]),
        r"its data is not the base64 of UTF-8 text",
    ),
}


@pytest.mark.parametrize(("convert", "says"), HALVES.values(), ids=HALVES.keys())
def test_an_error_names_the_place_and_nothing_in_its_chain_holds_the_text(
    convert: Callable[[], object], says: str
) -> None:
    with pytest.raises(InputError, match=says) as caught:
        convert()
    error: BaseException | None = caught.value
    while error is not None:
        assert "John Doe" not in repr(error)
        error = error.__cause__ or error.__context__


def test_a_sound_goes_from_chat_to_responses_and_back() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    history = from_openai_chat([{"role": "user", "content": [sound]}])
    assert from_openai_responses(to_openai_responses(history)) == history
    with pytest.raises(InputError, match="'input_audio' is of another API; read it with from_openai_chat"):
        from_anthropic([{"role": "user", "content": [sound]}])


def test_an_empty_history_is_no_message_of_any_api() -> None:
    assert (to_openai_chat([]), to_openai_responses([]), to_anthropic([])) == ([], [], {"messages": []})


def test_what_goes_to_anthropic_is_a_request_that_it_takes() -> None:
    written = to_anthropic([Message.assistant("Hi, how can I help?"), Message.user("q"), Message.assistant("a\n")])
    texts = ["Begin.", "Hi, how can I help?", "q", "a"]
    assert [message.text for message in READ[ANTHROPIC](written)] == texts


@WIRES
@pytest.mark.parametrize("arguments", ["", " \n"])
def test_a_call_with_blank_arguments_has_none_on_every_wire(wire: str, arguments: str) -> None:
    history = [Message.user("now?"), Message.assistant(ToolCall("c", "now", arguments))]
    assert [call.arguments for call in READ[wire](WRITE[wire](history))[1].calls] == ["{}"]


@WIRES
@pytest.mark.parametrize("given", [[{"role": "user", "content": "hi"}], Message.user("hi"), "hi"])
def test_only_messages_are_written(wire: str, given: Any) -> None:
    with pytest.raises(InputError, match=r"expected (Message|a list of Message), got"):
        WRITE[wire](given)


def test_the_callers_dicts_stay_as_they_are() -> None:
    given = json.loads(json.dumps(CONVERSATIONS[CHAT]))
    from_openai_chat(given)
    assert given == CONVERSATIONS[CHAT]


@pytest.mark.parametrize("given", [{"role": "user", "content": "hi"}, [{"role": "user", "content": "hi"}]])
def test_a_client_that_is_given_dicts_names_the_converter(given: Any) -> None:
    client = ChatStack(ScriptedClient()).build()
    with pytest.raises(InputError, match=r"got dict; convert with chatstack\.from_openai_chat\(messages\)"):
        asyncio.run(client.get_response(given))
    asyncio.run(client.get_response(from_openai_chat([{"role": "user", "content": "hi"}])))


def test_converting_needs_no_sdk() -> None:
    code = (
        "import sys; from chatstack import from_anthropic, from_openai_chat, from_openai_responses, from_json\n"
        "print({'openai', 'anthropic', 'httpx', 'pydantic'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "set()"


def test_an_item_without_a_type_is_no_item_of_responses() -> None:
    nameless = Message("assistant", (ProviderItem("openai", '{"signature": "s"}'),))
    with pytest.raises(InputError, match=r"input\[1\]: a ProviderItem of OpenAI's without a type"):
        to_openai_responses([Message.user("hi"), nameless])
