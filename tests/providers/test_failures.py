from __future__ import annotations

import asyncio
import gzip
import json
import pickle
import time
from pathlib import Path
from typing import Any, get_args

import pytest
from openai.types.responses import ResponseError

from chatstack import ChatStackError, ContextOverflowError
from chatstack.errors import (
    AuthenticationError,
    BrokenStreamError,
    ProviderConnectionError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    RequestRefusedError,
    ServerError,
)
from chatstack.providers.failures import failure, transport_failure
from chatstack.providers.openai import OpenAIChatClient
from chatstack.providers.overflow import Overflow
from chatstack.providers.retry_after import retry_after_seconds

DATA = (Path(__file__).resolve().parents[2] / "../shared/data").resolve() / "provider_errors.jsonl.gz"

OVERFLOWS = [
    ("prompt is too long: 208656 tokens > 200000 maximum", 208_656, 200_000),
    ("input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000, decrease", 207_951, 200_000),
    ("input length and max_tokens exceed context limit: 199759 + 8192 > 200000", 207_951, 200_000),
    (
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 10,004 tokens. Please "
        "reduce the length of the messages.",
        10_004,
        8_192,
    ),
    (
        "This model's maximum context length is 4097 tokens, however you requested 5360 tokens (1360 in your prompt; "
        "4000 for the completion).",
        5_360,
        4_097,
    ),
    (
        "This endpoint's maximum context length is 32768 tokens. However, you requested about 40960 tokens (39000 of "
        "text input, 1960 in the output).",
        40_960,
        32_768,
    ),
    (
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 303120 tokens.",
        303_120,
        272_000,
    ),
    (
        "'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's maximum context length is 4096 "
        "tokens and your request has 100 input tokens (5000 > 4096 - 100).",
        5_100,
        4_096,
    ),
    ("The decoder prompt (length 5000) is longer than the maximum model length of 4096.", 5_000, 4_096),
    ("request (5003 tokens) exceeds the available context size (4096 tokens), try increasing it", 5_003, 4_096),
    ("the request exceeds the available context size (4096 tokens), try increasing it", None, 4_096),
    ("Please reduce the length. Current length is 8200 while limit is 8192", 8_200, 8_192),
    ("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", 1_200_000, 1_048_576),
    (
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        40_000,
        32_768,
    ),
    ("This model's maximum prompt length is 131072 but the request contains 537812 tokens.", 537_812, 131_072),
    (
        "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 1000 `max_new_tokens`",
        5_000,
        4_096,
    ),
    (
        "This model's maximum context length is 8192 tokens. However, you requested 512 output tokens and your prompt "
        "contains 7691 input tokens, for a total of 8203 tokens. Please reduce the length of the input prompt.",
        8_203,
        8_192,
    ),
    (
        "This model's maximum context length is 32768 tokens. However, you requested 32000 output tokens and your "
        "prompt contains at least 769 input tokens, for a total of at least 32769 tokens. Please reduce the length of "
        "the input prompt or the number of requested output tokens. (parameter=input_tokens, value=769)",
        None,
        32_768,
    ),
    (
        "This model's maximum context length is 2048 tokens. However, your request has 8 input tokens plus 2045 "
        "'max_tokens'. Please reduce one or the other. (parameter=input_tokens, max_tokens, value=(8, 2045))",
        2_053,
        2_048,
    ),
    (
        "This model's maximum context length is 4096 tokens. However, your request has 5003 input tokens. Please "
        "reduce the length of the input messages. (parameter=input_tokens, value=5003)",
        5_003,
        4_096,
    ),
    (
        "Requested token count exceeds the model's maximum context length of 262144 tokens. You requested a total of "
        "262758 tokens: 198758 tokens from the input messages and 64000 tokens for the completion.",
        262_758,
        262_144,
    ),
    ("The input (516368 tokens) is longer than the model's context length (262144 tokens).", 516_368, 262_144),
    ("Input length 131393 exceeds the maximum allowed input length of 131040 tokens.", 131_393, 131_040),
    ("Input length (265330) exceeds model's maximum context length (262144).", 265_330, 262_144),
    ("The prompt is too long: 262377, model maximum context length: 262143", 262_377, 262_143),
    ("Your request exceeded model token limit: 262144 (requested: 291351)", 291_351, 262_144),
    ("Your request exceeded model token limit: 262144", None, 262_144),
    ("Your request exceeded model token limit", None, None),
    (
        "You passed 4000 input tokens and requested 97 output tokens. However, the model's context length is only 4096 "
        "tokens, resulting in a maximum input length of 3999 tokens. Please reduce the length of the input prompt.",
        4_097,
        4_096,
    ),
    (
        "Trying to keep the first 5003 tokens when context the overflows. However, the model is loaded with context "
        "length of only 4096 tokens, which is not enough.",
        5_003,
        4_096,
    ),
    ("prompt token count of 151234 exceeds the limit of 128000", 151_234, 128_000),
    ("Range of input length should be [1, 983616]", None, 983_616),
    ("Prompt has 5,958,968 tokens, but the configured context size is 256,000 tokens", 5_958_968, 256_000),
    ("Prompt has 9,000 tokens, but the configured context size is 8,192 tokens for functionary-7b", 9_000, 8_192),
    (r'{"error":{"message":"prompt is too long: 204812 tokens \u003e 200000 maximum"}}', 204_812, 200_000),
    ("prompt too long; exceeded max context length by 100918 tokens", None, None),
    ("The number of tokens to keep from the initial prompt is greater than the context length.", None, None),
    ("invalid params, context window exceeds limit", None, None),
    ("litellm.ContextWindowExceededError: litellm.BadRequestError: no", None, None),
    ("Your input exceeds the context window of this model. Please adjust your input and try again.", None, None),
    ("Input is too long for requested model.", None, None),
    ("Please reduce the length of the messages or completion.", None, None),
    ("Context size has been exceeded.", None, None),
    ("input (5000 tokens) is larger than the max context size (4096 tokens). skipping", 5_000, 4_096),
    (
        "Reached context length of 4096 tokens with model (arch: qwen3) that does not currently support mid-generation "
        "context overflow. Try reloading with a larger context length, or shortening the prompt/chat.",
        None,
        4_096,
    ),
    (
        "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 5000>= "
        "n_ctx: 4096). Try to load the model with a larger context length, or provide a shorter input.",
        5_000,
        4_096,
    ),
    ("Requested tokens (2500) exceed context window of 2048", 2_500, 2_048),
    ("Requested tokens exceed context window of 2048", None, 2_048),
    ("Input tokens exceed the limit of 272000 tokens. Your messages resulted in 303120 tokens.", 303_120, 272_000),
    ("Prompt contains 300000 tokens, too large for model with 131072 maximum context length", 300_000, 131_072),
    ("The maximum context length for this model is 8192 tokens, however you requested 9000 tokens.", 9_000, 8_192),
    ("maximum context length is 8192 tokens. Your request has 12 messages, which resulted in 9000", 9_000, 8_192),
    ("maximum context length is: 8192 tokens, but you sent 9000", None, 8_192),
    ("Error: maximum context length (8192) exceeded by 300 tokens", None, None),
    ("The maximum context length was reached", None, None),
    ("Input validation error: `inputs` must have less than 4096 tokens. Given: 5000", 5_000, 4_096),
    (
        "Input length (5000 tokens) exceeds the maximum allowed length (4096 tokens). Use a shorter input or enable "
        "--allow-auto-truncate.",
        5_000,
        4_096,
    ),
    (
        "Prompt length (10000) exceeds maximum input length (8192). Set log level to info and check TRTGptModel logs "
        "for how maximum input length is set",
        10_000,
        8_192,
    ),
    ("Request prompt has 5000 tokens in total, larger than the model input length limit 4096.", 5_000, 4_096),
    ("Requested input length 53113 exceeds maximum input length 32768", 53_113, 32_768),
    (
        "Unable to submit request because the input token count is 40000 but model only supports up to 32768. Reduce "
        "the input token count and try again.",
        40_000,
        32_768,
    ),
    ("The input token count exceeds the maximum number of tokens allowed 1048576.", None, 1_048_576),
    ("Prompt exceeds max length", None, None),
    ("Prompt too long", None, None),
    ("Prompt 超长", None, None),
    ("Total tokens of image and text exceed max message tokens. Request id: 0217", None, None),
    (
        "too many tokens: size limit exceeded by 168512 tokens. Try using shorter or fewer inputs. The limit for this "
        "model is 132000 tokens.",
        300_512,
        132_000,
    ),
    ("too many tokens: size limit exceeded by 1502 tokens. Try using shorter or fewer inputs", None, None),
    (
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000. Try using a shorter "
        "prompt, or enabling prompt truncating.",
        5_000,
        4_081,
    ),
    (
        "too many tokens: total number of tokens (prompt and prediction) cannot exceed 2048 - received 6354. Try using "
        "a shorter prompt or a smaller max_tokens value.",
        6_354,
        2_048,
    ),
    (
        "The model returned the following errors: Input Tokens Exceeded: Number of input tokens exceeds maximum "
        "length. Please update the input to try again.",
        None,
        None,
    ),
    ("Too many input tokens. Max input tokens: 128000, request input token count: 140000", 140_000, 128_000),
    (
        "AiError: The estimated number of input and maximum output tokens (27312) exceeded this model context window "
        "limit (24000). (uuid)",
        27_312,
        24_000,
    ),
    (
        "Invalid input argument for Model 'ibm/granite': the number of input tokens 5000 cannot exceed the total "
        "tokens limit 4096 for this model",
        5_000,
        4_096,
    ),
    ("length of prompt_tokens (40000) must be less than max_seq_len (32768).", 40_000, 32_768),
    (
        "You passed 9000 input characters and requested 100 output tokens. However, the model's context length is only "
        "2048 tokens, resulting in a maximum input length of 1948 tokens (at most 31168 characters). Please reduce the "
        "length of the input prompt.",
        None,
        2_048,
    ),
    ("The prompt is longer than the maximum context length", None, None),
    (
        "The prompt (total length 25938) is too long to fit into the model (context length 4096). Make sure that "
        "`max_model_len` is no smaller than the number of text tokens plus multimodal tokens.",
        25_938,
        4_096,
    ),
    ("The sum of prompt length (72417.0), query length (0) should not exceed max_num_tokens (69632)", 72_417, 69_632),
    (
        "`default_max_tokens` (-904) must be greater than 0, `default_max_tokens` (-904) = max_seq_len (4096) - "
        "`splited_prompt_len` (5000)",
        5_000,
        4_096,
    ),
    ("`prompt_token_ids` length (5000) is greater than `max_seq_len` (4096)", 5_000, 4_096),
    ("Cannot process new request: Prompt length (5056) exceeds maximum sequence length (2048)", 5_056, 2_048),
    ("Prompt length 5000 exceeds the available context size of 4096 tokens", 5_000, 4_096),
    (
        "Initial job allocation requires 5376 cache tokens, which exceeds the available context size of 4096 tokens",
        5_376,
        4_096,
    ),
    ("max tokens of 200000 exceeded", None, 200_000),
]


