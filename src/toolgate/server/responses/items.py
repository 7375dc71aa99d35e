"""Items of the Responses API as they are kept and listed: each with an id, messages in the form that clients read."""

from collections.abc import Iterable
from typing import Any

from toolgate.conversation.ids import mint
from toolgate.dialects.openai_responses.words import new_item_id

_PREFIXES = {"function_call_output": "fco_", "custom_tool_call_output": "ctco_", "mcp_approval_response": "mcpr_"}
_WITH_STATUS = frozenset(
    ("message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output")
)
"""Items whose status the official SDKs require."""


def text_message(text: str) -> dict[str, Any]:
    """What a client means by a bare string."""
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def with_ids(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items, each with an id of its own; one that has an id keeps it."""
    return [_whole(item) for item in items]


def _whole(item: dict[str, Any]) -> dict[str, Any]:
    kind = item.get("type") or ("message" if "role" in item else "item")
    given = item.get("id")
    id = given if type(given) is str and given else _new_id(kind)
    whole = {**item, "id": id, "type": kind}
    if kind in _WITH_STATUS:
        whole.setdefault("status", "completed")
    return _message(whole) if kind == "message" else whole


def _message(item: dict[str, Any]) -> dict[str, Any]:
    content = item.get("content")
    if type(content) is str:
        item["content"] = [_spoken(content, item.get("role"))]
    return item


def _spoken(text: str, role: Any) -> dict[str, Any]:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


def _new_id(kind: str) -> str:
    return _PREFIXES[kind] + mint() if kind in _PREFIXES else new_item_id(kind)
