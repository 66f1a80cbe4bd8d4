"""How many tokens something is."""
