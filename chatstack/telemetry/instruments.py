"""The instruments of metrics, made once for the process and for each provider that a ``Telemetry`` is given."""

from __future__ import annotations

import functools
import logging
from typing import Protocol

from opentelemetry import metrics
from opentelemetry.util.types import Attributes

from chatstack import semconv
from chatstack.telemetry.costs import Costs, costs_of
from chatstack.telemetry.providers import global_meter_provider

_log = logging.getLogger(__name__)


class _Tell(Protocol):
    def __call__(self, amount: int | float, attributes: Attributes) -> None: ...


class Instrument:
    """A histogram or a counter, which ``tell`` adds to. If that raises, it is logged: the call must not fail for it."""

    __slots__ = ("_tell",)

    def __init__(self, tell: _Tell) -> None:
        self._tell = tell

    def record(self, amount: int | float, attributes: Attributes = None, *, error: str = "") -> None:
        """Record or add an amount; ``error`` is the type of the failure that ended what it is of. Never raises."""
        if error:
            attributes = {**(attributes or {}), semconv.ERROR_TYPE: error}
        try:
            self._tell(amount, attributes)
        except Exception:  # noqa: BLE001 - the user's meter provider may raise anything
            _log.exception("a measurement is lost: the meter provider raised")

    add = record


class Instruments:
    """Histograms and counters; their names, units and boundaries are in ``semconv``. A metric of a new layer is one
    more line here."""

    def __init__(self, meter: metrics.Meter, meter_provider: metrics.MeterProvider | None) -> None:
        def histogram(name: str, unit: str, boundaries: tuple[float, ...]) -> Instrument:
            made = meter.create_histogram(name, unit, explicit_bucket_boundaries_advisory=boundaries)
            return Instrument(made.record)

        def counter(name: str, unit: str) -> Instrument:
            return Instrument(meter.create_counter(name, unit).add)

        self.chat_duration = histogram(*semconv.CHAT_DURATION)
        self.chat_first_chunk = histogram(*semconv.CHAT_FIRST_CHUNK)
        self.chat_next_chunk = histogram(*semconv.CHAT_NEXT_CHUNK)
        self.chat_tokens = histogram(*semconv.CHAT_TOKENS)
        self.tool_duration = histogram(*semconv.TOOL_DURATION)
        self.agent_duration = histogram(*semconv.AGENT_DURATION)
        self.workflow_duration = histogram(*semconv.WORKFLOW_DURATION)
        self.utilization = histogram(*semconv.UTILIZATION)
        self.warnings = counter(*semconv.WARNING_METRIC)
        self.edits = counter(*semconv.EDIT_METRIC)
        self.tokens_removed = counter(*semconv.TOKENS_REMOVED_METRIC)
        self.prepared = counter(*semconv.PREPARED_METRIC)
        self.cache_tokens = counter(*semconv.CACHE_TOKENS_METRIC)
        self.evicted = counter(*semconv.EVICTED_METRIC)
        self._meter_provider = meter_provider

    @property
    def costs(self) -> Costs:
        """The sum that this call adds to. It is looked up late: the provider given to one stack may become the
        process's, which others use."""
        return costs_of(self._meter_provider or global_meter_provider())


def instruments_of(provider: metrics.MeterProvider | None) -> Instruments:
    """Return the instruments of a provider, None for the process's one.

    Those of the process are made once: OpenTelemetry's proxy, which stands for a provider until one is configured,
    never drops a meter, so an application that makes a stack for each request would leak them.
    """
    if provider is None:
        return _of_process(metrics.get_meter_provider())
    return Instruments(metrics.get_meter(semconv.SCOPE, meter_provider=provider), provider)


@functools.lru_cache(maxsize=1)
def _of_process(provider: metrics.MeterProvider) -> Instruments:
    return Instruments(metrics.get_meter(semconv.SCOPE, meter_provider=provider), None)
