"""The recipe: layers around a provider, as data, and the services that they share."""
