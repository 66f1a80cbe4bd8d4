"""The context of a request, the edits that may be made to it, and the memory of decided edits."""
