"""chatstack in a graph of 10xgraph: messages converted without loss, a chat node, and services from its container."""

from chatstack_tenxgraph.chat_node import GraphChatNode
from chatstack_tenxgraph.injection import injected
from chatstack_tenxgraph.messages import from_tenxgraph, to_tenxgraph

__all__ = ["GraphChatNode", "from_tenxgraph", "injected", "to_tenxgraph"]
