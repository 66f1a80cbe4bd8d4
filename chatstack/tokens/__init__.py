"""Floor 1: how many tokens something is."""
