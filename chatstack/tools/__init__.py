"""Floor 3: tools, and the loop that runs them."""
