"""Translate the Anthropic Messages dialect."""

from toolgate.dialects.anthropic import server, upstream, upstream_token_count
from toolgate.dialects.anthropic.plain_text_fast_path import decode_plain_answer
from toolgate.dialects.anthropic.shared_codec import NAME
from toolgate.dialects.anthropic.thinking_parameters import without_signed_thinking
from toolgate.dialects.anthropic.tool_servers import extract_servers, reads_server_tools
from toolgate.dialects.dialect import Dialect

DIALECT = Dialect(
    NAME,
    server,
    upstream,
    forwarded_headers=("anthropic-beta",),
    native_tools=True,
    native_pause=True,
    extract_servers=extract_servers,
    reads_server_tools=reads_server_tools,
    repair_rejected=without_signed_thinking,
    token_count=upstream_token_count,
    decode_plain_answer=decode_plain_answer,
)
