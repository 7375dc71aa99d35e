"""Run models and tools, and define the ports through which the engine uses the rest of the server."""
