"""Asking an Anthropic upstream how many tokens a request has, which costs nothing."""

from typing import Any

from toolgate.conversation.errors import Garbled
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.anthropic import upstream
from toolgate.dialects.dialect import Quirks

__all__ = ["decode_count", "encode_request", "path"]

_COUNTED = frozenset(
    {"model", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "mcp_servers", "cache_control"}
)
"""The fields that the endpoint takes; it refuses those that say how to answer."""


def path() -> str:
    """Where to post."""
    return "/messages/count_tokens"


def encode_request(request: ModelRequest, quirks: Quirks) -> dict[str, Any]:
    """The body to post."""
    body, _ = upstream.encode_request(request, quirks)
    return {name: value for name, value in body.items() if name in _COUNTED}


def decode_count(body: Any) -> int:
    """The number of tokens."""
    count = body.get("input_tokens") if type(body) is dict else None
    if type(count) is not int:
        raise Garbled("The upstream's answer holds no number of tokens.")
    return count
