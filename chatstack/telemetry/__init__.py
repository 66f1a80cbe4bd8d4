"""Each fact said once, seen as a span, a log record, a metric and a progress event."""
