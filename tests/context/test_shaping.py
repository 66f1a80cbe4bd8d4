"""Which results are shaped: never what is not text, what a provider marked, or what somebody pinned."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from chatstack import File, Image, Message, Part, Text, ToolCall, ToolResult
from chatstack.context.edits.handles import handle_of
from chatstack.context.shapes.shaping import Shaper, Shapes
from chatstack.values.messages import as_shaped, was_edited
from chatstack.values.parts import ProviderItem

LONG = "".join(f"line {number} of it\n" for number in range(400))
CALL = Message.assistant(ToolCall("c", "look"))


def shaped(message: Message, *, recall: str = "", before: Sequence[Message] = (CALL,), **options: object) -> Message:
    """The message as it goes out."""
    rule = Shaper(1_000, options.get("per_tool", {}), frozenset(options.get("never", ())), recall)  # type: ignore[arg-type, call-overload]
    messages = [*before, message]
    found = rule.of_new(messages, range(len(messages)), Shapes(len(before), {}))
    return found.messages.get(len(before)) or message


def result_of(*parts: Part | str, **fields: object) -> Message:
    """A tool message with one result."""
    output = parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts
    return Message("tool", (ToolResult("c", "look", output, **fields),))  # type: ignore[arg-type]


def test_a_long_result_is_bounded_and_names_its_handle() -> None:
    message = result_of(LONG)
    made = shaped(message)
    text = made.results[0].text
    assert len(text) <= 1_000
    assert f"bytes left out; handle {handle_of(message.results[0])}]" in text
    assert made.original is message
    assert made.annotation is not None
    assert made.annotation.handles == (handle_of(message.results[0]),)


def test_with_a_recall_tool_it_says_how_to_call_it() -> None:
    message = result_of(LONG)
    text = shaped(message, recall="fetch").results[0].text
    assert f"; fetch(handle='{handle_of(message.results[0])}') gives them back]" in text


MARKED = '{"anthropic": {"cache_control": {"type": "ephemeral"}}}'
KEPT = {
    "below the bound": result_of(LONG[:1_300]),
    "a picture": result_of(Image(data="aGk=" * 900, media_type="image/png")),
    "a file": result_of(File(text=LONG, name="a.txt")),
    "a provider's item": result_of(ProviderItem("anthropic", LONG)),
    "a marked result": result_of(LONG, extra_json=MARKED),
    "a marked text": result_of(Text(LONG, MARKED)),
    "a pinned message": Message("tool", result_of(LONG).parts, pinned=True),
    "a repair": Message("tool", result_of(LONG).parts, mark="repair"),
    "a result beside words of the user": Message("user", (*result_of(LONG).parts, Text("and now?"))),
    "a result of a tool of the server": Message("assistant", result_of(LONG).parts),
    "a system message": Message("system", result_of(LONG).parts),
    "what the user says": Message.user(LONG),
}


@pytest.mark.parametrize("message", KEPT.values(), ids=KEPT)
def test_this_stays_as_it_is(message: Message) -> None:
    assert shaped(message) is message


def test_results_of_the_recall_tool_stay() -> None:
    message = Message.tool("c", LONG, name="recall")
    assert shaped(message, recall="recall") is message
    assert shaped(message) is not message


def test_tools_have_bounds_of_their_own_or_none() -> None:
    message = result_of(LONG)
    assert shaped(message, never=["look"]) is message
    assert shaped(message, per_tool={"look": 100_000}) is message
    assert len(shaped(message, per_tool={"look": 300}).results[0].text) <= 300


@pytest.mark.parametrize("between", [0, 40])
def test_a_result_without_a_name_is_of_the_tool_that_was_called(between: int) -> None:
    before = [CALL, *(Message.tool(f"d{at}", "x") for at in range(between))]
    assert shaped(Message.tool("c", LONG), before=before, never=["look"]).results[0].text == LONG


def test_errors_may_be_twice_as_long_and_keep_their_end() -> None:
    text = shaped(result_of(LONG, is_error=True)).results[0].text
    head, tail = text.split("bytes left out")
    assert 1_500 < len(text) <= 2_000
    assert len(tail) > 1.5 * len(head)


def test_the_texts_of_a_result_are_shaped_and_its_pictures_stay_between_them() -> None:
    picture = Image(url="https://example.org/a.png")
    output = shaped(result_of(Text("short"), picture, Text(LONG), Text(LONG))).results[0].output
    assert isinstance(output, tuple)
    assert output[:2] == (Text("short"), picture)
    assert [type(each) for each in output] == [Text, Image, Text]
    assert len(output[2].text) <= 1_000  # type: ignore[union-attr]


def test_of_several_results_only_the_long_ones_are_shaped() -> None:
    short = ToolResult("d", "look", "short")
    made = shaped(Message("user", (short, ToolResult("c", "look", LONG))))
    assert made.results[0] is short
    assert len(made.results[1].text) <= 1_000


def test_a_shaped_message_is_what_came_for_all_further_in() -> None:
    message = result_of(LONG)
    made = shaped(message)
    cleared = made.edited(parts=(ToolResult("c", "look", "[cleared]"),))
    assert (as_shaped(made), was_edited(made)) == (made, False)
    assert (as_shaped(cleared), cleared.original, was_edited(cleared)) == (made, message, True)
    assert (as_shaped(message), was_edited(message)) == (message, False)


SAME = """
import hashlib, json
from chatstack import Message, ToolCall
from chatstack.context.shapes.shaping import NOTHING_SHAPED, Shaper
texts = ["".join(f"line {n}\\n" for n in range(900)), json.dumps([{"id": n} for n in range(900)]), "日本 " * 900,
         "a,b,c\\n" * 900, "ERROR 1\\nfine 2\\n" * 900]
messages = [Message.assistant(ToolCall("c", "look")), *[Message.tool("c", text) for text in texts]]
made = Shaper(500, {}, frozenset(), "recall").of_new(messages, range(len(messages)), NOTHING_SHAPED)
print(hashlib.sha256("\\0".join(made.messages[at + 1].results[0].text for at in range(5)).encode()).hexdigest()[:16])
"""


def test_every_process_shapes_alike_and_so_does_every_release() -> None:
    """Raise ``ToolResultShaper.version`` with this digest: conversations that are under way lose their prompt cache."""
    found = {
        subprocess.run(
            [sys.executable, "-c", SAME], env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {b"77f31f59328a8f45"}
