"""One trace through the gateway, with the spans and warnings that a stack has in process."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from answers import PATHS, WHOLE
from asks import body, history
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from test_fail_open import FORMS, Raising, answer, ask
from upstreams import Seen, Wire, serving, upstream

from chatstack import ChatClient, ChatRequest, ChatStack, ContextWindowGuard, ProgressReporter
from chatstack.providers.wires import read_request
from chatstack.testing import ScriptedClient
from chatstack_gateway import Settings, Upstream
from chatstack_gateway.measuring import Meters

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLERS = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "x=1"}


def guarded(provider: ChatClient) -> ChatStack:
    return ChatStack(provider).use(ContextWindowGuard, max_context_tokens=2_000, prune_on_overflow=True)


def by_name(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_the_callers_trace_goes_on_and_up(form: str, stream: bool, spans: InMemorySpanExporter) -> None:
    with upstream(answer) as api, serving(Settings(Upstream(api.url)), guarded) as gateway:
        ask(gateway.url, form, body(form, history(6), stream=stream), **CALLERS)
        gateway.settled()

    found = by_name(spans)
    server, root, chat = found[f"POST {PATHS[form]}"], found["invoke_agent chat"], found["chat m"]
    assert server.kind is SpanKind.SERVER
    assert server.parent is not None
    assert (f"{server.parent.trace_id:032x}", f"{server.parent.span_id:016x}") == (TRACE, SPAN)
    assert root.parent is not None
    assert root.parent.span_id == server.context.span_id
    handed_on = (api.requests[0].header("traceparent") or "").split("-")
    assert handed_on[1:3] == [TRACE, f"{chat.context.span_id:016x}"]
    assert api.requests[0].header("tracestate") == "x=1"
    assert {f"{span.context.trace_id:032x}" for span in spans.get_finished_spans()} == {TRACE}
    assert (server.attributes or {})["chatstack.gateway.outcome"] == "edited"
    assert (server.attributes or {})["http.response.status_code"] == 200


def test_spans_are_those_of_a_stack_in_process(spans: InMemorySpanExporter) -> None:
    asked = body("chat", history(6))
    with upstream(answer) as api, serving(Settings(Upstream(api.url)), guarded) as gateway:
        ask(gateway.url, "chat", asked)
        gateway.settled()
    there = [span for span in spans.get_finished_spans() if not span.name.startswith("POST")]
    spans.clear()

    request: ChatRequest = read_request("chat", json.loads(asked))
    client = ScriptedClient(["hello"])
    here_stack = (
        ChatStack(client)
        .use(ProgressReporter)
        .use(ContextWindowGuard, max_context_tokens=2_000, prune_on_overflow=True, counter=None)
    )

    async def run() -> None:
        async with here_stack.open() as built:
            await (await built.send(request)).response()

    asyncio.run(run())
    here = spans.get_finished_spans()
    assert [span.name for span in there] == [span.name for span in here]
    for one, other in zip(there, here, strict=True):
        missing = set(other.attributes or {}) - set(one.attributes or {})
        assert not {name for name in missing if "cost" not in name}, one.name


def test_a_request_without_a_trace_begins_one(spans: InMemorySpanExporter) -> None:
    with upstream(answer) as api, serving(Settings(Upstream(api.url))) as gateway:
        for odd in ("", "nonsense", "00-00000000000000000000000000000000-0000000000000000-00"):
            ask(gateway.url, "chat", body("chat", history(1)), traceparent=odd)
        gateway.settled()
    roots = [span for span in spans.get_finished_spans() if span.kind is SpanKind.SERVER]
    assert [span.parent for span in roots] == [None] * 3


def test_telemetry_that_raises_costs_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no telemetry today")

    refusing = SimpleNamespace(start_span=refuse, start_as_current_span=refuse, add=refuse)
    meter = SimpleNamespace(create_counter=lambda *_: refusing, create_observable_gauge=lambda *_: None)
    monkeypatch.setattr("chatstack_gateway.spans.trace.get_tracer", lambda *_, **__: refusing)
    with monkeypatch.context() as patched:
        patched.setattr("chatstack_gateway.measuring.metrics.get_meter", lambda _: meter)
        meters = Meters(lambda: 0)
    monkeypatch.setattr("chatstack_gateway.gateway.Meters", lambda _: meters)
    with upstream(answer) as api, serving(Settings(Upstream(api.url))) as gateway:
        assert ask(gateway.url, "chat", body("chat", history(1))).status_code == 200


def test_failures_are_told_without_text_or_keys(spans: InMemorySpanExporter) -> None:
    async def refuse(seen: Seen, wire: Wire) -> None:
        await wire.whole(b'{"error":{"message":"secret words","code":"sk-12345678901234567890"}}', 500)

    with upstream(refuse) as api, serving(Settings(Upstream(api.url)), guarded) as gateway:
        ask(gateway.url, "chat", body("chat", history(6)), authorization="Bearer sk-12345678901234567890")
        gateway.settled()
    (server,) = [span for span in spans.get_finished_spans() if span.kind is SpanKind.SERVER]
    assert server.status.status_code is StatusCode.ERROR
    text = "".join(span.to_json() for span in spans.get_finished_spans())
    assert "secret words" not in text
    assert "sk-1234" not in text
    assert "please look" not in text


def test_a_layer_that_is_passed_by_is_told_on_the_span(spans: InMemorySpanExporter) -> None:
    def recipe(provider: ChatClient) -> ChatStack:
        return ChatStack(provider).use(Raising, error=lambda: KeyError("secret words"))

    with upstream(answer) as api, serving(Settings(Upstream(api.url)), recipe) as gateway:
        assert ask(gateway.url, "chat", body("chat", history(1))).json() == WHOLE["chat"]
        gateway.settled()
    (server,) = [span for span in spans.get_finished_spans() if span.kind is SpanKind.SERVER]
    assert (server.attributes or {})["chatstack.gateway.outcome"] == "failed open"
    assert "KeyError in test_fail_open.py:" in str((server.attributes or {})["chatstack.gateway.reason"])
    assert "secret words" not in "".join(span.to_json() for span in spans.get_finished_spans())
