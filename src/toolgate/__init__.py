"""Toolgate: one server between LLM clients and LLMs that makes tool calling work everywhere."""

__version__ = "0.1.0"
