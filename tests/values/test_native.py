"""Native edits as values: checked where they are made, and compactions told from other items."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from chatstack import ChatOptions, InputError, Message, NativeClearing, NativeCompaction, ProviderItem, Text
from chatstack.values.native import compaction_in, server_of


@pytest.mark.parametrize(
    ("kind", "given", "told"),
    [
        (NativeClearing, {"trigger_tokens": 0}, "NativeClearing: trigger_tokens=0 must be at least 1"),
        (NativeClearing, {"trigger_tokens": 9, "keep_results": -1}, "keep_results=-1 must be at least 0"),
        (NativeClearing, {"trigger_tokens": 9, "clear_at_least": "pays"}, "clear_at_least must be a whole number"),
        (NativeCompaction, {"trigger_tokens": True}, "trigger_tokens must be a whole number, not bool"),
        (NativeCompaction, {"trigger_tokens": 1.5}, "trigger_tokens must be a whole number, not float"),
        (ChatOptions, {"native_edits": [NativeCompaction(trigger_tokens=1)]}, "native_edits must be a tuple, not list"),
        (ChatOptions, {"native_edits": ("compact",)}, r"native_edits\[0\] must be a NativeClearing or Native"),
    ],
)
def test_what_is_wrong_is_told(kind: Any, given: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        kind(**given)


def test_options_with_native_edits_are_equal_copied_and_pickled() -> None:
    options = ChatOptions(native_edits=(NativeClearing(trigger_tokens=9, exclude_tools=("a",)),))
    assert pickle.loads(pickle.dumps(options)) == options == options.but(max_tokens=None)
    assert options != ChatOptions()


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ('{"type":"compaction","encrypted_content":"x"}', True),
        ('{"content":"so far","type":"compaction"}', True),
        ('{"content":null,"type":"compaction"}', False),
        ('{"content":"","encrypted_content":null,"type":"compaction"}', False),
        ('{"type":"web_search_call","action":{"query":"\\"compaction\\"","type":"compaction"}}', False),
        ('{"type":"compaction_trigger","content":"x"}', False),
        ('["compaction"]', False),
        ('"compaction"', False),
        ('{"type":"compaction"', False),
    ],
)
def test_a_compaction_is_told_from_other_items(text: str, is_one: bool) -> None:
    item = ProviderItem("any", text)
    assert compaction_in(Message("assistant", (*Message.assistant("fine").parts, item))) == (item if is_one else None)


@pytest.mark.parametrize(
    ("extra", "server"),
    [
        ({"openai-responses": {"server": "a"}}, "a"),
        ({"openai-chat": {"server": 5}, "openai-responses": {"server": "a"}}, "a"),
        ({"openai-chat": {"server": "b"}}, ""),
        ({"openai-responses": {"server": 5}}, ""),
        ([], ""),
    ],
)
def test_a_server_is_named_by_answers_of_responses_alone(extra: object, server: str) -> None:
    """A field of that name in another API's answer is its own."""
    assert server_of(Message("assistant", (Text("fine"),), extra_json=json.dumps(extra))) == server
