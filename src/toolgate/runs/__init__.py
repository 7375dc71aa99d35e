"""Runs that survive their process: the loop of `toolgate.engine` inside a durable-execution engine.

Knows the engine's ports, the rows of runs and DBOS. It must not know HTTP, dialects or what a request looks like.
"""
