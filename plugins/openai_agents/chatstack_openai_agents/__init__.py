"""chatstack in the OpenAI Agents SDK: a stack as a model or a model provider, and a model of theirs as a provider."""

from chatstack_openai_agents.client import AgentsModelClient
from chatstack_openai_agents.model import StackModel
from chatstack_openai_agents.provider import StackModelProvider

__all__ = ["AgentsModelClient", "StackModel", "StackModelProvider"]
