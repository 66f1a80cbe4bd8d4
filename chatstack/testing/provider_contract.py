"""The contract that every provider keeps, as a suite to subclass.

The client under test asks a scripted server on 127.0.0.1, over real HTTP. Its author writes how the client is made, and
how that server says three things in the form of the API: an answer, a refusal, and a failure in the middle of a stream.
What the client sends is not to be described: the contract looks for what it asked in the bytes that arrive.

For a made-up API that answers ``{"says": ..., "uses": [...], "end": ..., "tokens": {...}}``, or streams the same fields
bit by bit, this is all::

    from chatstack.testing import ProviderContract
    from chatstack.testing.provider_contract import ServerReply, event_bytes

    STATUS = {"authentication": 401, "rate_limit": 429, "overflow": 413, "bad_request": 400, "server": 503}

    class TestParleyClient(ProviderContract):
        def make(self, settings):
            return ParleyClient(
                settings.model,
                base_url=settings.base_url,
                api_key=settings.api_key,
                timeout_seconds=settings.timeout_seconds,
                window_tokens=settings.window_tokens,
            )

        def answer(self, said, *, stream):
            usage = said.usage
            uses = [{"id": call.id, "tool": call.name, "with": call.arguments} for call in said.calls]
            tokens = {"in": usage.input_tokens, "out": usage.output_tokens, "cached": usage.cache_read_tokens}
            end = {"end": said.finish_reason, "tokens": tokens}
            if said.unknown:
                end["later_field"] = said.unknown
            if not stream:
                return ServerReply.json({"says": said.text, "uses": uses, **end})
            half = len(said.text) // 2
            pieces = [{"says": said.text[:half]}, {"says": said.text[half:]}, *({"uses": [use]} for use in uses)]
            return ServerReply.events(*pieces, end)

        def refusal(self, said):
            body = {"error": said.message, "tokens": said.actual_tokens, "most": said.limit_tokens}
            seconds = said.retry_after_seconds
            headers = {} if seconds is None else {"retry-after": f"{seconds:g}"}
            return ServerReply.json(body, status=STATUS[said.kind], headers=headers)

        def failure_in_stream(self):
            return event_bytes({"error": "we are down"})

A stream of JSON lines is ``ServerReply.lines(*values)``, and ``line_bytes(value)`` is one of them.

A client is told what to do by what fails: each check is a promise, in the first line of its docstring.
"""

from __future__ import annotations

from chatstack.testing.provider_answers import AnswerContract
from chatstack.testing.provider_exchanges import ModelAnswer, ProviderSettings, ServerRefusal
from chatstack.testing.provider_failures import FailureContract
from chatstack.testing.provider_requests import RequestContract
from chatstack.testing.provider_server import ServerReply, event_bytes, line_bytes

__all__ = [
    "ModelAnswer",
    "ProviderContract",
    "ProviderSettings",
    "ServerRefusal",
    "ServerReply",
    "event_bytes",
    "line_bytes",
]


class ProviderContract(AnswerContract, RequestContract, FailureContract):
    """Promises of every provider. Subclass it as ``Test...``, write ``make``, ``answer`` and ``refusal``, run pytest.

    The checks: an answer is the same streamed and not, arrives while it is made, whole, and once; calls keep ids and
    arguments; usage and finish reason are reported; history, tools, instructions and every option arrive, as the same
    bytes each time, or are refused by name; content unknown to the client goes back as it came; every refusal is the
    matching error, raised by ``send``; a stream that is cut is no short answer; cancelled and closed calls release
    their connections; neither key nor prompt is in an error or a repr.

    Class attributes declare what an API does not have: ``usage`` are the tokens that it reports, ``finish_reasons`` and
    ``refusals`` those that it knows, ``overflow_sizes`` the sizes that it tells with an overflow (of ``actual`` and
    ``limit``), ``has_call_ids = False`` says that calls have none, ``has_parallel_calls = False`` that a
    message has one call at most, ``has_late_system = False`` that no system message can stand behind the first turn, in
    whatever form; the contract's history does without them then. ``keeps_unknown = False`` says that
    nothing may be sent back to it that it has not announced. ``left_out`` names options that the client does not send
    and whose documentation says so. ``failure_in_stream`` may be left out, and so may
    ``without_marks``, unless the client sets marks for the prompt cache. ``patience_seconds`` is how long a check
    waits for what should happen at once. Every check is a plain method that raises ``AssertionError``.
    """
