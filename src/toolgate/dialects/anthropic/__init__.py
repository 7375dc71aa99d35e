"""Anthropic Messages."""

from toolgate.dialects.anthropic import counting, server, upstream
from toolgate.dialects.anthropic.thinking import without_signed_thinking
from toolgate.dialects.anthropic.tool_servers import reads_server_tools, take_servers
from toolgate.dialects.anthropic.words import NAME
from toolgate.dialects.dialect import Dialect

DIALECT = Dialect(
    NAME,
    server,
    upstream,
    passed_headers=("anthropic-beta",),
    native=True,
    pausing=True,
    take_servers=take_servers,
    reads_server_tools=reads_server_tools,
    mend_refused=without_signed_thinking,
    counting=counting,
)
