"""Anthropic's Messages API on the official SDK."""

from chatstack.providers.anthropic.messages import AnthropicChatClient

__all__ = ["AnthropicChatClient"]
