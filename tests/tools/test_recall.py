"""Recall: what was cleared comes back in pages, from this very conversation and from nowhere else."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack import (
    ChatRequest,
    ChatStack,
    ChatStream,
    File,
    FunctionInvoker,
    Image,
    Message,
    Text,
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    ToolResultClearer,
)
from chatstack import tool as decorated
from chatstack.context.edits import handles
from chatstack.context.edits.handles import handle_of
from chatstack.errors import ToolError, WiringError
from chatstack.testing import ScriptedClient, TelemetryCapture
from chatstack.tools import recall as module
from chatstack.tools.execution import ToolRunner
from chatstack.tools.recall import recall_tool
from chatstack.values.parts import ProviderItem
from tests.histories import PROPERTY


def answered(call_id: str, output: Any) -> Message:
    return Message.tool(call_id, output, name="look")


def recalled(
    messages: tuple[Message, ...], handle: str, page: int | None = None, tool: Tool[..., Any] | None = None
) -> ToolResult:
    """What the model gets for that call."""
    made = tool or recall_tool()
    arguments = {"handle": handle} | ({} if page is None else {"page": page})
    call = ToolCall("call-9", made.name, json.dumps(arguments))
    context = ToolContext(conversation_id=None, call_id=call.id, tool_name=made.name, round=1, messages=messages)
    runner = ToolRunner({made.name: made}, TelemetryCapture().telemetry)
    return asyncio.run(asyncio.wait_for(runner.run(call, context), 300)).result


def handle_in(message: Message) -> str:
    return handle_of(message.results[0])


def pages_of(text: str, page_chars: int) -> list[str]:
    """All pages, without their first lines."""
    tool = recall_tool(page_chars=page_chars)
    message = answered("c1", text)
    first = recalled((message,), handle_in(message), 1, tool).text
    count = int(first.split("]")[0].split(";")[0].split()[-1])
    texts = [recalled((message,), handle_in(message), page, tool).text for page in range(1, count + 1)]
    return [each.split("\n", 1)[1] for each in texts]


SEEN = answered("c1", "a red kite\nand a crow")
HISTORY = (
    Message.user("what do you see?"),
    Message.assistant(ToolCall("c1", "look")),
    SEEN,
    Message.assistant("birds"),
)


def test_a_cleared_result_comes_back_by_its_handle() -> None:
    result = recalled(HISTORY, handle_in(SEEN))
    assert result.text == "[page 1 of 1]\na red kite\nand a crow"
    assert not result.is_error


def test_a_long_one_comes_in_pages_and_each_says_how_to_get_the_next() -> None:
    long = answered("c1", "".join(f"line {number:03}\n" for number in range(100)))
    handle, tool = handle_in(long), recall_tool(page_chars=400, name="get_back")
    first, last = recalled((long,), handle, None, tool).text, recalled((long,), handle, 3, tool).text
    head, *lines = first.splitlines()
    assert head == f"[page 1 of 3; for the next: get_back(handle={handle!r}, page=2)]"
    assert (lines[0], lines[-1]) == ("line 000", "line 043")
    assert last.splitlines()[0] == "[page 3 of 3]"
    assert last.splitlines()[-1] == "line 099"


def test_spaces_around_a_handle_do_not_matter() -> None:
    assert not recalled(HISTORY, f" {handle_in(SEEN)}\n").is_error


@pytest.mark.parametrize("handle", ["", "0000000000", "c1", "look", "*", "%", "../c1", "a" * 5_000, "\ud83d\ude00"])
def test_a_handle_that_is_not_there_is_an_error_that_says_what_to_do(handle: str) -> None:
    result = recalled(HISTORY, handle)
    assert result.is_error
    assert "Handles stand in the placeholders" in result.text
    assert "call the tool that gave the result again" in result.text
    assert len(result.text) < 400


def test_a_result_of_another_conversation_is_not_there() -> None:
    """Not even one that differs in nothing but the id of its call."""
    assert recalled(HISTORY, handle_in(answered("c2", "a red kite\nand a crow"))).is_error
    assert recalled((), handle_in(SEEN)).is_error


@pytest.mark.parametrize("page", [0, -1, 2, 10**30])
def test_a_page_that_is_not_there_is_an_error_that_says_which_are(page: int) -> None:
    result = recalled(HISTORY, handle_in(SEEN), page)
    assert result.is_error
    assert result.text == "Error: there is no such page. That result has one page, page 1; call again with one of them."


def test_a_page_behind_the_last_of_several_says_how_many_there_are() -> None:
    long = answered("c1", "a" * 450)
    assert "5 pages, 1 to 5" in recalled((long,), handle_in(long), 6, recall_tool(page_chars=100)).text


def test_what_it_raises_holds_nothing_of_the_conversation_or_the_call() -> None:
    context = ToolContext(conversation_id=None, call_id="c", tool_name="recall", round=0, messages=HISTORY)
    with pytest.raises(ToolError) as caught:
        recall_tool()("my password", context)
    assert "password" not in str(caught.value)


PICTURE = Image.from_bytes(b"png" * 100, "image/png")
REPORT = File.from_bytes(b"pdf" * 100, "application/pdf", name="report.pdf")


def test_pictures_and_files_come_back_as_they_were_one_with_each_page() -> None:
    item = ProviderItem("openai", '{"secret": 1}')
    parts = (Text("before"), PICTURE, File(text="line one", name="notes.txt"), REPORT, PICTURE, item, Text("after"))
    message = answered("c1", parts)
    handle = handle_in(message)
    pages = [recalled((message,), handle, page) for page in range(1, 5)]
    heads = [f"[page {page} of 4; for the next: recall(handle={handle!r}, page={page + 1})]" for page in range(1, 4)]
    assert [each.output for each in pages] == [
        (Text(f"{heads[0]}\nbefore"), PICTURE),
        (Text(f"{heads[1]}\n[file notes.txt]\nline one"), REPORT),
        (Text(f"{heads[2]}\n"), PICTURE),
        "[page 4 of 4]\n[an item that only openai can read]\nafter",
    ]


def test_a_picture_behind_a_long_text_comes_with_its_last_page() -> None:
    message, tool = answered("c1", (Text("a" * 250), PICTURE)), recall_tool(page_chars=100)
    pages = [recalled((message,), handle_in(message), page, tool) for page in range(1, 4)]
    assert [type(each.output) for each in pages] == [str, str, tuple]
    assert pages[2].output == (Text("[page 3 of 3]\n" + "a" * 50), PICTURE)


def test_a_result_without_any_content_is_one_page() -> None:
    for nothing in ("", ()):
        message = answered("c1", nothing)
        assert recalled((message,), handle_in(message)).text == "[page 1 of 1]\n"


def test_results_anywhere_in_a_message_are_found() -> None:
    results = tuple(ToolResult(f"c{number}", "look", f"bird {number}") for number in range(3))
    message = Message("user", (Text("see"), *results, Text("thanks")))
    assert [recalled((message,), handle_of(each)).text[-6:] for each in results] == ["bird 0", "bird 1", "bird 2"]


def test_an_edited_message_gives_its_original_back() -> None:
    cleared = SEEN.edited(parts=(ToolResult("c1", "look", "[cleared]"),))
    assert "red kite" in recalled((cleared,), handle_in(SEEN)).text


def test_what_it_gave_can_be_recalled_like_any_result() -> None:
    page = Message("tool", (recalled(HISTORY, handle_in(SEEN)),))
    assert "red kite" in recalled((*HISTORY, page), handle_in(page)).text


def test_a_result_with_half_a_character_hides_no_other() -> None:
    broken = Message("assistant", (ToolResult("s1", "search", "caf\udce9"),))
    assert "red kite" in recalled((*HISTORY, broken), handle_in(SEEN)).text


@pytest.mark.parametrize("arguments", ['{"x": ' + '{"a": ' * 5_000 + "1" + "}" * 5_001, '{"handle": "\udce9"}'])
def test_a_page_whose_call_cannot_be_read_is_a_result_like_any(arguments: str) -> None:
    """As a history from somewhere else may have it."""
    page = Message("tool", (ToolResult("r1", "recall", "[page 1 of 2] of something"),))
    history = (*HISTORY, Message.assistant(ToolCall("r1", "recall", arguments)), page)
    assert "of something" in recalled(history, handle_in(page)).text


def test_what_looks_like_a_page_and_is_another_tools_is_a_result_like_any() -> None:
    page = Message("tool", (ToolResult("r1", "read", "[page 1 of 2] of a book"),))
    history = (*HISTORY, Message.assistant(ToolCall("r1", "read", f'{{"handle": "{handle_in(SEEN)}"}}')), page)
    assert "of a book" in recalled(history, handle_in(page)).text


def test_one_pass_newest_first_and_no_further_than_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []

    def counted(result: ToolResult) -> str:
        looked_at.append(result.call_id)
        return handles.handle_of(result)

    monkeypatch.setattr(module, "handle_of", counted)
    messages = tuple(answered(f"c{number}", f"bird {number}") for number in range(100))
    recalled(messages, handle_in(messages[97]))
    assert looked_at == ["c99", "c98", "c97"]
    looked_at.clear()
    recalled(messages, "0000000000")
    assert len(looked_at) == 100


# Where pages end


ACCENT, FAMILY, FLAG = "e\u0301", "👩‍👩‍👧", "🇩🇪"


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "character", [ACCENT, FAMILY, FLAG, "👍🏽", "❤️", "\r\n", "\u1100\u1161\u11a8", "नि", "🏴󠁧󠁢󠁥󠁮󠁧󠁿"], ids=ascii
)
@pytest.mark.parametrize("shift", range(12))
def test_no_character_of_several_code_points_is_split(character: str, shift: int) -> None:
    text = "a" * (100 - shift) + character * 20
    for page in pages_of(text, 100)[1:]:
        assert (page + character).startswith(character)


def test_half_characters_that_stand_side_by_side_stay_together() -> None:
    """Text in which a provider left a character as its two halves; asked directly, as it has no handle."""
    text = "a" * 99 + "\ud83d\ude00" * 50
    starts = list(module._page_starts(text, 100))
    assert starts[:2] == [0, 99]
    assert all(text[start] == "\ud83d" for start in starts[1:])


def test_a_character_without_end_is_split_in_the_end() -> None:
    """And a page does not become small for it."""
    assert [len(each) for each in pages_of("e" + "\u0301" * 999, 100)] == [100] * 10
    assert [len(each) for each in pages_of("a" * 50 + "\u0301" * 150, 100)] == [100] * 2


def test_a_page_ends_with_a_line_where_one_ends_near_its_end() -> None:
    assert [len(each) for each in pages_of("a" * 94 + "\n" + "b" * 100, 100)] == [95, 100]
    assert [len(each) for each in pages_of("a" * 50 + "\n" + "b" * 100, 100)] == [100, 51]


_PIECES = st.sampled_from(["a" * 30, "\n", "\r\n", " ", ACCENT, FAMILY, FLAG, "日", "\u0301" * 20, "\u200d"])
_TEXTS = st.lists(_PIECES, max_size=100).map("".join)


@given(_TEXTS)
@PROPERTY
def test_the_pages_together_are_the_text_and_none_is_longer_than_it_may_be(text: str) -> None:
    starts = [*module._page_starts(text, 100), len(text)]
    pages = [text[one:other] for one, other in itertools.pairwise(starts)]
    assert "".join(pages) == text
    assert all(0 < len(each) <= 100 for each in pages) or text == ""
    assert all(len(each) >= 100 - 32 for each in pages[:-1])


# How it is made, and in a stack


@pytest.mark.parametrize("page_chars", [0, 99, -1, True, 8_000.0, "8000"])
def test_the_size_of_a_page_is_checked(page_chars: Any) -> None:
    with pytest.raises(WiringError, match="page_chars=") as caught:
        recall_tool(page_chars=page_chars)
    assert caught.value.parameter == "page_chars"


def test_a_name_that_providers_refuse_is_refused() -> None:
    with pytest.raises(WiringError, match="a name is 1 to 128 letters"):
        recall_tool(name="get it back")


def test_the_model_sees_a_handle_and_a_page() -> None:
    declared = recall_tool(name="get_back").declaration()
    schema = json.loads(declared.parameters)
    assert declared.name == "get_back"
    assert list(schema["properties"]) == ["handle", "page"]
    assert schema["required"] == ["handle"]
    assert recall_tool().declaration() == recall_tool().declaration()


def test_in_a_stack_the_model_gets_the_original_back_and_is_told_what_is_wrong() -> None:
    """Declared from the first call on, and error texts reach it word for word."""
    provider = ScriptedClient(
        [
            Message.assistant(ToolCall("r1", "recall", json.dumps({"handle": handle_in(SEEN)}))),
            Message.assistant(ToolCall("r2", "recall", '{"handle": "made up"}')),
            "a kite",
        ]
    )

    async def ask() -> None:
        client = ChatStack(provider).use(FunctionInvoker, tools=[recall_tool()]).build()
        await client.get_response([*HISTORY, Message.user("which ones?")])

    asyncio.run(ask())
    assert [each.name for each in provider.requests[0].options.tools] == ["recall"]  # type: ignore[union-attr]
    results = [result for message in provider.requests[-1].messages for result in message.results]
    assert "red kite" in results[1].text
    assert results[2].is_error
    assert results[2].text.startswith("Error: no tool result of this conversation has that handle.")


def test_what_the_clearer_took_comes_back_by_the_handle_in_its_placeholder() -> None:
    """The model sees the placeholder; the tool sees the unedited messages of the same request."""
    original = "a red kite, " * 200
    seen: list[str] = []

    class Reader(ScriptedClient):
        """Asks for the first handle that it reads in what it is sent."""

        async def send(self, request: ChatRequest, /) -> ChatStream:
            if not self.requests:
                (placeholder,) = (each.text for message in request.messages for each in message.results)
                seen.append(placeholder)
                handle = placeholder.removeprefix("[gone: ").removesuffix("]")
                self.answers[0] = Message.assistant(ToolCall("r1", "recall", json.dumps({"handle": handle})))
            return await super().send(request)

    provider = Reader(["", "a kite"])
    stack = ChatStack(provider).use(FunctionInvoker, tools=[recall_tool()])
    stack = stack.use(ToolResultClearer, trigger={"tokens": 100}, keep={"messages": 0}, placeholder="[gone: {handle}]")
    look = ToolCall("c1", "look")
    history = [Message.user("look"), Message.assistant(look), Message.tool("c1", original), Message.assistant("birds")]
    response = asyncio.run(stack.build().get_response([*history, Message.user("which ones?")]))
    assert "kite" not in seen[0]
    (recalled,) = (each for message in response.messages for each in message.results)
    assert original in recalled.text
    assert not recalled.is_error
    assert response.text == "a kite"


def round_of(call_id: str, output: Any, **arguments: object) -> list[Message]:
    """A recall and its result."""
    return [
        Message.assistant(ToolCall(call_id, "recall", json.dumps(arguments))),
        Message.tool(call_id, output, name="recall"),
    ]


def test_a_third_recall_of_one_handle_in_a_turn_says_where_it_stands() -> None:
    page = answered("c", "the page " * 20)
    handle = handle_in(page)
    messages = [Message.user("go"), Message.assistant(ToolCall("c", "look")), page]
    for number in range(2):
        result = recalled(tuple(messages), handle).text
        assert "the page" in result
        messages += round_of(f"r{number}", result, handle=handle)
    third = recalled(tuple(messages), handle)
    assert third.text.startswith(
        "[not given again: it was recalled 2 times in this turn, and stands in the result of the"
    )
    assert not third.is_error
    assert len(third.text) < 250
    messages += round_of("r2", third.text, handle=handle)
    assert "stands in the result of 3 messages ago" in recalled(tuple(messages), handle).text
    messages.append(Message.user("and now?"))
    assert "the page" in recalled(tuple(messages), handle).text, "another turn"


@pytest.mark.parametrize("before", [0, 1, 2])
def test_calls_of_one_round_are_given_no_more_than_those_of_several(before: int) -> None:
    page = answered("c", "the page " * 20)
    handle = handle_in(page)
    one = [json.dumps({"handle": handle}), json.dumps({"handle": f" {handle}", "page": 1})]
    other = [json.dumps({"handle": "no such"}), "no JSON"]
    rounds = [Message.assistant(ToolCall(f"b{number}", "recall", one[0])) for number in range(before)]
    calls = [ToolCall(f"r{number}", "recall", arguments) for number, arguments in enumerate([*other, *one, *one])]
    client = ChatStack(ScriptedClient([*rounds, Message.assistant(*calls), "done"]))
    built = client.use(FunctionInvoker, tools=[recall_tool()]).build()
    history = [Message.user("go"), Message.assistant(ToolCall("c", "look")), page]
    response = asyncio.run(built.get_response(history))
    texts = [result.text for message in response.messages for result in message.results]
    assert sum("the page" in text for text in texts) == 2
    refused = [text for text in texts if "not given again" in text]
    assert len(refused) == before + 2
    beside = "stands in the result of a call beside this one. Read it"
    assert [beside in text for text in refused] == [before == 0] * (before + 2)


def test_other_pages_and_other_handles_are_no_repetition() -> None:
    page, other = answered("c", "".join(map(str, range(9_000)))), answered("d", "another")
    tool = recall_tool(page_chars=9_000)
    messages = [Message.user("go"), Message.assistant(ToolCall("c", "look"), ToolCall("d", "look")), page, other]
    for number in range(4):
        result = recalled(tuple(messages), handle_in(page), number + 1, tool).text
        assert result.startswith(f"[page {number + 1} of 4")
        messages += round_of(f"r{number}", result, handle=handle_in(page), page=number + 1)
    assert "another" in recalled(tuple(messages), handle_in(other), tool=tool).text


def test_another_picture_is_no_repetition() -> None:
    other = Image.from_bytes(b"gif" * 100, "image/gif")
    shots = [answered("c", (PICTURE,)), answered("d", (other,))]
    messages = [Message.user("go"), Message.assistant(ToolCall("c", "look"), ToolCall("d", "look")), *shots]
    for number in range(2):
        given = recalled(tuple(messages), handle_in(shots[0])).output
        messages += round_of(f"r{number}", given, handle=handle_in(shots[0]))
    assert recalled(tuple(messages), handle_in(shots[1])).output == (Text("[page 1 of 1]\n"), other)
    assert "not given again" in recalled(tuple(messages), handle_in(shots[0])).text
    assert recalled(tuple(messages), handle_in(messages[-1])).text.startswith("[not given again")


def test_the_handle_of_a_recalled_page_is_that_page() -> None:
    page = answered("c", "".join(map(str, range(9_000))))
    tool = recall_tool(page_chars=9_000)
    messages = [Message.user("go"), Message.assistant(ToolCall("c", "look")), page]
    second = recalled(tuple(messages), handle_in(page), 2, tool).text
    messages += round_of("r0", second, handle=handle_in(page), page=2)
    assert recalled(tuple(messages), handle_in(messages[-1]), tool=tool).text == second


def test_recall_clear_and_recall_again_comes_to_an_end() -> None:
    """A model that always wants what it sees cleared, under a window that is too small for it."""
    made = recall_tool()

    class Forgetful(ScriptedClient):
        async def send(self, request: ChatRequest, /) -> ChatStream:
            number = len(self.requests)
            found = [result.text for message in request.messages for result in message.results]
            wanted = next((text[9:19] for text in found if text.startswith("[cleared ")), "")
            calls = [ToolCall(f"l{number}-{each}", "look", "{}") for each in range(4)] if number < 3 else []
            if number >= 3 and wanted and not any("not given again" in text for text in found):
                calls = [ToolCall(f"r{number}", made.name, json.dumps({"handle": wanted}))]
            self.answers = [Message.assistant(*calls) if calls else "done"]
            return await super().send(request)

    def look() -> str:
        """Look."""
        return "what is seen there " * 40

    model = Forgetful()
    stack = (
        ChatStack(model)
        .use(FunctionInvoker, tools=[decorated(look), made], max_tool_calls_per_turn=100)
        .use(ToolResultClearer, trigger={"tokens": 900}, keep={"messages": 1}, placeholder="[cleared {handle}]")
    )
    response = asyncio.run(stack.build().get_response("look around"))
    assert response.text == "done"
    assert len(model.requests) < 20