@pytest.mark.parametrize(("text", "actual", "limit"), OVERFLOWS, ids=[text[:40] for text, _, _ in OVERFLOWS])
def test_an_overflow_tells_its_two_sizes(text: str, actual: int | None, limit: int | None) -> None:
    error = failure("openai", status=400, body={"error": {"message": text, "type": "invalid_request_error"}})
    assert isinstance(error, ContextOverflowError)
    assert (error.actual, error.limit, error.status) == (actual, limit, 400)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (413, {"errors": [{"message": "input tokens (5000) exceeded this model context window limit (4096)"}]}),
        (400, {"errors": [{"message": "the number of input tokens 5000 cannot exceed the total tokens limit 4096"}]}),
        (422, {"error": "`inputs` must have less than 4096 tokens. Given: 5000", "error_type": "validation"}),
        (500, {"error": {"code": 500, "message": "input (5000 tokens) is larger than the max context size (4096)"}}),
    ],
    ids=["413", "a list", "422", "500"],
)
def test_an_overflow_has_many_statuses_and_shapes(status: int, body: object) -> None:
    error = failure("openai", status=status, body=body)
    assert isinstance(error, ContextOverflowError)
    assert (error.actual, error.limit, error.status) == (5_000, 4_096, status)


@pytest.mark.parametrize("errors", [[], [None], [3], {}, [[]], "no"], ids=repr)
def test_errors_that_hold_none_do_no_harm(errors: object) -> None:
    assert type(failure("openai", status=400, body={"errors": errors})) is RequestRefusedError


