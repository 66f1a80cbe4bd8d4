"""``chatstack demo``, a travel assistant that outgrows its context window while you look on.

It runs against a small rule-based stand-in for a model, so it needs neither a key nor a network.
"""
