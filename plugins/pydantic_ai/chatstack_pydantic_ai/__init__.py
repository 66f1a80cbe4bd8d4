"""chatstack in agents of Pydantic AI: layers before their models, a stack as a model, a model as a provider."""

from chatstack_pydantic_ai.client import PydanticAIClient
from chatstack_pydantic_ai.model import ChatStackModel
from chatstack_pydantic_ai.wrapper import StackedModel

__all__ = ["ChatStackModel", "PydanticAIClient", "StackedModel"]
