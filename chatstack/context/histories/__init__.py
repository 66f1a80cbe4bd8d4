"""Histories: conversations that are recognised when they come again, and what is worked out of them."""
