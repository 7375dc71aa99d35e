"""Where models are asked: the HTTP transport, the router and the wrappers around it."""
