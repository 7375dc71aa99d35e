"""Compact a long conversation: keep the user's messages, and replace all else by a summary of the model.

The summary travels with the client in an item of type `compaction`, opaque to it but not secret: it holds only what the
client has sent. When it comes back it is a message of the model, never instructions: results of tools are in it.
Calls that still wait for a result stay as they are, with those beside them, so that the result finds its call.
"""

from collections.abc import Sequence
from typing import Any

from toolgate.api.responses.item_normalization import text_message, with_ids
from toolgate.conversation.errors import InvalidUpstreamAnswer
from toolgate.conversation.message import ReasoningSignature
from toolgate.conversation.random_ids import random_suffix
from toolgate.conversation.reasoning_envelope import unwrap_signature, wrap_signature
from toolgate.dialects.openai_responses.input_items import InputItemDecoder
from toolgate.wire.fields import Fields
from toolgate.wire.jsontext import decode

_SIGNATURE = "toolgate_compaction"  # marks our own summaries among the opaque contents of other servers
_CALLS = ("function_call", "custom_tool_call")
_RESULTS = ("function_call_output", "custom_tool_call_output")
_PROMPT = """\
Summarize this conversation so that you can go on from the summary alone; the user's messages stay with you, all else goes.
Keep what was asked, decided and promised, what every tool was asked and what it answered as far as it still matters,
names, paths, numbers and quotations exactly, what is done and what is left to do.
Answer with the summary and nothing else."""
_HEADING = "Summary of the conversation so far:\n\n"


def summary_request(body: dict[str, Any], items: Sequence[Any]) -> dict[str, Any]:
    """Return the request for a summary of the items."""
    # Without tools: the model should write and not call. The cache key lets the upstream reuse the conversation so far.
    own = {name: body[name] for name in ("model", "instructions", "prompt_cache_key") if body.get(name) is not None}
    return {**own, "input": [*items, text_message(_PROMPT)], "store": False}


def check_items(items: Sequence[Any]) -> None:
    """Raise if the dialect cannot decode an item, also of those that are not summarized."""
    reader = InputItemDecoder()
    for number, item in enumerate(items):
        reader.decode(Fields(item, f"input[{number}]"))


def first_open_call(items: Sequence[Any]) -> int:
    """Return the index from which items must stay: the calls beside the first one that has no result yet."""
    answered = {item.get("call_id") for item in items if _kind(item) in _RESULTS}
    unanswered = [
        place for place, item in enumerate(items) if _kind(item) in _CALLS and item.get("call_id") not in answered
    ]
    if not unanswered:
        return len(items)
    place = unanswered[0]
    # Calls of one answer stay together, with the reasoning before them: some models refuse calls without it.
    while place and _kind(items[place - 1]) in (*_CALLS, "reasoning"):
        place -= 1
    return place


def compact(items: Sequence[Any], place: int, answer: bytes, created: int) -> dict[str, Any]:
    """Return the compaction: the user's messages, the summary of this answer, and the items that must stay."""
    response = decode(answer)
    summary = "".join(
        [
            part["text"]
            for item in response["output"]
            if type(parts := item.get("content")) is list
            for part in parts
            if type(part) is dict and part.get("type") == "output_text" and type(part.get("text")) is str
        ]
    )
    if not summary.strip():
        raise InvalidUpstreamAnswer("The model gave no summary.")
    encrypted = wrap_signature(ReasoningSignature(_SIGNATURE, {"summary": summary}))
    item = {"id": "cmp_" + random_suffix(), "type": "compaction", "encrypted_content": encrypted}
    user_messages = with_ids([one for one in items[:place] if _kind(one) == "message" and one.get("role") == "user"])
    return {
        "id": response["id"],
        "object": "response.compaction",
        "created_at": created,
        "output": [*user_messages, item, *with_ids(items[place:])],
        "usage": response["usage"],
    }


def with_summaries(items: Sequence[Any]) -> list[Any]:
    """Return the items with our summaries as messages of the model; those of other servers stay as they are."""
    shown: list[Any] = []
    for item in items:
        encrypted = item.get("encrypted_content") if is_compaction(item) else None
        signature = unwrap_signature(encrypted) if type(encrypted) is str else None
        if signature is not None and signature.dialect == _SIGNATURE:
            # Never a system message: results of tools are in the summary, and these must not give instructions.
            text = _HEADING + str(signature.fields.get("summary", ""))
            item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
        shown.append(item)
    return shown


def is_compaction(item: Any) -> bool:
    """Return whether the item holds a summary."""
    return bool(_kind(item) == "compaction")


def _kind(item: Any) -> Any:
    if type(item) is not dict:
        return None
    return item.get("type") or ("message" if "role" in item else None)