ECHO = f"{OVERFLOWS[3][0]} It is in this log."


@pytest.mark.parametrize(
    "body",
    [
        {"detail": [{"type": "string_type", "loc": ["body", "messages", 2], "msg": "Not a string", "input": ECHO}]},
        {"detail": [{"loc": ["body", ECHO], "msg": "Not a string", "ctx": {"given": ECHO}}]},
        {"detail": {"input": ECHO}},
        {"object": "error", "message": {"detail": [{"msg": "Not a string", "input": {"content": ECHO}}]}},
        {"error": {"message": "Not a string", "input": ECHO, "detail": ECHO}},
        {"error": {"body": [ECHO]}},
        {"errors": [{"value": ECHO, "msg": "Not a string"}]},
    ],
    ids=range(7),
)
def test_what_a_server_quotes_beside_its_words_is_not_read(body: object) -> None:
    assert type(failure("openai", status=422, body=body)) is RequestRefusedError


@pytest.mark.parametrize(
    "body",
    [
        {"detail": ECHO},
        {"detail": [{"loc": ["body"], "msg": "Not a string"}, {"loc": ["body"], "msg": ECHO}]},
        {"detail": {"error": {"message": ECHO}}},
        {"message": {"detail": [{"msg": ECHO}]}},
        {"error": {"message": [ECHO]}},
        {"errors": [ECHO]},
        {"detail": {"errors": [{"message": ECHO}]}},
    ],
    ids=range(7),
)
def test_a_servers_words_are_found_where_it_says_them(body: object) -> None:
    error = failure("openai", status=422, body=body)
    assert isinstance(error, ContextOverflowError)
    assert (error.actual, error.limit) == (10_004, 8_192)


@pytest.mark.parametrize(
    "text",
    [
        f"Invalid value: '{ECHO}'. Supported values are: 'system' and 'user'.",
        f"1 validation error for Request\\n  Not a string [type=string_type, input_value={ECHO!r}, input_type=str]",
        f"'{ECHO}' is not of type 'object'",
        f"[{{'type': 'string_type', 'loc': ('body', 'model'), 'msg': 'Not a string', 'input': {ECHO!r}}}]",
        str([{"msg": "Not a string", "input": {"messages": [{"role": "user", "content": ECHO + ' "quoted"'}]}}]),
        f"invalid type: string {json.dumps(ECHO)}, expected u32 at line 1 column 9",
        f"Error code: 400 - { ({'detail': {'input': ECHO}}) }",
        f"Error code: 400 - { ({'error': {'message': 'Invalid value: ' + repr(ECHO)}}) }",
        f"Invalid value: '{ECHO[:60]}",
        f"Unknown field `{ECHO}`",
        f"Failed to parse the arguments: {'x' * 10_000} {ECHO}",
        "Invalid schema for function 'limits': ('properties', 'maximum context length') is not allowed",
    ],
    ids=range(12),
)
def test_an_overflow_in_a_quotation_is_none(text: str) -> None:
    assert type(failure("openai", status=400, body={"message": text})) is RequestRefusedError
    assert type(failure("openai", status=400, body={"no": "words"}, text=text)) is RequestRefusedError


