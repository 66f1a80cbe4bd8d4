"""Recognition of context overflows in providers' errors, with the two sizes that they report.

The sizes are worth having: one is the true length of the request, the other the true window. They come in the text of
the message, in a different sentence from every server, or, from llama.cpp, as fields of the body. What that text quotes
is not read: a log in the prompt may speak of another server's window.
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
_N = r"(?P<{}>[0-9,]{{0,14}}[0-9])(?!,?[0-9])"
_ACTUAL, _MORE, _LIMIT = _N.format("actual"), _N.format("more"), _N.format("limit")


def _words(words: str) -> str:
    """Return a pattern for a few of these words: whatever else stands between two numbers, they are not compared."""
    return rf"(?:[ ,:()'`-]{{0,3}}(?:{words})){{0,14}}[ ,:()'`-]{{0,3}}"


# A size in tokens is said of the input: ``max_tokens``, strings and pictures exceed other limits.
_INPUT = (
    r"(?<![\w.])(?:input and maximum output|input|prompt|request(?:ed)?|current|n_keep)"
    r"(?=[^.;]{0,99}(?:token|length|n_ctx))"
    + _words("_?tokens?(?:_ids)?|length|count|size|is|has|contains|of|in|total|too long|prompt|input")
)
_EXCEEDS, _LARGER = "exceed(?:s|ed)?", "(?:long|larg|great)er than"
_MOST = _words(
    "the|this|its|model's|model|max_seq_len|maximum|max|context|window|input|allowed|available|configured|total|tokens?|"
    "number|of|limit|length|sequence|size|only|supports|up to|n_ctx|is"
)
_WINDOW = "context (?:window|length|size|limit)"
# What stands behind a limit that is none of the input's in tokens.
_OTHER = (
    r"(?! ?(?:tokens? )?(?:bytes|char|[kmg]i?b\b|letter|utf|per |completion|output|length|"
    r"for (?:the )?(?:tool|function|metadata)s?\b))"
)

# In lower case, as the text is: patterns that ignore case have no beginning to look for, and take twelve times as long.
# Input and reserved output that are given apart are added up: it is their sum that does not fit.
_SENTENCES = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        # Input and output, then the limit
        # Anthropic: input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000
        rf"exceed context limit: {_ACTUAL} \+ {_MORE} > {_LIMIT}",
        # vLLM: You passed 4000 input tokens and requested 97 output tokens. However, the model's context length is only
        # 4096 tokens
        rf"passed {_ACTUAL} input tokens and requested {_MORE} output tokens.{{0,60}}?length is only {_LIMIT} tokens",
        # Mistral: prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum
        rf"prompt contains {_ACTUAL} tokens(?: and {_MORE} draft tokens)?, too large for model with {_LIMIT} maximum",
        # Cohere: size limit exceeded by 168512 tokens. [...] The limit for this model is 132000 tokens
        rf"size limit exceeded by {_N.format('excess')} tokens.{{0,80}}?limit for this model is {_LIMIT} tokens",
        # The limit, then the size
        # OpenAI, OpenRouter: maximum context length is 8192 tokens. However, your messages resulted in 10004 tokens
        # vLLM: [...] you requested 512 output tokens and your prompt contains 7691 input tokens; with "at least", it
        # stopped counting one past the limit, which is no size
        # vLLM: too large: 5000. This model's maximum context length is 4096 tokens and your request has 100 input [...]
        # vLLM: [...] your request has 8 input tokens plus 2045 'max_tokens'
        # OpenAI: Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 303120 tokens
        # TGI: + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 1000 `max_new_tokens`
        # TGI: `inputs` must have less than 4096 tokens. Given: 5000
        # Cohere: total number of tokens in the prompt cannot exceed 4081 - received 5000
        # Moonshot: exceeded model token limit: 262144 (requested: 291351)
        # Bedrock: Max input tokens: 128000, request input token count: 140000
        rf"(?:too large: {_N.format('before')}\. .{{0,30}}?)?"
        r"(?:(?:context|prompt) length(?: for this model)?|(?:model token|tokens exceed the(?: configured)?) limit|"
        r"max input tokens|inputs` must have less than|\+ `max_new_tokens` must be <=|"
        rf"tokens (?:in the prompt|\(prompt and prediction\)) cannot exceed)(?: is:?| of|:)? {_LIMIT}{_OTHER}.{{0,60}}?"
        rf"(?:{_MORE} output tokens.{{0,40}}?)?"
        r"(?:resulted in|requested(?::| about| a total of)?|contains|has|given:|received|count:) "
        rf"{_ACTUAL}(?! (?:output|message|tool))(?:(?: input| `inputs`) tokens (?:plus|and) {_N.format('plus')})?",
        # TensorRT-LLM: `default_max_tokens` (-904) = max_seq_len (4096) - `splited_prompt_len` (5000)
        rf"= max_seq_len \({_LIMIT}\) - `splited_prompt_len` \({_ACTUAL}\)",
        # LM Studio: keep the first 5003 tokens when [...] loaded with context length of only 4096 tokens
        rf"keep the first {_ACTUAL} tokens when .{{0,80}}?context length of only {_LIMIT} tokens",
        # The size, then the limit
        # vLLM: The prompt (total length 25938) is too long to fit into the model (context length 4096)
        rf"prompt \(total length {_ACTUAL}\) is too long to fit into the model \(context length {_LIMIT}\)",
        # llama.cpp: request (5003 tokens) exceeds the available context size (4096 tokens)
        # Anthropic: prompt is too long: 208656 tokens > 200000 maximum
        # Google: input token count is 40000 but model only supports up to 32768
        # MLC: Request prompt has 5000 tokens in total, larger than the model input length limit 4096
        # SiliconFlow: length of prompt_tokens (40000) must be less than max_seq_len (32768)
        # Cerebras: Current length is 8200 while limit is 8192
        # Fireworks: prompt is too long: 262377, model maximum context length: 262143
        rf"{_INPUT}{_ACTUAL}\)?(?: tokens)?\)?(?: in total)?,? ?"
        rf"(?:{_EXCEEDS}|cannot exceed|(?:is )?{_LARGER}|must be less than|>=?|but|while|model maximum)"
        rf"{_MOST}{_LIMIT}{_OTHER}",
        # TensorRT-LLM: sum of prompt length (72417.0), query length (0) should not exceed max_num_tokens (69632)
        rf"prompt length \({_ACTUAL}(?:\.[0-9]+)?\), query.{{1,20}}? should not exceed max_num_tokens \({_LIMIT}",
        # TabbyAPI: requires 5376 cache tokens, which exceeds the available context size of 4096 tokens
        rf"requires {_ACTUAL} cache tokens, which exceeds the available context size of {_LIMIT} tokens",
        # The limit alone
        # Google: The input token count exceeds the maximum number of tokens allowed 1048576
        rf"{_INPUT}{_EXCEEDS}{_MOST}(?:{_WINDOW}|tokens allowed|token limit){_MOST}{_LIMIT}{_OTHER}",
        # LM Studio: Reached context length of 4096 tokens
        # vLLM: You passed 9000 input characters [...]. However, the model's context length is only 2048 tokens
        rf"(?:maximum|reached|model's) context length(?: is| of|:| is:)(?: only)? {_LIMIT}",
        # GitHub Models: Request body too large for gpt-4o model. Max size: 8000 tokens
        rf"too large for .{{1,80}}? model\. max size: {_LIMIT} tokens",
        # DashScope: Range of input length should be [1, 983616]
        rf"range of input length should be \[[0-9]+, {_LIMIT}\]",
        # Snowflake: max tokens of 200000 exceeded
        rf"(?<![\w.])max tokens of {_LIMIT} exceeded",
        # No size
        rf"(?:{_EXCEEDS}|{_LARGER}){_MOST}(?:{_WINDOW}|input length|model token limit|max message tokens)",
        rf"{_WINDOW}(?: has been| is| was)? exceed(?:ed|s limit)",
        r"(?:model|endpoint|deployment)'s maximum context length",
        r"maximum context length(?:[:(]| \(| for this model| (?:is |was |has been )?(?:reached|exceeded))",
        r"contextwindowexceedederror|context_length_exceeded",
        r"(?<![\w.])(?:prompt|input) (?:is )?(?:too long|超长)(?! for image)",
        r"(?:prompt|input tokens?|input token count) exceeds? (?:the )?max(?:imum)? (?:length|number of tokens)"
        r"(?! of [0-9,]+ char)",
        r"too many tokens: size limit exceeded",
        r"reduce the length of the (?:messages|prompt|input)",
    )
)

_DEEPEST = 4
"""Number of errors within one another that are read."""
_LONGEST = 10_000
"""Length of the text that is read: beyond it stands what a server quotes, or a list of everything that is wrong."""
# An apostrophe within a word ends no quotation. One that never ends reaches to the end of the text.
_QUOTED = re.compile(
    r"(?<![\w\\])(?:" + "|".join(rf"{mark}(?:[^{mark}\\]|\\.?|{mark}(?=\w))*(?:{mark}|\Z)" for mark in "\"'`") + ")",
    re.DOTALL,
)
# What tells an error: a field of that name, in JSON or as a program writes it, and the argument of an exception.
_NAMED = re.compile(
    r"""(?:["'](?:message|detail|msg|errors?|raw|description)["'] ?: ?\[?"""
    r"""|(?:message|detail|msg|desc) ?[:=] ?|error=|(?:error|exception)\(|with message )$"""
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


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
    # An error nested in an error is JSON in JSON.
    text = _own_words(text[:_LONGEST].lower().replace("\\u003e", ">"))
    if fields is not None and isinstance(fields.get("n_ctx"), int):
        return Overflow(_integer(fields.get("n_prompt_tokens")), _integer(fields.get("n_ctx")))
    for sentence in _SENTENCES:
        found = sentence.search(text)
        if found is not None:
            sizes = {name: int(value.replace(",", "")) for name, value in found.groupdict().items() if value}
            limit = sizes.pop("limit", None)
            if status == 413 and not is_coded and limit is None:
                return None
            if limit is not None and "excess" in sizes:
                sizes["actual"] = limit
            return Overflow(sum(sizes.values()) if "actual" in sizes else None, limit)
    return Overflow() if is_coded else None


def _own_words(text: str, depth: int = _DEEPEST) -> str:
    """Return a server's text without its quotations, which may be of the request: names remain, and the message of an
    error that the text holds as JSON, or as Python's ``repr``."""

    def read(found: re.Match[str]) -> str:
        quoted = found[0]
        if depth and quoted[0] != "`" and _NAMED.search(text, max(0, found.start() - 16), found.start()):
            return _own_words(_ESCAPED.sub(r"\1", quoted[1:].removesuffix(quoted[0])), depth - 1)
        return quoted if len(quoted.split()) == 1 else "''"

    return _QUOTED.sub(read, text)


def plausible(told: Overflow) -> Overflow:
    """Return the sizes, None for one that is no number of tokens: a caller may hand on whatever a server sent."""
    return Overflow(_integer(told.actual), _integer(told.limit))


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**15 else None
