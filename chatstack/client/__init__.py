"""The client protocol, its stream and its fronts."""
