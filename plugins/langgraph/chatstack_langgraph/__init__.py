"""chatstack in a graph of LangGraph: messages converted without loss, and a node that asks a chatstack client."""

from chatstack_langgraph.chat_node import GraphChatNode
from chatstack_langgraph.messages import from_langchain, to_langchain

__all__ = ["GraphChatNode", "from_langchain", "to_langchain"]
