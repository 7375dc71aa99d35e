"""Encode token count requests to Anthropic upstreams, which are free of charge, and decode the answers."""

from typing import Any

from toolgate.conversation.errors import InvalidUpstreamAnswer
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.anthropic import upstream
from toolgate.dialects.dialect import Quirks

__all__ = ["decode_count", "encode_request", "path"]

# The fields that the endpoint accepts; it rejects those that concern the answer.
_COUNTED = frozenset(
    {"model", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "mcp_servers", "cache_control"}
)


def path() -> str:
    """Return the path to post to."""
    return "/messages/count_tokens"


def encode_request(request: ModelRequest, quirks: Quirks) -> dict[str, Any]:
    """Encode the body to post."""
    body, _ = upstream.encode_request(request, quirks)
    return {name: value for name, value in body.items() if name in _COUNTED}


def decode_count(body: Any) -> int:
    """Decode the number of tokens."""
    count = body.get("input_tokens") if type(body) is dict else None
    if type(count) is not int:
        raise InvalidUpstreamAnswer("The upstream's answer holds no number of tokens.")
    return count
