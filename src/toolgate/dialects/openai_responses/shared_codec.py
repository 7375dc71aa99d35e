"""Define what decoders and encoders of the Responses dialect share: finish reasons, usage, reasoning items and ids."""

from collections.abc import Mapping
from typing import Any

from toolgate.conversation.errors import ToolgateError
from toolgate.conversation.events import FinishReason, Usage
from toolgate.conversation.message import NO_EXTRA, Extra, Reasoning, ReasoningSignature
from toolgate.conversation.random_ids import random_suffix
from toolgate.wire.fields import missing_count, token_count

NAME = "openai_responses"
LOGPROBS = "message.output_text.logprobs"  # the entry of `include` that requests log probabilities
SERVER_LABEL = "toolgate"  # the `server_label` of calls that were run here

_PREFIXES = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "custom_tool_call": "ctc_",
    "mcp_call": "mcp_",
    "image_generation_call": "ig_",
}
# Fields of a reasoning item that are not sent back: an upstream that stores nothing would look up an item by its id.
_NOT_SIGNED = ("type", "id", "status")
# The published codes of a failed response, on which SDKs with closed types rely.
_FAILURES = frozenset(
    {
        "server_error",
        "rate_limit_exceeded",
        "invalid_prompt",
        "context_length_exceeded",
        "insufficient_quota",
        "server_is_overloaded",
    }
)


def own_extra(rest: Mapping[str, Any]) -> Extra:
    """Return the unread fields of an object as the extra of this dialect."""
    return {NAME: rest} if rest else NO_EXTRA


def read_reason(response: Mapping[str, Any]) -> FinishReason:
    """Decode why the answer ended; an incomplete one of unknown cause counts as `length`."""
    details = _mapping(response, "incomplete_details")
    if response.get("status") != "incomplete" and not details:
        return "stop"
    return "content_filter" if details.get("reason") == "content_filter" else "length"


def write_reason(reason: FinishReason) -> str | None:
    """Encode why a response is incomplete; None if it is complete."""
    return {"length": "max_output_tokens", "content_filter": "content_filter"}.get(reason)


def read_usage(value: Any) -> Usage | None:
    """Decode the token counts; None if there are none."""
    if type(value) is not dict:
        return None
    input, output = token_count(value.get("input_tokens")), token_count(value.get("output_tokens"))
    if input is None and output is None:
        return None
    prompt, completion = _mapping(value, "input_tokens_details"), _mapping(value, "output_tokens_details")
    return Usage(
        input=input or 0,
        output=output or 0,
        cache_read=_count(prompt.get("cached_tokens")),
        cache_write=_count(prompt.get("cache_write_tokens")),
        reasoning=_count(completion.get("reasoning_tokens")),
        missing=missing_count(input, output),
    )


def write_usage(usage: Usage) -> dict[str, Any]:
    """Encode all token counts: some clients fail on a missing one."""
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }


def failure_code(error: ToolgateError) -> str:
    """Return the code of a failed response: the error's own if it is a published one, else the nearest of these."""
    if error.code in _FAILURES:
        return error.code
    if error.status == 429:
        return "rate_limit_exceeded"
    return "invalid_prompt" if error.status < 500 else "server_error"


def new_item_id(kind: str) -> str:
    """Return a new id for an output item of this type."""
    return _PREFIXES.get(kind, "item_") + random_suffix()


def call_item_id(kind: str, call_id: str) -> str:
    """Derive the id of the item that holds a call from the call's id, so that a result with the item's id finds the call."""
    return _PREFIXES[kind] + call_id.removeprefix("call_")


def call_ids_of(item_id: str) -> tuple[str, ...]:
    """Return the ids that the call in an item of this id may have."""
    for prefix in ("fc_", "ctc_", "mcp_"):
        if item_id.startswith(prefix):
            return ("call_" + item_id.removeprefix(prefix), item_id.removeprefix(prefix))
    return ()


def read_reasoning(item: Mapping[str, Any]) -> Reasoning:
    """Decode a reasoning item; its text is the reasoning itself where it is given, else its summary.

    Without encrypted or plain reasoning nothing in it could be sent back, so that it has no signature.
    """
    content, summary = item.get("content"), item.get("summary")
    if content and type(content) is list:
        text = "".join(_texts(content))
    else:
        text = "\n\n".join(_texts(summary)) if type(summary) is list else ""
    if not item.get("encrypted_content") and not content:
        return Reasoning(text)
    fields = {name: value for name, value in item.items() if name not in _NOT_SIGNED and value is not None}
    return Reasoning(text, ReasoningSignature(NAME, fields))


def _texts(parts: list[Any]) -> list[str]:
    return [part["text"] for part in parts if type(part) is dict and type(part.get("text")) is str]


def _mapping(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    inner = value.get(name)
    return inner if type(inner) is dict else {}


def _count(value: Any) -> int:
    return token_count(value) or 0
