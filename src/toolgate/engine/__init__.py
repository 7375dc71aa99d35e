"""Runs: asking a model, and the ports through which the engine sees the rest of the world."""
