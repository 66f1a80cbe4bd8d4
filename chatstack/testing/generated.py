"""Generated messages, odd ones included, for property tests: as they come from models, tools, forms and old files.

Needs hypothesis, which chatstack does not install.
"""

from __future__ import annotations

import datetime
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from chatstack.values.messages import Message
from chatstack.values.parts import File, Image, Part, ProviderItem, Reasoning, Text, ToolCall, ToolResult

PROPERTY = settings(
    max_examples=150,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    deadline=datetime.timedelta(seconds=5),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
"""Hypothesis settings: the same examples on every run and every machine."""

TEXTS = st.one_of(st.sampled_from(["", "sun", "日 ☀", "{}", " "]), st.text(max_size=8))
IDS = st.sampled_from(["", "a", "b", "c"])
_EXTRAS = st.sampled_from(["", "", '{"openai-chat":  {"a": 1}}', '{"anthropic":{"cache_control":{"type":"x"}}}', "no"])
ARGUMENTS = st.sampled_from(
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
PROVIDERS = st.sampled_from(["", "openai", "anthropic", "langchain", "10xgraph", "scripted"])
_MEDIA: st.SearchStrategy[dict[str, str]] = st.fixed_dictionaries(
    {},
    optional={
        "url": st.sampled_from(["https://example.org/a.png", "data:image/png;base64,aGk="]),
        "data": st.just("aGVsbG8="),
        "media_type": st.sampled_from(["image/png", "text/plain", "application/pdf"]),
        "file_id": st.just("file-1"),
        "extra_json": _EXTRAS,
    },
)


def _image(fields: dict[str, str], detail: str) -> Image:
    return Image(**fields, detail=detail)


def _file(fields: dict[str, str], text: str, name: str) -> File:
    return File(**fields, text=text, name=name)


_IMAGES = st.builds(_image, _MEDIA, st.sampled_from(["", "low"]))
_FILES = st.builds(_file, _MEDIA, TEXTS, TEXTS)
_PROVIDER_ITEMS = st.builds(ProviderItem, PROVIDERS, _ITEMS)
_CALLS = st.builds(ToolCall, IDS, TEXTS, ARGUMENTS, _EXTRAS)
_OUTPUTS = st.one_of(
    TEXTS, st.lists(st.one_of(st.builds(Text, TEXTS, _EXTRAS), _IMAGES, _FILES, _PROVIDER_ITEMS), max_size=3).map(tuple)
)
_RESULTS = st.builds(ToolResult, IDS, TEXTS, _OUTPUTS, st.booleans(), _EXTRAS)
_PARTS: st.SearchStrategy[Part] = st.one_of(
    st.builds(Text, TEXTS, _EXTRAS),
    _IMAGES,
    _FILES,
    st.builds(Reasoning, TEXTS, _ITEMS, PROVIDERS),
    _CALLS,
    _RESULTS,
    _PROVIDER_ITEMS,
)

MESSAGES = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "assistant", "tool"]),
    st.lists(_PARTS, max_size=5).map(tuple),
    st.booleans(),
    st.sampled_from(["", "", "summary", "repair"]),
    _EXTRAS,
)
"""Messages of any parts in any role."""

JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(allow_nan=False, allow_infinity=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("kxy"), inner, max_size=2)),
    max_leaves=4,
)
