"""Bytes to requests and back: what is below the application, and must not know what it does."""
