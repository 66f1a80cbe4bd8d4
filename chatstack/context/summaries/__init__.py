"""Summaries: what goes into one, how it is written, when, and by whom it is found again."""
