"""Complete items of the Responses API for storing and listing: ids, types, statuses, and text as content parts."""

from collections.abc import Iterable
from typing import Any

from toolgate.conversation.call_ids import is_storable
from toolgate.conversation.random_ids import random_suffix
from toolgate.dialects.openai_responses.shared_codec import new_item_id

_PREFIXES = {"function_call_output": "fco_", "custom_tool_call_output": "ctco_", "mcp_approval_response": "mcpr_"}
# Types of items whose status the official SDKs require.
_WITH_STATUS = frozenset(
    ("message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output")
)


def text_message(text: str) -> dict[str, Any]:
    """Return the message that a bare string stands for."""
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def with_ids(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items, each with an id of its own; one that has an id keeps it."""
    normalized = []
    for item in items:
        # Clients may leave out the type of a message.
        kind = item.get("type") or ("message" if "role" in item else "item")
        id = item.get("id")
        if not is_storable(id):
            id = _PREFIXES[kind] + random_suffix() if kind in _PREFIXES else new_item_id(kind)
        complete = {**item, "id": id, "type": kind}
        if kind in _WITH_STATUS:
            complete.setdefault("status", "completed")
        # Clients may send a bare string, but what is listed must have parts: the SDKs read nothing else.
        if kind == "message" and type(text := item.get("content")) is str:
            output = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            complete["content"] = [output if item.get("role") == "assistant" else {"type": "input_text", "text": text}]
        normalized.append(complete)
    return normalized
