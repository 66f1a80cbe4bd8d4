"""Generated messages of both sides, odd ones included: what comes out of models, tools, forms and old checkpoints."""

from __future__ import annotations

import datetime
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from tenxgraph.core.state import Message as GraphMessage

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
_PROVIDERS = st.sampled_from(["", "openai", "anthropic", "10xgraph", "langchain", "scripted"])
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
)
"""Messages of any parts in any role."""

_JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(allow_nan=False, allow_infinity=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("kxy"), inner, max_size=2)),
    max_leaves=4,
)
_METADATA = st.dictionaries(st.sampled_from(["function_name", "tool_call_id", "x"]), _JSON, max_size=2)
_MEDIA_REFS = st.fixed_dictionaries(
    {"kind": st.sampled_from(["url", "file_id", "data"])},
    optional={
        "url": st.one_of(st.none(), TEXTS),
        "file_id": TEXTS,
        "data_base64": TEXTS,
        "mime_type": TEXTS,
        "filename": TEXTS,
        "size_bytes": st.integers(0, 9),
        "page": st.integers(0, 9),
    },
)


def _block(kind: str, required: dict[str, Any], optional: dict[str, Any] | None = None) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({"type": st.just(kind), **required}, optional=optional or {})


_CONTENT_BLOCKS = [
    _block("text", {"text": TEXTS}, {"annotations": st.lists(st.fixed_dictionaries({"url": TEXTS}), max_size=1)}),
    _block("image", {"media": _MEDIA_REFS}, {"alt_text": TEXTS, "bbox": st.just([0.0, 1.0])}),
    _block("audio", {"media": _MEDIA_REFS}, {"transcript": TEXTS}),
    _block("video", {"media": _MEDIA_REFS}, {"thumbnail": _MEDIA_REFS}),
    _block("document", {"media": _MEDIA_REFS}, {"text": TEXTS, "excerpt": TEXTS, "pages": st.just([1])}),
    _block("data", {"mime_type": TEXTS}, {"data_base64": TEXTS, "media": _MEDIA_REFS}),
    _block("data", {"mime_type": st.just("application/vnd.chatstack.provider-item+json"), "data_base64": TEXTS}),
    _block("reasoning", {"summary": TEXTS}, {"details": st.lists(TEXTS, max_size=1)}),
    _block("annotation", {"kind": st.just("note")}),
    _block("error", {"message": TEXTS}, {"code": TEXTS, "data": _METADATA}),
]
_THEIR_RESULTS = _block(
    "tool_result",
    {"call_id": _IDS, "output": st.one_of(_JSON, st.lists(st.one_of(*_CONTENT_BLOCKS, _JSON), max_size=2))},
    {"is_error": st.booleans(), "status": st.sampled_from(["completed", "failed", None])},
)
_CALL_FIELDS = {"id": _IDS, "name": TEXTS}
_THEIR_CALLS = [
    _block("tool_call", _CALL_FIELDS, {"args": _METADATA, "tool_type": st.sampled_from([None, "web_search"])}),
    _block("remote_tool_call", _CALL_FIELDS, {"args": _METADATA}),
]
_OPENAI_CALLS = st.one_of(
    st.fixed_dictionaries(
        {
            "id": _IDS,
            "type": st.just("function"),
            "function": st.fixed_dictionaries({"name": TEXTS, "arguments": st.one_of(_ARGUMENTS, _METADATA)}),
        }
    ),
    _METADATA,
)

THEIRS = st.builds(
    GraphMessage.model_validate,
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "assistant", "system", "tool"]),
            "content": st.lists(st.one_of(*_CONTENT_BLOCKS, _THEIR_RESULTS, *_THEIR_CALLS), max_size=4),
        },
        optional={
            "message_id": st.one_of(TEXTS, st.integers(0, 9)),
            "tools_calls": st.one_of(st.none(), st.lists(_OPENAI_CALLS, max_size=3)),
            "reasoning": TEXTS,
            "timestamp": st.one_of(st.none(), st.just(1.5)),
            "metadata": _METADATA,
            "usages": st.just({"completion_tokens": 1, "prompt_tokens": 2, "total_tokens": 3}),
            "raw": _METADATA,
            "parsed_content": _METADATA,
        },
    ),
)
"""10xgraph's messages: blocks of all kinds in all roles, calls with and without a block, outputs of any JSON."""
