"""Whose work the running task does, for queues that lie below everything that knows callers.

A context variable and not an argument: a connection of the database is waited for below some hundred calls that have no
other use for the caller. Nothing but the order of waiting may depend on it.
"""

from contextvars import ContextVar

CALLER: ContextVar[str] = ContextVar("caller", default="")
"""The name of the key; empty for the server's own work."""