@pytest.mark.parametrize(
    "text",
    [
        f"Error code: 400 - { ({'error': {'message': ECHO, 'type': 'invalid_request_error'}}) }",
        f"AnthropicException - {json.dumps({'error': {'message': ECHO}})}",
        f"AnthropicException - {json.dumps({'error': {'message': ECHO}}).encode()!r}",
        f"no - {json.dumps({'message': 'no', 'metadata': {'raw': json.dumps({'error': {'message': ECHO}})}})}",
        f"BadRequestError(code=400, message={ECHO!r})",
        f"The 'max_tokens' of the users' request: {ECHO}",
        f"Model 'a b' of \"c d\": {ECHO}",
        f"ValueError({ECHO!r})",
        f"BadRequestError({str({'error': {'message': ECHO}})!r})",
        f"HTTPException(status_code=400, detail={ECHO!r})",
        f'ApiError {{ message: "{ECHO}" }}',
        f'desc = "{ECHO}"',
        f'{{"code": 400, "message" : "{ECHO}"}}',
        f'Received client error (400) from primary with message "{ECHO}". See the log',
        f"{ {'errors': [ECHO]} }",
    ],
    ids=range(15),
)
def test_an_error_that_is_told_within_another_one_is_read(text: str) -> None:
    error = failure("openai", status=400, body={"message": text})
    assert isinstance(error, ContextOverflowError)
    assert (error.actual, error.limit) == (10_004, 8_192)


@pytest.mark.parametrize(
    "body",
    [
        {"type": "about:blank", "title": "Bad", "detail": ECHO, "errors": [{"detail": "see above", "pointer": "#"}]},
        {"message": ECHO, "errors": ["bad"]},
        {"error_code": 336007, "error_msg": ECHO},
        {"errorMessage": ECHO},
        {"title": ECHO, "status": 400},
        {"detail": {"reason": ECHO}},
        {"detail": {"error": {"message": ECHO}}},
        {"error": {"description": ECHO}},
        {"error": ["no", ECHO]},
        {"errors": [{"message": "no"}, {"message": ECHO}]},
        {"success": False, "errors": [{"code": 5007, "message": ECHO}], "messages": []},
    ],
)
def test_the_words_of_an_error_are_read_wherever_a_server_puts_them(body: object) -> None:
    error = failure("openai", status=400, body=body)
    assert isinstance(error, ContextOverflowError)
    assert (error.actual, error.limit) == (10_004, 8_192)


