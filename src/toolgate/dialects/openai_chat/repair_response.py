"""Repair whole Chat answers for Chat clients: calls, finish reason, content parts, id and usage. All else is unchanged."""

from typing import Any

from toolgate.conversation import call_ids
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.message import ToolCall
from toolgate.dialects.dialect import AnswerMetadata, relayed_usage
from toolgate.dialects.openai_chat.shared_codec import write_reason, write_usage
from toolgate.dialects.openai_chat.stream_decoder import split_content


def answer_identity(body: dict[str, Any], metadata: AnswerMetadata) -> dict[str, Any]:
    """Return id, date and model of an answer or a chunk, and ours where the upstream's cannot be used."""
    return {
        "id": body["id"] if call_ids.is_storable(body.get("id")) else metadata.id,
        "created": body.get("created") or metadata.created,
        "model": model if type(model := body.get("model")) is str and model else metadata.model,
    }


def repair_response(
    body: dict[str, Any], response: ModelResponse, metadata: AnswerMetadata, joined: bool
) -> dict[str, Any]:
    """Return a whole answer with the calls and the finish reason of its first choice repaired.

    With `joined`, calls in other choices are moved into the first.
    """
    if _is_canonical(body) and not (response.usage and response.usage.estimated):
        return body
    repaired = {**body, **answer_identity(body, metadata), "object": "chat.completion"}
    first, *others = body["choices"]
    message = _repair_content({"content": None, "refusal": None, **(first.get("message") or {}), "role": "assistant"})
    for number, other in enumerate(others):
        if type(other) is dict and type(inner := other.get("message")) is dict:
            others[number] = {**other, "message": _repair_content(inner)}
    if joined and others:
        # Some upstreams put the text into one choice and each call into another; clients read only the first.
        moved, others = _extract_calls(others)
        message["tool_calls"] = [*(message.get("tool_calls") or ()), *moved]
    # The decoded calls have the ids, names and arguments as clients can read them; other fields stay the upstream's.
    calls = [part for part in response.parts if isinstance(part, ToolCall)]
    entries = message.get("tool_calls") or ()
    if entries:
        message["tool_calls"] = []
    else:
        message.pop("tool_calls", None)  # some clients take an empty list for a turn of calls
    for entry, call in zip(entries, calls, strict=False):
        field, text = ("custom", "input") if call.freeform else ("function", "arguments")
        inner = {**(entry.get(field) or {}), "name": call.name, text: call.arguments}
        rest = {name: value for name, value in entry.items() if name != "index"}  # only deltas have an index
        message["tool_calls"].append({**rest, "id": call.id, "type": field, field: inner})
    reason = write_reason(response.reason)
    if message.get("function_call") and reason == "tool_calls":
        reason = "function_call"
    choice = {"logprobs": None, **first, "index": 0, "message": message, "finish_reason": reason}
    usage = relayed_usage(write_usage(response.usage or Usage()), body.get("usage") or {}, response.usage)
    return {**repaired, "choices": [choice, *others], "usage": usage}


def _repair_content(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose content is a string or null: Chat clients do not read content parts in answers."""
    content = message.get("content")
    if content is None or type(content) is str:
        return message
    text, thinking = split_content(content)
    thought = {"reasoning_content": thinking} if thinking else {}
    return {**thought, **message, "content": text or None}


def _extract_calls(choices: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the calls of these choices, and the choices that have anything else, without their calls."""
    entries: list[Any] = []
    left: list[Any] = []
    for choice in choices:
        message = choice.get("message") if type(choice) is dict else None
        if type(message) is not dict or not message.get("tool_calls"):
            left.append(choice)
            continue
        entries += message["tool_calls"]
        # A choice that held nothing but calls is dropped: no client asked for it.
        if message.get("content"):
            rest = {name: value for name, value in message.items() if name != "tool_calls"}
            left.append({**choice, "message": rest, "finish_reason": "stop"})
    return entries, left


def _is_canonical(body: dict[str, Any]) -> bool:
    """Return whether this is plain text as OpenAI itself would send it, so that there is nothing to repair."""
    if not (call_ids.is_storable(body.get("id")) and body.get("created") and body.get("usage")):
        return False
    first = body["choices"][0]
    message = first.get("message")
    return (
        body.get("object") == "chat.completion"
        and type(body.get("model")) is str
        and body["model"]
        and len(body["choices"]) == 1
        and first.get("index") == 0
        and first.get("finish_reason") in ("stop", "length")
        and type(message) is dict
        and message.get("role") == "assistant"
        and type(message.get("content")) is str
        and not message.get("tool_calls")
        and not message.get("function_call")
    )
