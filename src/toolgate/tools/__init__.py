"""Tools: what a definition must be, wherever it comes from."""
