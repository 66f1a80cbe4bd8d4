"""chatstack in Agent Framework: layers around its agents' model calls, a stack as a client, a client as provider."""

from chatstack_agent_framework.chat_client import ChatStackClient
from chatstack_agent_framework.client import AgentFrameworkClient
from chatstack_agent_framework.middleware import StackMiddleware

__all__ = ["AgentFrameworkClient", "ChatStackClient", "StackMiddleware"]
