"""Strategies: pure functions from a context to a plan, and what they choose by."""