@pytest.mark.parametrize(
    "body",
    [
        {"code": "context_length_exceeded", "message": "no", "errors": [{"x": 1}]},
        {"detail": {"code": "context_length_exceeded", "message": "no"}},
        {"detail": {"error": {"code": "context_length_exceeded", "message": "no"}}},
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_a_code_is_found_beside_a_list_of_errors_and_within_a_detail(body: object, streaming: bool) -> None:
    error = failure("openai", status=200 if streaming else 400, body=body, streaming=streaming)
    assert isinstance(error, ContextOverflowError)
    listed = {"code": 429, "message": "no", "status": "RESOURCE_EXHAUSTED", "errors": [{"reason": "rateLimitExceeded"}]}
    assert isinstance(failure("gcp.gemini", status=200, body=listed, streaming=True), RateLimitError)


def test_a_detail_that_holds_itself_is_read_to_an_end() -> None:
    body: dict[str, object] = {}
    body["detail"] = body
    assert type(failure("openai", status=400, body=body)) is RequestRefusedError


@pytest.mark.parametrize("opens", ['message="', "message='", "message=\"message='", '"message": "'])
def test_errors_within_one_another_without_end_are_not_all_read(opens: str) -> None:
    error = failure("openai", status=400, body={"message": opens * 1_100 + ECHO})
    assert type(error) is RequestRefusedError


def test_a_code_alone_is_an_overflow() -> None:
    error = failure("openai", body={"code": "context_length_exceeded", "message": "no"}, streaming=True)
    assert isinstance(error, ContextOverflowError)
    assert (error.actual, error.limit, error.code) == (None, None, "context_length_exceeded")


@pytest.mark.parametrize("status", [400, 500])
def test_llama_cpp_tells_the_sizes_in_fields(status: int) -> None:
    body = {
        "error": {
            "code": status,
            "message": "the request exceeds the available context size",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 5003,
            "n_ctx": 4096,
        }
    }
    error = failure("openai", status=status, body=body)
    assert isinstance(error, ContextOverflowError)
    assert (error.actual, error.limit) == (5_003, 4_096)


def test_an_overflow_by_a_status_or_fields_of_its_own_is_told_by_the_caller() -> None:
    body = {"why": "too_much", "tokens": 9_000}
    error = failure("parley", status=413, body=body, overflow=Overflow(9_000, 8_192))
    assert isinstance(error, ContextOverflowError)
    assert (error.actual, error.limit, error.status, error.code) == (9_000, 8_192, 413, "")
    assert str(error) == "parley: the request does not fit the context window: 9,000 of 8,192 tokens (413)"
    unsaid = failure("parley", status=413, body=body, overflow=Overflow())
    assert isinstance(unsaid, ContextOverflowError)
    assert (unsaid.actual, unsaid.limit) == (None, None)
    assert type(failure("parley", status=413, body=body)) is RequestRefusedError


@pytest.mark.parametrize("size", ["9000", -1, True, 10**4000, 1.5, [9_000]])
def test_a_size_that_the_caller_read_and_that_is_none_is_not_told(size: Any) -> None:
    error = failure("parley", status=413, overflow=Overflow(size, size))
    assert isinstance(error, ContextOverflowError)
    assert (error.actual, error.limit) == (None, None)


SAID = "This model's maximum context length is 262144 tokens. However, your messages resulted in 262897 tokens."


@pytest.mark.parametrize(
    "raw",
    [
        {"error": {"message": SAID, "code": 400}},
        json.dumps({"error": {"message": SAID, "type": "Bad Request", "code": 400}}),
        json.dumps({"message": SAID}),
        SAID,
    ],
    ids=["an object", "its text", "flat", "a sentence"],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_an_overflow_behind_a_router_is_one(raw: object, streaming: bool) -> None:
    said = {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw, "provider_name": "Nvidia"}}
    error = failure("openai", status=0 if streaming else 400, body={"error": said}, streaming=streaming)
    assert isinstance(error, ContextOverflowError)
    assert (error.actual, error.limit, error.status) == (262_897, 262_144, 400)
    assert "maximum" not in str(error)


def test_a_code_behind_a_router_is_enough() -> None:
    raw = json.dumps({"error": {"message": "no", "code": "context_length_exceeded"}})
    body = {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw}}}
    error = failure("openai", status=400, body=body)
    assert isinstance(error, ContextOverflowError)
    assert (error.actual, error.limit) == (None, None)


@pytest.mark.parametrize("raw", [None, 3, [], {}, "[" * 100_000, {"error": {"message": ["deep"]}}], ids=range(6))
def test_what_else_a_router_hands_on_does_no_harm(raw: object) -> None:
    body = {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw}}}
    assert type(failure("openai", status=400, body=body)) is RequestRefusedError
    assert type(failure("openai", status=400, body={"error": {"metadata": raw}})) is RequestRefusedError


