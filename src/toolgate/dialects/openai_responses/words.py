"""The vocabulary that both halves of the Responses dialect share: reasons, usage, reasoning items, ids, media."""

from collections.abc import Mapping
from typing import Any

from toolgate.conversation.errors import ToolgateError
from toolgate.conversation.events import FinishReason, Usage
from toolgate.conversation.ids import mint
from toolgate.conversation.message import NO_EXTRA, Extra, Reasoning, Seal
from toolgate.wire.fields import token_count

NAME = "openai_responses"
LOGPROBS = "message.output_text.logprobs"  # what asks for log probabilities in `include`
SERVER_LABEL = "toolgate"  # the `server_label` of calls that were run here

_PREFIXES = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "custom_tool_call": "ctc_",
    "mcp_call": "mcp_",
    "image_generation_call": "ig_",
}
_NOT_SEALED = ("type", "id", "status")
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
    """What is left of an object, as the extra of this dialect."""
    return {NAME: rest} if rest else NO_EXTRA


def read_reason(response: Mapping[str, Any]) -> FinishReason:
    """Why the answer ended; an incomplete one of unknown cause counts as cut off."""
    details = _mapping(response, "incomplete_details")
    if response.get("status") != "incomplete" and not details:
        return "stop"
    return "content_filter" if details.get("reason") == "content_filter" else "length"


def write_reason(reason: FinishReason) -> str | None:
    """Why a response is incomplete, or None if it is complete."""
    return {"length": "max_output_tokens", "content_filter": "content_filter"}.get(reason)


def read_usage(value: Any) -> Usage | None:
    """The token counts, or None if these are none."""
    if type(value) is not dict:
        return None
    given, made = token_count(value.get("input_tokens")), token_count(value.get("output_tokens"))
    if given is None and made is None:
        return None
    input, output = _mapping(value, "input_tokens_details"), _mapping(value, "output_tokens_details")
    return Usage(
        input=given or 0,
        output=made or 0,
        cache_read=_count(input.get("cached_tokens")),
        cache_write=_count(input.get("cache_write_tokens")),
        reasoning=_count(output.get("reasoning_tokens")),
    )


def write_usage(usage: Usage) -> dict[str, Any]:
    """The token counts, all of them: some clients fail on a missing one."""
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }


def failure_code(error: ToolgateError) -> str:
    """The code of a failed response: one that clients act on, else the nearest of the published ones."""
    if error.code in _FAILURES:
        return error.code
    if error.status == 429:
        return "rate_limit_exceeded"
    return "invalid_prompt" if error.status < 500 else "server_error"


def new_item_id(kind: str) -> str:
    """A fresh id for an output item of this type."""
    return _PREFIXES.get(kind, "item_") + mint()


def call_item_id(kind: str, call_id: str) -> str:
    """The id of the item that holds a call: made from the call's id, so that a result naming it finds the call."""
    return _PREFIXES[kind] + call_id.removeprefix("call_")


def call_ids_of(item_id: str) -> tuple[str, ...]:
    """The ids that a call held by an item of this id may have."""
    for prefix in ("fc_", "ctc_", "mcp_"):
        if item_id.startswith(prefix):
            return ("call_" + item_id.removeprefix(prefix), item_id.removeprefix(prefix))
    return ()


def read_reasoning(item: Mapping[str, Any]) -> Reasoning:
    """A reasoning item; without proof of its origin there is nothing in it to send back, so it has no seal."""
    text, sealed = reasoning_text(item), item.get("encrypted_content")
    if not sealed and not item.get("content"):
        return Reasoning(text)
    fields = {name: value for name, value in item.items() if name not in _NOT_SEALED and value is not None}
    return Reasoning(text, Seal(NAME, fields))


def reasoning_text(item: Mapping[str, Any]) -> str:
    """What a reasoning item shows: the thoughts themselves where they are given, else their summary."""
    content, summary = item.get("content"), item.get("summary")
    if content and type(content) is list:
        return "".join(_texts(content))
    return "\n\n".join(_texts(summary)) if type(summary) is list else ""


def _texts(parts: list[Any]) -> list[str]:
    return [part["text"] for part in parts if type(part) is dict and type(part.get("text")) is str]


def _mapping(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    inner = value.get(name)
    return inner if type(inner) is dict else {}


def _count(value: Any) -> int:
    return token_count(value) or 0
