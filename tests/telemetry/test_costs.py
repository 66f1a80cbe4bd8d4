"""What model calls have cost is a metric, at published prices, and is looked up when metrics are collected."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import subprocess
import sys
from decimal import Decimal

import pytest
from msgspec.structs import replace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from chatstack import (
    ChatFronts,
    ChatRequest,
    ChatStack,
    ChatStream,
    ChatUpdate,
    Message,
    ProviderInfo,
    Telemetry,
    Usage,
)
from chatstack.testing import TelemetryCapture
from chatstack.tokens.prices import price_of

USAGE = Usage(10_000, 500, cache_read_tokens=4_000)


class Reports(ChatFronts):
    """A model of that name that has used so much; it may be another one that answers."""

    def __init__(self, model: str, answered: str = "", usage: Usage = USAGE, beside: Usage | None = None) -> None:
        self.info = ProviderInfo(name="openai", model=model)
        self._done = ChatUpdate(
            message_done=Message.assistant("fine"),
            usage=usage,
            overhead_usage=beside,
            model=answered,
            finish_reason="stop",
        )

    async def send(self, request: ChatRequest, /) -> ChatStream:
        async def play() -> object:
            yield self._done

        return await ChatStream.primed(play())  # type: ignore[arg-type]


def ask(capture: TelemetryCapture, *models: Reports) -> None:
    for model in models:
        asyncio.run(ChatStack(model).build(capture.resolve).get_response("hi"))


def cost_of(model: str, usage: Usage = USAGE) -> Decimal:
    price = price_of(model)
    assert price is not None
    cost = price.of_usage(usage)
    assert cost is not None
    return cost


def costs(capture: TelemetryCapture) -> dict[object, float]:
    return {point.labels["gen_ai.request.model"]: point.total for point in capture.metric("chatstack.cost")}


def test_calls_are_added_up_by_model_at_their_prices_before_and_after_the_first_collection() -> None:
    capture = TelemetryCapture()
    ask(capture, Reports("gpt-5-mini"), Reports("gpt-5-mini"), Reports("claude-haiku-4-5"))
    mini, haiku = float(cost_of("gpt-5-mini")), float(cost_of("claude-haiku-4-5"))
    assert costs(capture) == {"gpt-5-mini": pytest.approx(2 * mini), "claude-haiku-4-5": pytest.approx(haiku)}
    ask(capture, Reports("gpt-5-mini"))
    assert costs(capture)["gpt-5-mini"] == pytest.approx(3 * mini)


def test_the_model_that_has_answered_is_paid_and_else_the_one_that_was_asked() -> None:
    capture = TelemetryCapture()
    ask(capture, Reports("alias", "gpt-5-mini"), Reports("gpt-5-mini", "unheard-of"))
    mini = pytest.approx(float(cost_of("gpt-5-mini")))
    assert costs(capture) == {"alias": mini, "gpt-5-mini": mini}


def test_the_price_is_that_of_the_provider_that_serves_the_model() -> None:
    capture, model = TelemetryCapture(), Reports("openai/gpt-oss-120b")
    model.info = replace(model.info, server_address="api.groq.com")
    ask(capture, model)
    served = price_of("openai/gpt-oss-120b", "groq")
    assert served is not None
    assert served != price_of("openai/gpt-oss-120b")
    assert costs(capture) == {"openai/gpt-oss-120b": pytest.approx(float(served.of_usage(USAGE) or 0))}


def test_what_nobody_has_a_price_for_is_not_counted() -> None:
    capture = TelemetryCapture()
    ask(capture, Reports("my-own-model"), Reports("gpt-5-mini", usage=Usage()))
    assert capture.metric("chatstack.cost") == ()


def test_what_the_provider_uses_beside_the_answer_is_on_the_span_and_in_all_totals() -> None:
    """As a server-side compaction does: the answer is one call, the compaction before it another."""
    capture, beside = TelemetryCapture(), Usage(40_000, 3_500)
    ask(capture, Reports("claude-haiku-4-5", beside=beside))
    both = cost_of("claude-haiku-4-5") + cost_of("claude-haiku-4-5", beside)
    assert costs(capture) == {"claude-haiku-4-5": pytest.approx(float(both))}
    tokens = {point.labels["gen_ai.token.type"]: point.total for point in capture.metric("gen_ai.client.token.usage")}
    assert tokens == {"input": 50_000, "output": 4_000}
    (span,) = capture.spans_named("chat claude-haiku-4-5")
    assert span.attributes["gen_ai.usage.input_tokens"] == 10_000
    assert span.attributes["chatstack.overhead.input_tokens"] == 40_000
    assert span.attributes["chatstack.overhead.output_tokens"] == 3_500


def test_stacks_of_one_meter_provider_are_added_up_in_one_series() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    for _ in range(2):
        telemetry = Telemetry(meter_provider=provider)
        asyncio.run(ChatStack(Reports("gpt-5-mini")).build({Telemetry: telemetry}.get).get_response("hi"))
    data = reader.get_metrics_data()
    assert data is not None
    metrics = [each for resource in data.resource_metrics for scope in resource.scope_metrics for each in scope.metrics]
    (cost,) = (each for each in metrics if each.name == "chatstack.cost")
    (point,) = cost.data.data_points
    assert isinstance(point, NumberDataPoint)
    assert point.value == pytest.approx(2 * float(cost_of("gpt-5-mini")))


ONE_PROVIDER = """
import asyncio, itertools, json, os
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from chatstack import ChatStack, Telemetry
from chatstack.tokens.prices import price_of
from tests.telemetry.test_costs import Reports

