"""Shapes: tool results made shorter by what they are, and references to those that are sent already."""
