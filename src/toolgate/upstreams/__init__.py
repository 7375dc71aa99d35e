"""Send requests to models: the router, wrappers around models, and models over HTTP, local or as peers."""
