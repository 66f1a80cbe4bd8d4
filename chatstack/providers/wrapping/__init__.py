"""Wrapping of an SDK's own client: a stack around the calls that it makes. ``wrap`` is in ``wrapping.sdk_clients``."""
