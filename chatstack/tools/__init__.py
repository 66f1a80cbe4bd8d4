"""Tools, and the loop that runs them."""
