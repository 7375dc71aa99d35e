"""Authenticate callers by their keys, and end the requests of keys that are no longer valid."""
