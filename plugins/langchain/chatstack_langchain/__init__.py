"""chatstack in agents of LangChain: layers around their model calls, a stack as a model, a model as a provider."""

from chatstack_langchain.client import LangChainClient
from chatstack_langchain.middleware import StackMiddleware
from chatstack_langchain.model import ChatStackModel

__all__ = ["ChatStackModel", "LangChainClient", "StackMiddleware"]