@pytest.mark.parametrize(
    ("code", "text", "actual", "limit"),
    [
        ("tokens_limit_reached", "Request body too large for gpt-4o model. Max size: 8000 tokens.", None, 8_000),
        ("", "Request body too large for gpt-4o model. Max size: 8000 tokens.", None, 8_000),
        ("invalid_request_error", "prompt is too long: 208656 tokens > 200000 maximum", 208_656, 200_000),
    ],
)
def test_a_body_that_is_too_large_in_tokens_is_an_overflow(
    code: str, text: str, actual: int | None, limit: int
) -> None:
    error = failure("openai", status=413, body={"error": {"code": code, "message": text}})
    assert isinstance(error, ContextOverflowError)
    assert (error.actual, error.limit, error.status) == (actual, limit, 413)


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (429, "rate_limit_exceeded", "Request too large: Limit 30000, Requested 40000. maximum context length"),
        (413, "request_too_large", "prompt is too long"),
        (413, "", "maximum context length"),
        (413, "rate_limit_exceeded", "Request too large for model `x` on tokens per minute: Limit 6000, Requested 7"),
        (400, "", "max_tokens exceeds the limit of 8192"),
        (400, "", "Range of max_tokens should be [1, 8192]"),
        (401, "invalid_api_key", "maximum context length"),
        (503, "", "input is too long"),
        (400, "string_above_max_length", "Invalid 'messages[0].content': string too long. Expected a maximum of 10."),
        (400, "invalid_value", "max_tokens is too large: 100000. This model supports at most 16384 completion tokens"),
        (400, "", "max_completion_tokens is too large: 1298829. This model supports at most 1048576"),
        (400, "", "too many tokens: max tokens must be less than or equal to 4096, the maximum output for this model"),
        (400, "", "max_tokens (9000) exceeds the maximum number of tokens allowed (8192)"),
        (400, "", "Requested max tokens (9000) exceed the limit of 8192"),
        (400, "", "Requested output tokens 9000 exceeds the maximum of 8192 tokens"),
        (400, "", "Request has 300 messages, more than the limit of 256 tokens of a title"),
        (400, "", "Number of images in request 30 exceeds the limit 20"),
        (400, "", "Invalid 'input': string too long. Expected a string with maximum length 1048576, but got 2000000."),
        (400, "", "Invalid 'input': array too long. Expected maximum length 2048, but got an array with length 3000."),
        (
            400,
            "",
            "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes",
        ),
        (400, "", "input image size 6000000 exceeds maximum 5242880 bytes"),
        (400, "", "Request exceeded call rate limit of 6000 tokens per minute, requested 7000"),
        (400, "", "Requested tokens 7000 exceeds the tokens per minute limit 6000"),
        (400, "", "tools.0.description: The maximum context length of a file. Field required"),
        (422, "", "Input validation error: `max_new_tokens` must be <= 512. Given: 1000"),
        (400, "", "max_tokens must be <= 8192, but received 9000"),
        (400, "", "`best_of` must be <= 20, requested: 30"),
        (400, "", "configured limit of 6000 tokens per minute. You have requested 7000"),
        (400, "", "tokens in stop sequences cannot exceed 4 - received 5"),
        (400, "", "total number of max_tokens in the output cannot exceed 4096 - received 5000"),
        (400, "", "Input tokens 7000 exceeds the limit of 6000 tokens per minute"),
        (400, "", "The request exceeds the token limit of 6000 per minute"),
        (400, "", "Requested 9000 tokens exceeds limit of 8000 completion tokens"),
        (400, "", "Prompt length 5000 exceeds maximum length 4000 letters"),
        (400, "", "Prompt exceeds maximum length of 4000 characters"),
        (400, "", "Prompt too long for image generation, maximum 1000 characters"),
        (400, "", "tools.0.input too long: length 70 > 64"),
        (400, "", "current length 300 exceeds the maximum length of 256 for tool name"),
        (400, "", "current length 1,300 exceeds the maximum length of 1,024 for tool name"),
        (400, "", "Prompt length 300,000 exceeds maximum length 256,000 characters"),
        (400, "", "Validation error: 'the maximum context length is 1024 tokens, you requested 5000'"),
    ],
)
def test_what_only_sounds_like_an_overflow_is_none(status: int, code: str, text: str) -> None:
    error = failure("openai", status=status, body={"message": text, "code": code})
    assert not isinstance(error, ContextOverflowError)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, RequestRefusedError),
        (401, AuthenticationError),
        (402, RequestRefusedError),
        (403, AuthenticationError),
        (404, RequestRefusedError),
        (408, ProviderTimeoutError),
        (409, RequestRefusedError),
        (413, RequestRefusedError),
        (422, RequestRefusedError),
        (429, RateLimitError),
        (500, ServerError),
        (502, ServerError),
        (498, ServerError),
        (503, ServerError),
        (504, ProviderTimeoutError),
        (529, ServerError),
    ],
)
def test_the_status_decides(status: int, kind: type[ProviderError]) -> None:
    error = failure("anthropic", status=status)
    assert type(error) is kind
    assert (error.provider, error.status) == ("anthropic", status)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, ServerError),
        ({"error": {"code": "server_is_overloaded", "type": "service_unavailable_error"}}, ServerError),
        ({"type": "error", "code": "server_is_overloaded", "message": "Overloaded"}, ServerError),
        ({"error": {"type": "service_unavailable_error"}}, ServerError),
        ({"error": {"type": "engine_overloaded_error"}}, ServerError),
        ({"error": {"type": "rate_limit_error"}}, RateLimitError),
        ({"code": "insufficient_quota"}, RateLimitError),
        ({"type": "error", "code": "server_error", "message": "m"}, ServerError),
        ({"error": {"type": "authentication_error"}}, AuthenticationError),
        ({"error": {"type": "timeout_error"}}, ProviderTimeoutError),
        ({"error": {"type": "invalid_request_error"}}, RequestRefusedError),
        ({"error": {"code": 502, "message": "upstream"}}, ServerError),
        ({"error": {"code": 429}}, RateLimitError),
        ({"error": {"type": "throttlingException", "message": "Too many requests"}}, RateLimitError),
        ({"error": {"type": "modelTimeoutException"}}, ProviderTimeoutError),
        ({"error": {"type": "modelStreamErrorException"}}, ServerError),
        ({"error": {"type": "validationException", "message": "malformed"}}, RequestRefusedError),
        ({"error": {"message": "something"}}, BrokenStreamError),
        ("not even JSON", BrokenStreamError),
        (None, BrokenStreamError),
    ],
)
def test_in_a_stream_the_code_decides(body: object, kind: type[ProviderError]) -> None:
    assert type(failure("openai", status=200, body=body, streaming=True)) is kind


def test_every_exception_that_bedrock_streams_is_known_and_shown() -> None:
    pytest.importorskip("botocore")
    from anthropic.lib.bedrock._stream_decoder import get_response_stream_shape

    shape: Any = get_response_stream_shape()
    names = [name for name, member in shape.members.items() if member.metadata.get("exception")]
    assert len(names) >= 6
    for name in names:
        error = failure("anthropic", status=200, body={"error": {"type": name}}, streaming=True)
        assert not isinstance(error, BrokenStreamError), name
        assert f"({name})" in str(error)


