"""Floor 0: the immutable values that go through a stack."""
