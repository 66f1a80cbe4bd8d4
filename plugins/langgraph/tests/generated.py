"""Generated messages of the library's, odd ones included, beside those of ours."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from chatstack.testing.generated import ARGUMENTS, IDS, JSON_VALUES, MESSAGES, PROVIDERS, TEXTS

OURS = MESSAGES.filter(lambda message: message.role != "system" or not message.results)
"""All but a tool result of the system: it would come back as a tool's."""

_METADATA = st.dictionaries(st.sampled_from(["lc_source", "tool_calls", "x"]), JSON_VALUES, max_size=2)
_BLOCKS = st.one_of(
    TEXTS,
    st.fixed_dictionaries(
        {"type": st.just("text"), "text": TEXTS},
        optional={"annotations": st.lists(_METADATA, max_size=1), "index": st.integers(0, 3)},
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["image", "file", "text-plain", "audio", "video", "document"])},
        optional={
            "url": TEXTS,
            "base64": TEXTS,
            "file_id": TEXTS,
            "mime_type": TEXTS,
            "text": TEXTS,
            "title": TEXTS,
            "id": TEXTS,
            "extras": st.dictionaries(st.sampled_from(["filename", "x"]), JSON_VALUES, max_size=2),
            "source_type": st.sampled_from(["url", "base64", "id", "text", "other"]),
            "data": TEXTS,
            "source": st.dictionaries(st.sampled_from(["type", "url", "data", "media_type", "file_id"]), TEXTS),
            "file": st.dictionaries(st.sampled_from(["file_data", "file_id", "filename"]), TEXTS),
        },
    ),
    st.fixed_dictionaries(
        {"type": st.just("image_url"), "image_url": st.one_of(TEXTS, st.dictionaries(st.sampled_from(["url"]), TEXTS))}
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["reasoning", "thinking", "redacted_thinking"])},
        optional={
            "reasoning": TEXTS,
            "thinking": TEXTS,
            "signature": TEXTS,
            "summary": st.lists(st.fixed_dictionaries({"text": TEXTS}), max_size=2),
            "index": st.integers(0, 3),
            "extras": _METADATA,
        },
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["tool_use", "tool_call", "function_call", "invalid_tool_call", "server_tool_call"])},
        optional={"id": IDS, "call_id": IDS, "name": TEXTS, "args": st.one_of(_METADATA, TEXTS), "input": _METADATA},
    ),
    st.fixed_dictionaries({"type": st.just("non_standard"), "value": _METADATA}),
    st.fixed_dictionaries(
        {
            "type": st.just("non_standard"),
            "value": st.fixed_dictionaries({"provider": PROVIDERS, "item": JSON_VALUES}),
        }
    ),
    _METADATA,
)
_CONTENTS = st.one_of(TEXTS, st.lists(_BLOCKS, max_size=4))
_NAMED: dict[str, st.SearchStrategy[Any]] = {
    "id": st.sampled_from([None, "m-1"]),
    "name": st.sampled_from([None, "", "alice"]),
    "additional_kwargs": _METADATA,
    "response_metadata": _METADATA,
}
_GIVEN_CALLS = st.fixed_dictionaries({"id": st.one_of(st.none(), IDS), "name": TEXTS, "args": _METADATA})
_CUT_OFF_CALLS = st.fixed_dictionaries(
    {
        "id": st.one_of(st.none(), IDS),
        "name": st.one_of(st.none(), TEXTS),
        "args": st.one_of(st.none(), ARGUMENTS),
        "error": st.one_of(st.none(), TEXTS),
    }
)
_USAGE = st.sampled_from([None, {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}])

THEIRS: st.SearchStrategy[BaseMessage] = st.one_of(
    st.builds(HumanMessage, content=_CONTENTS, **_NAMED),
    st.builds(SystemMessage, content=_CONTENTS, **_NAMED),
    st.builds(
        AIMessage,
        content=_CONTENTS,
        tool_calls=st.lists(_GIVEN_CALLS, max_size=3),
        invalid_tool_calls=st.lists(_CUT_OFF_CALLS, max_size=2),
        usage_metadata=_USAGE,
        **_NAMED,
    ),
    st.builds(
        ToolMessage,
        content=_CONTENTS,
        tool_call_id=IDS,
        artifact=JSON_VALUES,
        status=st.sampled_from(["success", "error"]),
        **_NAMED,
    ),
)
"""LangChain's messages: standard content, older spellings, those of providers, and blocks of nobody."""
