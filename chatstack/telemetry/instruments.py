"""The instruments of metrics, made once for each ``Telemetry``."""

from __future__ import annotations

from opentelemetry import metrics

from chatstack import semconv
from chatstack.telemetry.costs import Costs, costs_of
from chatstack.telemetry.providers import global_meter_provider


class Instruments:
    """Histograms and counters; their names, units and boundaries are in ``semconv``. A metric of a new layer is one
    more line here."""

    def __init__(self, meter: metrics.Meter, meter_provider: metrics.MeterProvider | None) -> None:
        def histogram(name: str, unit: str, boundaries: tuple[float, ...]) -> metrics.Histogram:
            return meter.create_histogram(name, unit, explicit_bucket_boundaries_advisory=boundaries)

        self.chat_duration = histogram(*semconv.CHAT_DURATION)
        self.chat_first_chunk = histogram(*semconv.CHAT_FIRST_CHUNK)
        self.chat_next_chunk = histogram(*semconv.CHAT_NEXT_CHUNK)
        self.chat_tokens = histogram(*semconv.CHAT_TOKENS)
        self.tool_duration = histogram(*semconv.TOOL_DURATION)
        self.agent_duration = histogram(*semconv.AGENT_DURATION)
        self.workflow_duration = histogram(*semconv.WORKFLOW_DURATION)
        self.utilization = histogram(*semconv.UTILIZATION)
        self.warnings = meter.create_counter(*semconv.WARNING_METRIC)
        self.edits = meter.create_counter(*semconv.EDIT_METRIC)
        self.tokens_removed = meter.create_counter(*semconv.TOKENS_REMOVED_METRIC)
        self.prepared = meter.create_counter(*semconv.PREPARED_METRIC)
        self.cache_tokens = meter.create_counter(*semconv.CACHE_TOKENS_METRIC)
        self.evicted = meter.create_counter(*semconv.EVICTED_METRIC)
        self._meter_provider = meter_provider

    @property
    def costs(self) -> Costs:
        """The sum that this call adds to. It is looked up late: the provider given to one stack may become the
        process's, which others use."""
        return costs_of(self._meter_provider or global_meter_provider())
