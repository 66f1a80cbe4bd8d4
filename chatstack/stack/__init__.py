"""The recipe of a stack: layers around a provider, as data, and the services that they share."""
