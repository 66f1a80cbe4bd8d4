"""The iterative loop, and the workspace that it keeps its state in."""
