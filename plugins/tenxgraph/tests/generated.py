"""Generated messages of the library's, odd ones included, beside those of ours."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from tenxgraph.core.state import Message as GraphMessage

from chatstack.testing.generated import ARGUMENTS, IDS, JSON_VALUES, TEXTS

_METADATA = st.dictionaries(st.sampled_from(["function_name", "tool_call_id", "x"]), JSON_VALUES, max_size=2)
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
    {"call_id": IDS, "output": st.one_of(JSON_VALUES, st.lists(st.one_of(*_CONTENT_BLOCKS, JSON_VALUES), max_size=2))},
    {"is_error": st.booleans(), "status": st.sampled_from(["completed", "failed", None])},
)
_CALL_FIELDS = {"id": IDS, "name": TEXTS}
_THEIR_CALLS = [
    _block("tool_call", _CALL_FIELDS, {"args": _METADATA, "tool_type": st.sampled_from([None, "web_search"])}),
    _block("remote_tool_call", _CALL_FIELDS, {"args": _METADATA}),
]
_OPENAI_CALLS = st.one_of(
    st.fixed_dictionaries(
        {
            "id": IDS,
            "type": st.just("function"),
            "function": st.fixed_dictionaries({"name": TEXTS, "arguments": st.one_of(ARGUMENTS, _METADATA)}),
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
