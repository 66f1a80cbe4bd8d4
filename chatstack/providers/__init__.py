"""The clients at the bottom of a stack, one package for each provider.

Nothing is imported here: ``from chatstack.providers.openai import OpenAIChatClient`` loads what it needs, and the
provider's SDK is loaded when a client is made.
"""
