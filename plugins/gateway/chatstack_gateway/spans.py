"""The span of each request at the gateway, within the caller's trace."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry import context as otel
from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from chatstack.telemetry.spans import end_span, start_span
from chatstack_gateway.exchange import Exchange
from chatstack_gateway.headers import Headers, as_mapping

SCOPE = "chatstack.gateway"
OUTCOME = "chatstack.gateway.outcome"
REASON = "chatstack.gateway.reason"
CHANGED = "chatstack.gateway.answer_changed"


@dataclass(slots=True)
class ServerSpan:
    """The span of one request, while it is current."""

    span: Span

    def tell(self, status: int, exchange: Exchange | None) -> None:
        """Record how the request was answered, and what became of it on the way."""
        if not self.span.is_recording():
            return
        self.span.set_attribute("http.response.status_code", status)
        if exchange is not None:
            self.span.set_attribute(OUTCOME, exchange.outcome)
            if exchange.answer_changed:
                self.span.set_attribute(CHANGED, True)
            if exchange.reason:
                self.span.set_attribute(REASON, exchange.reason)
        if status >= 500:
            self.span.set_attribute("error.type", str(status))
            self.span.set_status(Status(StatusCode.ERROR))


@contextmanager
def server_span(method: str, path: str, route: str, headers: Headers) -> Generator[ServerSpan]:
    """Open the span of a request, as a child of the caller's, and make it current. Attributes are those of HTTP servers
    in OpenTelemetry's conventions; no header but the trace's is read."""
    tracer = trace.get_tracer(SCOPE)
    attributes = {"http.request.method": method, "url.path": path, "http.route": route, "url.scheme": "http"}
    token = otel.attach(_callers(headers))
    span, failure = start_span(tracer, f"{method} {route}", attributes, kind=SpanKind.SERVER), None
    try:
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield ServerSpan(span)
    except BaseException as error:
        failure = error
        raise
    finally:
        end_span(span, failure)
        otel.detach(token)


def _callers(headers: Headers) -> otel.Context:
    """Return the context of the caller's trace; what cannot be read is no trace."""
    try:
        return propagate.extract(as_mapping(headers))
    except Exception:  # noqa: BLE001 - a propagator of somebody else's; the request is worth more than its trace
        return otel.get_current()
