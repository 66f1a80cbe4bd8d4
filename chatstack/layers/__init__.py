"""Floor 3: the layers, one file each."""
