"""Floor 3: the iterative loop, and the workspace that it keeps its state in."""
