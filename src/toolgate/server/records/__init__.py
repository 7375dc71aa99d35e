"""What is kept of what clients do: chats, runs of tools and usage, written behind the answers, read, swept and forgotten."""

from toolgate.server.records.records import Records

__all__ = ["Records"]
