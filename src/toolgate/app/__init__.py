"""The composition root: builds a server from its configuration, alone or as one of several workers."""
