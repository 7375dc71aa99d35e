"""Ollama: `/api/chat`, and `/api/generate` as a second server half over the same upstream half."""

from toolgate.dialects.dialect import Dialect
from toolgate.dialects.ollama import generate, server, upstream
from toolgate.dialects.ollama.words import NAME

DIALECT = Dialect(NAME, server, upstream, "ndjson")
GENERATE = Dialect(NAME, generate, upstream, "ndjson")
