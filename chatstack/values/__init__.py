"""The immutable values that go through a stack."""