@pytest.mark.parametrize("code", get_args(ResponseError.model_fields["code"].annotation))
def test_a_failed_response_is_the_same_error_in_a_stream(code: str) -> None:
    body = {"error": {"code": code, "message": "m"}}
    whole, streamed = (failure("openai", body=body, streaming=each) for each in (False, True))
    assert type(streamed) is type(whole)
    assert streamed.code == code


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"code": "model_not_found", "type": "t"}},
        {"code": "model_not_found", "type": "t"},
        [{"error": {"code": "model_not_found", "type": "t"}}],
        '{"error": {"code": "model_not_found", "type": "t"}}',
        b'{"error": {"code": "model_not_found", "type": "t"}}',
    ],
)
def test_the_code_is_found_in_every_shape_of_body(body: object) -> None:
    error = failure("openai", status=404, body=body)
    assert error.code == "model_not_found"
    assert str(error) == "openai: not found (404 model_not_found): check model and base_url"


def test_the_message_holds_nothing_that_the_provider_wrote() -> None:
    secret = "sk-live-abcdef and the patient's name"
    shapes: list[dict[str, Any]] = [
        {"message": secret},
        {"code": secret},
        {"type": secret},
        {"error": secret},
        {"code": "sk-proj-abcdef"},
        {"message": f"prompt is too long: 5 tokens > 4 maximum {secret}"},
    ]
    for status in (0, 200, 400, 401, 429, 500):
        for body in shapes:
            error = failure("openai", status=status, body=body, text=secret, streaming=status == 0)
            assert "sk-" not in repr(error.__reduce__())
            assert "patient" not in repr(error.__reduce__())


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"Retry-After": "Thu, 01 Jan 1970 00:01:40 GMT"}, 40.0),
        ({"Retry-After": "Thu, 01 Jan 1970 00:00:10 GMT"}, 0.0),
        ({"Retry-After": "-1"}, 0.0),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "soon"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_in_all_its_spellings(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(headers, now=60.0) == seconds


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the time zone of the process cannot be changed")
@pytest.mark.parametrize("zone", [" -0000", ""])
def test_a_date_without_a_zone_is_utc_wherever_it_is_read(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "XXX8")
        time.tzset()
        seconds = retry_after_seconds({"Retry-After": f"Thu, 01 Jan 1970 00:01:40{zone}"}, now=60.0)
    time.tzset()
    assert seconds == 40.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Limit 1, Used 1. Please try again in 2m59.56s. Visit https://x.dev", 179.56),
        ("Please try again in 6ms.", 0.006),
        ("Please retry in 34.074824224s.", 34.074824224),
        ("Please retry after 20 seconds.", 20.0),
        ("Try again in 1 hour, 5 minutes and 1 second", 3901.0),
        ("Please wait for 2 Minutes", 120.0),
        ("try again in 1d2h", 93_600.0),
        ("Please try again in a minute", None),
        ("try again in 3 months", None),
        ("Limit: 3 requests per 10s", None),
    ],
)
def test_the_time_to_wait_may_be_told_in_words(text: str, seconds: float | None) -> None:
    assert retry_after_seconds({}, text) == (None if seconds is None else pytest.approx(seconds))
    assert retry_after_seconds({"retry-after": "7"}, text) == 7.0
    said = failure("openai", body={"code": "rate_limit_exceeded", "message": text}, streaming=True)
    assert isinstance(said, RateLimitError)
    assert said.retry_after_seconds == retry_after_seconds({}, text)


def test_a_rate_limit_carries_the_time_to_wait() -> None:
    error = failure("openai", status=429, headers={"Retry-After": "7"})
    assert isinstance(error, RateLimitError)
    assert error.retry_after_seconds == 7.0


class ReadTimeout(Exception): ...


class RemoteProtocolError(Exception): ...


class TimeoutException(Exception): ...


class FromBelow(TimeoutException): ...


for _kind in (ReadTimeout, RemoteProtocolError, TimeoutException, FromBelow):
    _kind.__module__ = "httpx2._exceptions"


class ChecksumMismatch(Exception):
    """Of botocore's reader of binary streams."""

    __module__ = "botocore.eventstream"


@pytest.mark.parametrize(
    ("error", "streaming", "kind"),
    [
        (RemoteProtocolError(), False, ProviderConnectionError),
        (RemoteProtocolError(), True, BrokenStreamError),
        (FromBelow(), False, ProviderTimeoutError),
        (FromBelow(), True, BrokenStreamError),
        (ConnectionResetError(), False, ProviderConnectionError),
        (ConnectionResetError(), True, BrokenStreamError),
        (json.JSONDecodeError("m", "{", 0), False, ServerError),
        (json.JSONDecodeError("m", "{", 0), True, BrokenStreamError),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "m"), True, BrokenStreamError),
        (ChecksumMismatch(), False, ServerError),
        (ChecksumMismatch(), True, BrokenStreamError),
    ],
)
def test_errors_of_the_transport_are_known_by_their_module(
    error: Exception, streaming: bool, kind: type[ProviderError]
) -> None:
    assert type(transport_failure("openai", error, streaming=streaming)) is kind


