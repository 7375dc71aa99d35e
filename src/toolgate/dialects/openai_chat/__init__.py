"""OpenAI Chat Completions."""

from toolgate.dialects.dialect import Dialect
from toolgate.dialects.openai_chat import server, upstream

DIALECT = Dialect("openai_chat", server, upstream)
