"""The SDKs' own tests, with a stack around the clients that they make: ``python -m tests.sdk_suites``."""
