"""The process's OpenTelemetry providers, looked up cheaply.

While nothing is configured, the API reads the environment on every look-up, which costs more than the rest of a silent
layer. The place where it keeps the configured provider is not public: if that is gone, the API is called.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from opentelemetry import metrics, trace

from chatstack.errors import WiringError

T = TypeVar("T")

_ASKED_FOR = object()


def unless_proxy(provider: T | None) -> T | None:
    """Return the provider; None for the API's proxy, which stands for the process's one, whenever that comes."""
    kind = type(provider)
    return None if _is_of_the_api(kind.__module__) and "Proxy" in kind.__name__ else provider


def own_provider(parameter: str, given: T | None, gives: str) -> T | None:
    """Return a ``Telemetry``'s own provider, None for the process's one. Raises ``WiringError`` for what has no method
    of that name."""
    if given is not None and (isinstance(given, type) or not callable(getattr(given, gives, None))):
        told = f"must be a provider of OpenTelemetry's, with {gives}(), or None"
        raise WiringError(f"Telemetry: {parameter}={given!r} {told}", parameter=parameter)
    return unless_proxy(given)


def does_nothing(provider: object) -> bool:
    """Return True for one of the API's own no-op stand-ins."""
    return _is_of_the_api(type(provider).__module__)


@functools.lru_cache(maxsize=64)
def _is_of_the_api(module: str) -> bool:
    return module.startswith(("opentelemetry.trace", "opentelemetry.metrics", "opentelemetry._logs"))


def _looking_up(module: ModuleType, name: str, variable: str, ask: Callable[[], T], stand_in: T) -> Callable[[], T]:
    """Return a look-up of a provider: where the API keeps it, or the API itself if the environment names one or that
    place is gone."""
    if variable in os.environ or not hasattr(module, name):
        return ask

    def look_up() -> T:
        found: Any = getattr(module, name, _ASKED_FOR)
        return ask() if found is _ASKED_FOR else stand_in if found is None else found

    return look_up


global_tracer_provider: Callable[[], trace.TracerProvider] = _looking_up(
    trace, "_TRACER_PROVIDER", "OTEL_PYTHON_TRACER_PROVIDER", trace.get_tracer_provider, trace.ProxyTracerProvider()
)
global_meter_provider: Callable[[], metrics.MeterProvider] = _looking_up(
    sys.modules.get("opentelemetry.metrics._internal", metrics),
    "_METER_PROVIDER",
    "OTEL_PYTHON_METER_PROVIDER",
    metrics.get_meter_provider,
    metrics.NoOpMeterProvider(),
)
