"""Hold the name of the caller for whom the running task works, for queues in layers that do not know callers.

It is a context variable and not an argument, because a database connection is awaited below some hundred functions that
have no other use for the caller. Nothing but the order of waiting may depend on it.
"""

from contextvars import ContextVar

# The name of the key; empty for the server's own work.
CALLER: ContextVar[str] = ContextVar("caller", default="")
