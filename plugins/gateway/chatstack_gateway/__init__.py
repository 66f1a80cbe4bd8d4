"""A gateway in front of any app that speaks to OpenAI's or Anthropic's API: it watches first, then helps.

    chatstack serve --observe https://api.openai.com
    chatstack serve pipeline.toml --port 8080

``make_app`` gives the ASGI application, for a server of one's own.
"""

from __future__ import annotations

from chatstack_gateway.app import make_app
from chatstack_gateway.settings import Limits, Settings, Upstream

__all__ = ["Limits", "Settings", "Upstream", "make_app"]
