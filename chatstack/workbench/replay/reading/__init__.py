"""Readers of recordings: sources and forms."""
