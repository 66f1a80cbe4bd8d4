"""Telemetry: each fact is emitted once, as a span, a log record, a metric and a progress event."""
