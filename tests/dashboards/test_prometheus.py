"""The dashboard and the alerts ask for what is really exported: a real Prometheus scrapes it, and is asked."""

from __future__ import annotations

import asyncio
import math
import re
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, start_http_server

from chatstack import semconv
from chatstack.telemetry.emission import Telemetry
from chatstack.tokens.prices import price_of
from tests.dashboards.prometheus_server import Labels, PrometheusServer, prometheus_server
from tests.dashboards.scenario import FAILED_TURNS, MODEL, TURNS, WARNINGS, failed_turn, run_a_little_of_everything
from tests.dashboards.shipped import ALERTS, QUERIES, README, RULES, Query, dashboard

pytestmark = pytest.mark.server

JOB = "travel"
_SELECTOR = re.compile(r"\b(?:code:)?(?:chatstack|gen_ai)_[\w:]+(?:\{[^}]*\})?")


def grouped_by(expression: str) -> set[str]:
    """The labels that an expression keeps."""
    kept = ", ".join(re.findall(r"\bby \(([^)]*)\)", expression))
    return set(re.findall(r"\w+", kept)) - {"le"}


def selectors(expression: str) -> set[str]:
    """What an expression reads: metrics, with their conditions; the names of labels are left out."""
    return set(_SELECTOR.findall(re.sub(r"\bby \([^)]*\)", "", expression)))


@contextmanager
def exported() -> Generator[tuple[Telemetry, str]]:
    """A telemetry whose metrics are served by the SDK's exporter for Prometheus, as it comes; with host and port."""
    registry = CollectorRegistry()
    meters = MeterProvider([PrometheusMetricReader(registry=registry)], shutdown_on_exit=False)
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        yield Telemetry(meter_provider=meters), f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        meters.shutdown()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """One that has seen the scenario twice, with a scrape in between: only then has a counter increased."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (apt-get install prometheus)")
    folder = tmp_path_factory.mktemp("prometheus")
    with exported() as (telemetry, address):
        asyncio.run(run_a_little_of_everything(telemetry))  # before anybody looks: so all series begin together
        with prometheus_server(folder, scrapes=address, rules=ALERTS, job=JOB) as server:
            server.wait_until(lambda: turns_seen(server) == TURNS)
            asyncio.run(run_a_little_of_everything(telemetry))
            server.wait_until(lambda: turns_seen(server) == 2 * TURNS)
            yield server


def turns_seen(server: PrometheusServer) -> float:
    return sum(value for _, value in server.query("gen_ai_invoke_agent_duration_seconds_count"))


def asked(server: PrometheusServer, expression: str) -> list[tuple[Labels, float]]:
    """The series that an expression gives, if all that it reads is there, and it keeps labels that exist."""
    for selector in selectors(expression):
        assert server.query(selector), f"nothing is exported as {selector}"
    found = server.query(expression)
    assert any(value > 0 for _, value in found)
    for labels, value in found:
        assert not math.isnan(value), labels
        assert grouped_by(expression) <= labels.keys()
    return found


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: f"{query.panel} {query.legend}".strip())
def test_a_panel_finds_what_is_exported(query: Query, prometheus: PrometheusServer) -> None:
    for labels, _ in asked(prometheus, query.expression):
        assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) == labels.keys()


def test_the_figures_at_the_top_are_those_of_the_scenario(prometheus: PrometheusServer) -> None:
    def figure(title: str) -> float:
        ((_, value),) = [
            found for query in QUERIES if query.panel == title for found in prometheus.query(query.expression)
        ]
        return value

    assert figure("Warnings") == 2 * WARNINGS
    assert figure("Turns that failed") == pytest.approx(FAILED_TURNS / TURNS)
    assert figure("Requests that filled more than 90 % of the window") == pytest.approx(4 / 5)
    assert figure("Money") == pytest.approx(costs(prometheus), rel=0.01)


def costs(server: PrometheusServer) -> float:
    """Tokens in and out at the price of the model: nothing is cached."""
    price = price_of(MODEL)
    assert price is not None
    assert price.output is not None
    tokens = {
        labels["gen_ai_token_type"]: value
        for labels, value in server.query(f'gen_ai_client_token_usage_sum{{gen_ai_response_model="{MODEL}"}}')
    }
    dollars = Decimal(tokens["input"]) * price.input.base + Decimal(tokens["output"]) * price.output.base
    return float(dollars / 1_000_000)


def test_the_first_event_of_a_series_counts(tmp_path: Path) -> None:
    """A process that begins with a failed turn, of which there has been none."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (apt-get install prometheus)")
    with (
        exported() as (telemetry, address),
        prometheus_server(tmp_path, scrapes=address, rules=ALERTS, job=JOB) as server,
    ):
        telemetry.instruments.agent_duration.record(1.0, {semconv.AGENT_NAME: "chat"})
        server.wait_until(lambda: turns_seen(server) == 1)
        asyncio.run(failed_turn(telemetry))
        server.wait_until(lambda: turns_seen(server) == 2)
        found = {
            query.panel: value
            for query in QUERIES
            if "failed" in query.panel.lower()
            for _, value in server.query(query.expression)
        }
    assert found["Turns that failed"] == pytest.approx(1 / 2)
    assert found["Model calls that failed"] == pytest.approx(1)
    assert found["Failed turns and model calls per minute, by error"] == pytest.approx(1 / 10)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert", "recorded"))
def test_an_alert_holds_while_what_it_is_about_goes_on(rule: Any, prometheus: PrometheusServer) -> None:
    asked(prometheus, rule["expr"])


def test_prometheus_itself_takes_every_rule_and_finds_every_alert_pending(prometheus: PrometheusServer) -> None:
    def waiting() -> set[str]:
        return {rule["name"] for rule in prometheus.rules() if rule.get("state") in ("pending", "firing")}

    prometheus.wait_until(lambda: waiting() == {rule["alert"] for rule in RULES if "alert" in rule})
    assert {rule["health"] for rule in prometheus.rules()} == {"ok"}


def test_the_jobs_can_be_chosen(prometheus: PrometheusServer) -> None:
    _, variable = dashboard()["templating"]["list"]
    parts = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
    assert parts is not None
    metric, label = parts.groups()
    assert prometheus.values_of(label, metric) == [JOB]


def test_the_readme_names_every_metric_as_prometheus_does(prometheus: PrometheusServer) -> None:
    series = prometheus.query('{__name__=~"(chatstack|gen_ai)_.+"}')
    names = {re.sub("_(bucket|count|sum)$", "", labels["__name__"]) for labels, _ in series}
    table = re.findall(r"^\| \S+ \| `(\w+)` \|", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(table) == names


def test_the_readme_tells_names_that_there_are() -> None:
    known = {value if isinstance(value, str) else value[0] for name, value in vars(semconv).items() if name.isupper()}
    said = re.findall(
        r"\b(?:chatstack|gen_ai|langfuse|openinference)\.[a-z_.]*[a-z]", README.read_text(encoding="utf-8")
    )
    assert set(said) - known == set()
    assert said