price_of("gpt-5-mini")  # reads the prices once for all children

def costs_of(order):
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    clients = []
    made = {
        "installed": lambda: metrics.set_meter_provider(provider),
        "global": lambda: clients.append(ChatStack(Reports("gpt-5-mini")).build({Telemetry: Telemetry()}.get)),
        "given": lambda: clients.append(
            ChatStack(Reports("gpt-5-mini")).build({Telemetry: Telemetry(meter_provider=provider)}.get)
        ),
    }
    for what in order:
        made[what]()
    for client in clients * 2:
        asyncio.run(client.get_response("hi"))
    found = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    return [point.value for each in found if each.name == "chatstack.cost" for point in each.data.data_points]

for order in itertools.permutations(("installed", "global", "given")):
    child = os.fork()  # a process has one meter provider, for good
    if not child:
        print(json.dumps([order, costs_of(order)]))
        break
    os.waitpid(child, 0)
"""


@functools.cache
def costs_by_order() -> dict[tuple[str, ...], list[float]]:
    """The costs that a process of its own has added up, for each order of what it makes."""
    command = [sys.executable, "-c", ONE_PROVIDER]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.stderr == ""
    return {tuple(order): found for order, found in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("order", list(itertools.permutations(("installed", "global", "given"))), ids=", ".join)
def test_stacks_of_a_meter_provider_that_is_the_processs_too_are_added_up_in_one_series(order: tuple[str, ...]) -> None:
    assert costs_by_order()[order] == [pytest.approx(4 * float(cost_of("gpt-5-mini")))]


@pytest.mark.slow
def test_no_price_is_looked_up_on_the_loop_of_the_calls() -> None:
    program = (
        "import asyncio, sys\n"
        "from chatstack import ChatStack\n"
        "from chatstack.testing import TelemetryCapture\n"
        "from tests.telemetry.test_costs import Reports, ask\n"
        "capture = TelemetryCapture()\n"
        "ask(capture, Reports('gpt-5-mini'))\n"
        "assert 'genai_prices.data_snapshot' not in sys.modules\n"
        "assert capture.metric('chatstack.cost')[0].total > 0\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
