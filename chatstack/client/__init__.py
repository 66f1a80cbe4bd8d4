"""Floor 1: the client protocol, its stream and fronts, and the stack that puts layers around a provider."""
