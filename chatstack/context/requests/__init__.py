"""Requests: opened for context layers, with what only I/O can answer, what is said, and what is reported."""
