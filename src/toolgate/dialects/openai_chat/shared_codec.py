"""Define what decoders and encoders of the Chat dialect share: names of fields, finish reasons and usage."""

from collections.abc import Mapping
from typing import Any

from toolgate.conversation.events import FinishReason, Usage
from toolgate.wire.fields import MAX_TOKENS, missing_count, token_count

NAME = "openai_chat"

# The names under which vendors send the text of reasoning.
REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_text", "thinking")

# OpenAI's reasons, and those of vendors and of other APIs that OpenAI-compatible servers send instead.
_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "completed": "stop",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "refusal": "content_filter",
    "safety": "content_filter",
    "recitation": "content_filter",
}


def read_reason(reason: str) -> FinishReason:
    """Decode a vendor's finish reason; an unknown one is decoded as `stop`."""
    return _REASONS.get(reason.lower(), "stop")


def write_reason(reason: FinishReason) -> str:
    """Encode a finish reason; Chat has none for a pause."""
    return "stop" if reason == "pause" else reason


# Without these there is nothing but the two totals. DeepSeek reports cache hits in a field of its own.
_DETAILS = frozenset({"prompt_tokens_details", "completion_tokens_details", "prompt_cache_hit_tokens"})


def read_usage(value: Any) -> Usage | None:
    """Decode the token counts; None if there are none."""
    if type(value) is not dict:
        return None
    input, output = value.get("prompt_tokens"), value.get("completion_tokens")
    # Most often both counts are valid, which one comparison shows; otherwise each is checked.
    if type(input) is not int or type(output) is not int or input < 0 or output < 0 or input + output > MAX_TOKENS:
        input, output = token_count(input), token_count(output)
        if input is None and output is None:
            return None
    if _DETAILS.isdisjoint(value):
        return Usage(input or 0, output or 0, missing=missing_count(input, output))
    prompt, completion = _mapping(value, "prompt_tokens_details"), _mapping(value, "completion_tokens_details")
    return Usage(
        input=input or 0,
        output=output or 0,
        cache_read=_count(prompt.get("cached_tokens") or value.get("prompt_cache_hit_tokens")),
        cache_write=_count(prompt.get("cache_write_tokens") or prompt.get("cache_creation_tokens")),
        reasoning=_count(completion.get("reasoning_tokens")),
        missing=missing_count(input, output),
    )


def usage_of_chunk(chunk: Mapping[str, Any]) -> Any:
    """Return the token counts of a chunk, not decoded: Groq has a field of its own, and Moonshot a field of the choice."""
    if usage := chunk.get("usage"):
        return usage
    if "x_groq" in chunk:
        return (chunk["x_groq"] or {}).get("usage")
    return next((choice["usage"] for choice in chunk.get("choices") or () if choice.get("usage")), None)


def write_usage(usage: Usage) -> dict[str, Any]:
    """Encode all token counts: some clients fail on a missing one."""
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {
            "cached_tokens": usage.cache_read,
            "cache_write_tokens": usage.cache_write,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def _mapping(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    inner = value.get(name)
    return inner if type(inner) is dict else {}


def _count(value: Any) -> int:
    return token_count(value) or 0
