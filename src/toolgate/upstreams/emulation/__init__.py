"""How a model that only writes text is made to call tools: what it is asked, and how its answer is heard."""
