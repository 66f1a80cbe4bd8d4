"""OpenAI on the official SDK: chat completions, which many servers speak, and Responses."""

from chatstack.providers.openai.chat import OpenAIChatClient
from chatstack.providers.openai.responses import OpenAIResponsesClient

__all__ = ["OpenAIChatClient", "OpenAIResponsesClient"]
