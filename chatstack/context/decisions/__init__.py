"""Decisions: edits are replayed, planned, checked, carried out, and bound to the answers given under them."""
