"""Translate the Ollama dialect: `/api/chat`, and `/api/generate` with a server codec of its own."""

from toolgate.dialects.dialect import Dialect
from toolgate.dialects.ollama import generate, server, upstream
from toolgate.dialects.ollama.shared_codec import NAME

DIALECT = Dialect(NAME, server, upstream, "ndjson")
GENERATE = Dialect(NAME, generate, upstream, "ndjson")