@pytest.mark.parametrize(
    ("cause", "why"),
    [
        (OSError(24, "Too many open files"), "RemoteProtocolError: Too many open files"),
        (
            ExceptionGroup("two addresses", [OSError(24, "Too many open files")] * 2),
            "RemoteProtocolError: Too many open files",
        ),
        (OSError("a text of its own"), "RemoteProtocolError"),
        (None, "RemoteProtocolError"),
    ],
)
def test_where_no_connection_is_made_what_the_system_said_is_told(cause: Exception | None, why: str) -> None:
    error, between = RemoteProtocolError(), OSError("All connection attempts failed")
    error.__cause__, between.__cause__ = between, cause
    told = f"openai: no connection ({why}): check base_url and the network"
    assert str(transport_failure("openai", error)) == told


def test_causes_that_go_in_a_circle_come_to_an_end() -> None:
    error, between = RemoteProtocolError(), OSError(24, "Too many open files")
    error.__cause__, between.__cause__ = between, error
    told = "openai: no connection (RemoteProtocolError: Too many open files): check base_url and the network"
    assert str(transport_failure("openai", error)) == told


def test_what_the_system_said_is_told_of_a_real_connection() -> None:
    client = OpenAIChatClient("m", base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
    with pytest.raises(ProviderConnectionError, match="ConnectError: Connect call failed"):
        asyncio.run(client.get_response("hi"))


def test_what_the_caller_was_busy_with_is_no_reason_of_a_failed_connection() -> None:
    try:
        raise FileNotFoundError(2, "a file of the caller's")
    except FileNotFoundError:
        with pytest.raises(RemoteProtocolError) as caught:
            raise RemoteProtocolError from OSError("all attempts failed")
    assert "file" not in str(transport_failure("openai", caught.value))


def test_an_error_that_is_not_of_the_transport_is_not_mapped() -> None:
    assert transport_failure("openai", ZeroDivisionError()) is None
    assert transport_failure("openai", TypeError(), streaming=True) is None


@pytest.mark.data
def test_every_recorded_error_is_in_the_tree_and_says_what_to_do() -> None:
    if not DATA.exists():
        pytest.skip("the recorded errors (shared/data) are not beside this checkout")
    with gzip.open(DATA, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    assert len(rows) == 60
    kinds: dict[int, type[ProviderError]] = {
        400: RequestRefusedError,
        401: AuthenticationError,
        404: RequestRefusedError,
        429: RateLimitError,
    }
    for row in rows:
        said = row["response"]["error"]
        error = failure("provider", status=row["status"], body=row["response"])
        assert type(error) is kinds[row["status"]], row
        assert error.status == row["status"]
        code = said.get("code")
        assert error.code == (code if isinstance(code, str) else said.get("type") or str(code)), row
        assert said["message"] not in str(error)
        assert isinstance(pickle.loads(pickle.dumps(error)), ChatStackError)


@pytest.mark.parametrize("code", ["4" * 5000, "²", "٤٢٩", 10**5000, "999999", -5], ids=range(6))
@pytest.mark.parametrize("streaming", [False, True])
def test_a_code_that_only_looks_like_a_status_is_none(code: object, streaming: bool) -> None:
    error = failure("openai", status=200, body={"error": {"code": code, "message": "m"}}, streaming=streaming)
    assert type(error) is (BrokenStreamError if streaming else RequestRefusedError)
    assert error.status == 200


@pytest.mark.parametrize(
    "text",
    [
        f"prompt is too long: {'9' * 5000} tokens > {'9' * 5000} maximum",
        f"This model's maximum context length is {'9' * 5000} tokens.",
        f"request ({'9' * 5000} tokens) exceeds the available context size ({'9' * 5000} tokens)",
    ],
)
def test_an_overflow_by_numbers_that_no_window_has_tells_no_sizes(text: str) -> None:
    error = failure("openai", status=400, body={"error": {"message": text}})
    assert isinstance(error, ContextOverflowError)
    assert (error.actual, error.limit) == (None, None)


def test_fields_with_numbers_that_no_window_has_tell_no_sizes() -> None:
    error = failure("openai", status=400, body={"error": {"n_ctx": 10**4000, "n_prompt_tokens": -1}})
    assert isinstance(error, ContextOverflowError)
    assert (error.actual, error.limit) == (None, None)


def test_a_body_that_nests_too_deeply_says_nothing() -> None:
    assert type(failure("openai", status=400, body="[" * 100_000)) is RequestRefusedError
    deep: object = []
    for _ in range(100_000):
        deep = [deep]
    assert type(failure("openai", status=400, body={"message": deep})) is RequestRefusedError


@pytest.mark.parametrize(
    "code",
    ["sk_live_4eC39HqLyjWD", "SK_live", "pk_test_1", "key_abc", "Bearer", "bearer.x", "x_4eC39HqLyjWDarjtT1zdp7dc"],
)
def test_a_code_that_looks_like_a_key_is_not_shown(code: str) -> None:
    for body in ({"code": code}, {"type": code}):
        error = failure("openai", status=401, body=body)
        assert code not in repr(error.__reduce__())
        assert error.code == ""
