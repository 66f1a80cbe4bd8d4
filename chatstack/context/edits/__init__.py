"""Edits: what a plan may do, to which units of a context, and what it has to keep."""
