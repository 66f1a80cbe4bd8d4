"""The context memory: what was decided for each history, here and in a store that processes share."""
