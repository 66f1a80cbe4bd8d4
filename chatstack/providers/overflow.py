"""Recognition of context overflows in providers' errors, with the two sizes that they report.

The sizes are worth having: one is the true length of the request, the other the true window. They come in the text of
the message, in a different sentence from every server, or, from llama.cpp, as fields of the body.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_CODES = frozenset({
    "context_length_exceeded",
    "context_window_exceeded",
    "exceed_context_size_error",
    "model_context_window_exceeded",
    "tokens_limit_reached",
})  # fmt: skip

# No window has more digits; Python refuses to read numbers of thousands of them.
_N = r"(?P<{}>[0-9,]{{0,14}}[0-9])(?![0-9])"
_ACTUAL, _MORE, _LIMIT = _N.format("actual"), _N.format("more"), _N.format("limit")

# In lower case, as the text is: patterns that ignore case have no beginning to look for, and take twelve times as long.
# ``more`` is added to ``actual``: if input and reserved output are given apart, their sum does not fit.
_SENTENCES = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        # Anthropic
        rf"prompt is too long: {_ACTUAL} tokens > {_LIMIT} maximum",
        rf"input length and `?max_tokens`? exceed context limit: {_ACTUAL} \+ {_MORE} > {_LIMIT}",
        # OpenAI and servers with the same words (OpenRouter, vLLM, DeepSeek)
        rf"maximum context length is {_LIMIT} tokens.{{0,60}}?resulted in {_ACTUAL} tokens",
        rf"maximum context length is {_LIMIT} tokens.{{0,60}}?you requested (?:about )?{_ACTUAL} tokens",
        rf"limit of {_LIMIT} tokens.{{0,40}}?resulted in {_ACTUAL} tokens",
        # vLLM; with "at least", it stopped counting one past the limit: that is no size
        rf"context length is {_LIMIT} tokens.{{0,40}}?{_MORE} output tokens.{{0,40}}?contains {_ACTUAL} input tokens",
        rf"context length is {_LIMIT} tokens.{{0,40}}?request has {_ACTUAL} input tokens plus {_MORE} '?max_tokens",
        rf"too large: {_MORE}\. .{{0,30}}?maximum context length is {_LIMIT} tokens and your request has {_ACTUAL} ",
        rf"context length is {_LIMIT} tokens.{{0,40}}?request has {_ACTUAL} input tokens",
        rf"passed {_ACTUAL} input tokens and requested {_MORE} output tokens.{{0,60}}?length is only {_LIMIT} tokens",
        rf"prompt \(length {_ACTUAL}\) is longer than the maximum model length of {_LIMIT}",
        # llama.cpp
        rf"request \({_ACTUAL} tokens\) exceeds the available context size \({_LIMIT} tokens\)",
        rf"exceeds the available context size \({_LIMIT} tokens\)",
        # SGLang, Together, Baseten
        rf"context length of {_LIMIT} tokens.{{0,20}}?requested a total of {_ACTUAL} tokens",
        rf"input \({_ACTUAL} tokens\) is longer than the model's context length \({_LIMIT} tokens",
        rf"input length \(?{_ACTUAL}\)? exceeds (?:the |model's )?maximum (?:allowed input|context) length"
        rf"(?: of)? \(?{_LIMIT}",
        # Fireworks, Moonshot, Copilot, GitHub Models, DashScope, and a local server
        rf"prompt is too long: {_ACTUAL}, model maximum context length: {_LIMIT}",
        rf"exceeded model token limit: {_LIMIT} \(requested: {_ACTUAL}\)",
        rf"exceeded model token limit: {_LIMIT}",
        rf"prompt token count of {_ACTUAL} exceeds the limit of {_LIMIT}",
        rf"too large for .{{1,80}}? model\. max size: {_LIMIT} tokens",
        rf"range of input length should be \[[0-9]+, {_LIMIT}\]",
        rf"prompt has {_ACTUAL} tokens?, but the configured context size is {_LIMIT}",
        # Cerebras, Gemini, Mistral, xAI, text-generation-inference, LM Studio
        rf"current length is {_ACTUAL} while limit is {_LIMIT}",
        rf"input token count \(?{_ACTUAL}\)? exceeds the maximum number of (?:input )?tokens allowed \(?{_LIMIT}",
        rf"prompt contains {_ACTUAL} tokens.{{0,60}}?model with {_LIMIT} maximum context length",
        rf"maximum prompt length is {_LIMIT} but the request contains {_ACTUAL} tokens",
        rf"must be <= {_LIMIT}\. given: {_ACTUAL} `inputs` tokens and {_MORE} `max_new_tokens`",
        rf"keep the first {_ACTUAL} tokens when .{{0,80}}?context length of only {_LIMIT} tokens",
        # Messages with only the window, or no size
        rf"maximum context length (?:is|of) {_LIMIT}",
        r"maximum context length",
        r"exceeds? (?:the|its) (?:model'?s? )?(?:maximum )?(?:context (?:window|length|size)|input length)",
        r"exceeds the available context size",
        r"exceeded (?:max )?context length",
        r"exceeded model token limit",
        r"context window exceeds limit",
        r"(?:longer|greater) than the (?:model's )?context length",
        r"contextwindowexceedederror|context_length_exceeded",
        r"(?:prompt|input) is too long",
        r"reduce the length of the (?:messages|prompt|input)",
    )
)


class Overflow(NamedTuple):
    """Length of the request and its limit, in tokens; None if not reported."""

    actual: int | None = None
    limit: int | None = None


def overflow_in(
    status: int, code: str, kind: str, text: str, fields: Mapping[str, object] | None = None
) -> Overflow | None:
    """Return the overflow that an error reports, or None if it is about something else.

    A code decides; without one the text does, but only if an overflow is possible: a rate limit on tokens or a missing
    permission is none, whatever its words, and a body that is too large (413) only if it names a limit in tokens.
    """
    is_coded = bool({code, kind} & _CODES)
    if not is_coded and (status in (401, 403, 404, 429) or status > 500):
        return None
    text = text.lower().replace("\\u003e", ">")  # an error nested in an error is JSON in JSON
    if fields is not None and isinstance(fields.get("n_ctx"), int):
        return Overflow(_integer(fields.get("n_prompt_tokens")), _integer(fields.get("n_ctx")))
    for sentence in _SENTENCES:
        found = sentence.search(text)
        if found is not None:
            sizes = {name: int(value.replace(",", "")) for name, value in found.groupdict().items()}
            actual = sizes.get("actual")
            if status == 413 and not is_coded and "limit" not in sizes:
                return None
            return Overflow(actual + sizes.get("more", 0) if actual is not None else None, sizes.get("limit"))
    return Overflow() if is_coded else None


def plausible(told: Overflow) -> Overflow:
    """Return the sizes, None for one that is no number of tokens: a caller may hand on whatever a server sent."""
    return Overflow(_integer(told.actual), _integer(told.limit))


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**15 else None
