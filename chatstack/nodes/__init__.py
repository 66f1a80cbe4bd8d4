"""For the nodes of a graph: states, the managers that trim them, and the node that asks a model."""
