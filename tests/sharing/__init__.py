"""Processes that share a store, under load and while something is wrong with it."""
