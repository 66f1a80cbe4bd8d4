"""What would be sent, how it may be edited, and the memory of what has been decided."""
