"""Generated messages of both sides, odd ones included: what comes out of models, tools, forms and old checkpoints."""

from __future__ import annotations

import datetime
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from chatstack import File, Image, Message, Part, ProviderItem, Reasoning, Text, ToolCall, ToolResult

PROPERTY = settings(
    max_examples=150,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    deadline=datetime.timedelta(seconds=5),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
"""The same examples on every run and every machine."""

TEXTS = st.one_of(st.sampled_from(["", "sun", "日 ☀", "{}", " "]), st.text(max_size=8))
_IDS = st.sampled_from(["", "a", "b", "c"])
_EXTRAS = st.sampled_from(["", "", '{"openai-chat":  {"a": 1}}', '{"anthropic":{"cache_control":{"type":"x"}}}', "no"])
_ARGUMENTS = st.sampled_from(
    [
        "{}",
        "",
        " ",
        '{"at":"sky"}',
        '{ "at" : 1.0 }',
        '{"at":1,"at":2}',
        '{"at": NaN}',
        '{"at": "\\ud800"}',
        '{"n": 123456789012345678901234567890, "f": 1e400}',
        "[1, 2]",
        '{"at": "s',
        "null",
    ]
)
_ITEMS = st.sampled_from(
    [
        "",
        '{"signature": "s"}',
        '{"type":"thinking","thinking":"hm","signature":"s"}',
        '{"type": "thinking", "thinking": "other"}',
        '{"type":"redacted_thinking","data":"x"}',
        '{"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":"hm"}],"encrypted_content":"e"}',
        "half",
        "[1]",
    ]
)
_PROVIDERS = st.sampled_from(["", "openai", "anthropic", "langchain", "10xgraph", "scripted"])
_MEDIA = st.fixed_dictionaries(
    {},
    optional={
        "url": st.sampled_from(["https://example.org/a.png", "data:image/png;base64,aGk="]),
        "data": st.just("aGVsbG8="),
        "media_type": st.sampled_from(["image/png", "text/plain", "application/pdf"]),
        "file_id": st.just("file-1"),
        "extra_json": _EXTRAS,
    },
)
_IMAGES = st.builds(lambda fields, detail: Image(**fields, detail=detail), _MEDIA, st.sampled_from(["", "low"]))
_FILES = st.builds(lambda fields, text, name: File(**fields, text=text, name=name), _MEDIA, TEXTS, TEXTS)
_PROVIDER_ITEMS = st.builds(ProviderItem, _PROVIDERS, _ITEMS)
_CALLS = st.builds(ToolCall, _IDS, TEXTS, _ARGUMENTS, _EXTRAS)
_OUTPUTS = st.one_of(
    TEXTS, st.lists(st.one_of(st.builds(Text, TEXTS, _EXTRAS), _IMAGES, _FILES, _PROVIDER_ITEMS), max_size=3).map(tuple)
)
_RESULTS = st.builds(ToolResult, _IDS, TEXTS, _OUTPUTS, st.booleans(), _EXTRAS)
_PARTS: st.SearchStrategy[Part] = st.one_of(
    st.builds(Text, TEXTS, _EXTRAS),
    _IMAGES,
    _FILES,
    st.builds(Reasoning, TEXTS, _ITEMS, _PROVIDERS),
    _CALLS,
    _RESULTS,
    _PROVIDER_ITEMS,
)

OURS = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "assistant", "tool"]),
    st.lists(_PARTS, max_size=5).map(tuple),
    st.booleans(),
    st.sampled_from(["", "", "summary", "repair"]),
    _EXTRAS,
).filter(lambda message: message.role != "system" or not message.results)
"""Messages of any parts in any role; a tool result of the system would come back as a tool's."""

_JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(allow_nan=False, allow_infinity=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("kxy"), inner, max_size=2)),
    max_leaves=4,
)
_METADATA = st.dictionaries(st.sampled_from(["lc_source", "tool_calls", "x"]), _JSON, max_size=2)
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
            "extras": st.dictionaries(st.sampled_from(["filename", "x"]), _JSON, max_size=2),
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
        optional={"id": _IDS, "call_id": _IDS, "name": TEXTS, "args": st.one_of(_METADATA, TEXTS), "input": _METADATA},
    ),
    st.fixed_dictionaries({"type": st.just("non_standard"), "value": _METADATA}),
    st.fixed_dictionaries(
        {
            "type": st.just("non_standard"),
            "value": st.fixed_dictionaries({"provider": _PROVIDERS, "item": _JSON}),
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
_GIVEN_CALLS = st.fixed_dictionaries({"id": st.one_of(st.none(), _IDS), "name": TEXTS, "args": _METADATA})
_CUT_OFF_CALLS = st.fixed_dictionaries(
    {
        "id": st.one_of(st.none(), _IDS),
        "name": st.one_of(st.none(), TEXTS),
        "args": st.one_of(st.none(), _ARGUMENTS),
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
        tool_call_id=_IDS,
        artifact=_JSON,
        status=st.sampled_from(["success", "error"]),
        **_NAMED,
    ),
)
"""LangChain's messages: standard content, older spellings, those of providers, and blocks of nobody."""
