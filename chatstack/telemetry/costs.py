"""Costs of model calls as a metric, if the extra ``prices`` is installed and has a price for the model."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from decimal import Decimal
from weakref import WeakKeyDictionary

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from chatstack import semconv
from chatstack.forks import renewed_in_child
from chatstack.telemetry.spans import Value
from chatstack.tokens.prices import dollars_for, price_of
from chatstack.tokens.published import provider_at
from chatstack.values.responses import Usage

_log = logging.getLogger(__name__)
_MOST_WAITING = 10_000
"""Maximum number of calls that wait for the first export; of more, the oldest are not counted."""


class Costs:
    """Adds up dollars by the attributes of calls, and reports the sums when metrics are collected.

    The first price loads tables, which takes a second. So calls wait until metrics are collected for the first time: an
    exporter does that in its own thread, off the event loop of the calls.
    """

    def __init__(self, provider: metrics.MeterProvider) -> None:
        self._waiting: deque[tuple[tuple[str, ...], str, Usage, Mapping[str, Value]]] = deque(maxlen=_MOST_WAITING)
        self._sums: dict[tuple[tuple[str, Value], ...], Decimal] = {}
        self._is_loaded = False
        self._lock = threading.Lock()
        name, unit = semconv.COST_METRIC
        try:
            meter = metrics.get_meter(semconv.SCOPE, meter_provider=provider)
            meter.create_observable_counter(name, [self._observe], unit=unit)
        except Exception:  # noqa: BLE001 - the user's meter provider may raise anything; a call is under way
            _log.exception("costs are not reported: the meter provider raised")
        renewed_in_child(self)

    def after_fork(self) -> None:
        """Make a new lock in a forked child, where no thread holds the old one."""
        self._lock = threading.Lock()

    def add(self, models: tuple[str, ...], tier: str, usage: Usage, labels: Mapping[str, Value]) -> None:
        """Add a call, at the price of the first of those models that has one, in the service tier that served it."""
        if self._is_loaded:
            self._count(models, tier, usage, labels)
        else:
            self._waiting.append((models, tier, usage, labels))

    def _observe(self, options: CallbackOptions) -> Iterable[Observation]:
        while self._waiting:
            try:
                call = self._waiting.popleft()
            except IndexError:  # another reader has taken it
                break
            self._count(*call)
            self._is_loaded = True
        with self._lock:
            return [Observation(float(dollars), dict(labels)) for labels, dollars in self._sums.items()]

    def _count(self, models: tuple[str, ...], tier: str, usage: Usage, labels: Mapping[str, Value]) -> None:
        provider = provider_at(str(labels.get(semconv.SERVER_ADDRESS, "")))
        prices = (price_of(model, provider, tier) for model in models if model)
        costs = (dollars_for(usage, price) for price in prices if price is not None)
        dollars = next((cost for cost in costs if cost is not None), None)
        if dollars is not None:
            key = tuple(sorted(labels.items()))
            with self._lock:
                self._sums[key] = self._sums.get(key, Decimal(0)) + dollars


_by_provider: WeakKeyDictionary[metrics.MeterProvider, Costs] = WeakKeyDictionary()
_making = threading.Lock()


def costs_of(provider: metrics.MeterProvider) -> Costs:
    """Return the sum for a provider. One each, because an observed sum must have one observer: a second one of the same
    name would not be asked."""
    with _making:
        found = _by_provider.get(provider)
        if found is None:
            found = _by_provider[provider] = Costs(provider)
        return found
