"""Gemini as a provider of chatstack, over Google's official SDK (google-genai)."""

from chatstack_gemini.client import GeminiChatClient

__all__ = ["GeminiChatClient"]
