"""Where recordings are read from, and in what form."""
