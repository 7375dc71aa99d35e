"""Encode how much Anthropic's models should think, and the sampling settings that depend on it.

Newer models think adaptively, by an effort level; older ones by a token budget within `max_tokens`, which excludes forced
calls and requires that the thinking before open tool calls is sent back. A client of this dialect knows its model, so
its own fields are sent unchanged, unless they would certainly be rejected.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.errors import UpstreamRejected
from toolgate.conversation.message import Reasoning
from toolgate.conversation.request import (
    NO_SETTINGS,
    ModelRequest,
    OptionalSettingsEncoder,
    ReasoningSettings,
)
from toolgate.dialects.anthropic.encode_messages import lacks_thinking
from toolgate.dialects.anthropic.shared_codec import NAME
from toolgate.dialects.dialect import Quirks

MIN_BUDGET = 1024  # the smallest that Anthropic accepts
_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 24576, "max": 32768}
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
_UNSUPPORTED = OptionalSettingsEncoder(
    seed="seed",
    frequency_penalty="frequency_penalty",
    presence_penalty="presence_penalty",
    verbosity="verbosity",
    prompt_cache_key="cache_key",
    prompt_cache_retention="cache_retention",
    logprobs="logprobs",
    top_logprobs="top_logprobs",
)
_THINKING_LOST = "thinking was turned off: the thinking before the open tool calls is lost"


def without_signed_thinking(request: ModelRequest, fault: UpstreamRejected) -> tuple[ModelRequest, str] | None:
    """Return the request without the thinking of earlier turns, if the upstream rejected a signature of it.

    Signatures become invalid: the model was changed, the thinking came from another platform, or a client altered it.
    """
    # There is no code for this error. An example: "messages.1.content.0: Invalid `signature` in `thinking` block".
    message = fault.message.lower()
    if "signature" not in message or "thinking" not in message:
        return None
    messages = [
        replace(message, parts=tuple([part for part in message.parts if not isinstance(part, Reasoning)]))
        for message in request.messages
    ]
    left = tuple([message for message in messages if message.parts])
    if left == request.messages:
        return None
    warning = "the thinking of earlier turns was left out: the upstream refused its signature"
    return replace(request, messages=left), warning


class ThinkingPlan(Struct, frozen=True):
    """The thinking fields of a request, and the token limit that leaves room for the thinking."""

    max_tokens: int
    thinking: Mapping[str, Any] | None = None
    effort: str | None = None

    @property
    def thinks(self) -> bool:
        """Whether thinking is enabled."""
        return self.thinking is not None and self.thinking.get("type") != "disabled"


def plan_thinking(
    request: ModelRequest, quirks: Quirks, messages: list[dict[str, Any]], dropped: list[str]
) -> ThinkingPlan:
    """Decide the thinking fields of this request."""
    settings = request.settings
    limit = settings.max_tokens if settings.max_tokens is not None else quirks.default_max_tokens
    thinking = settings.thinking
    if request.dialect == NAME:
        sent = request.extra.get(NAME, {}).get("thinking")
        # Anthropic rejects a budget if the open tool calls came without thinking, as from another model.
        if type(sent) is dict and sent.get("type") == "enabled" and lacks_thinking(messages):
            dropped.append(_THINKING_LOST)
            sent = None
        return ThinkingPlan(limit, sent, thinking.effort if thinking else None)
    if thinking is None:
        return ThinkingPlan(limit)
    if not thinking.enabled:
        if quirks.thinking == "always":
            dropped.append("the upstream's model always thinks")
        return ThinkingPlan(limit, {"type": "disabled"} if quirks.thinking == "adaptive" else None)
    # Thinking counts against `max_tokens`, so the default limit grows by it. A limit of the client is not exceeded.
    if settings.max_tokens is None:
        limit += _budget(thinking)
    display = {"display": "summarized"} if thinking.summary not in (None, "none") else {}
    if quirks.thinking != "budget":
        return ThinkingPlan(limit, {"type": "adaptive", **display}, _effort(thinking, dropped))
    budget = min(_budget(thinking), limit - MIN_BUDGET)
    if lacks_thinking(messages):
        dropped.append(_THINKING_LOST)
    elif request.tools and request.tool_choice is not None and request.tool_choice.mode == "required":
        dropped.append("thinking was turned off: a tool call is demanded")
    elif budget < MIN_BUDGET:
        dropped.append("thinking was turned off: max_tokens leaves no room for it")
    else:
        return ThinkingPlan(limit, {"type": "enabled", "budget_tokens": budget, **display})
    return ThinkingPlan(limit)


def _budget(thinking: ReasoningSettings) -> int:
    return max(thinking.budget or _BUDGETS.get(thinking.effort or "medium", _BUDGETS["medium"]), MIN_BUDGET)


def _effort(thinking: ReasoningSettings, dropped: list[str]) -> str | None:
    """Return the effort level, or the one that a budget corresponds to."""
    if thinking.effort is None:
        if thinking.budget is None:
            return None
        levels = [level for level, budget in _BUDGETS.items() if level != "minimal" and thinking.budget <= budget]
        return levels[0] if levels else "max"
    if thinking.effort not in _EFFORTS:
        dropped.append(f"the effort {thinking.effort!r} is unknown here")
    return _EFFORTS.get(thinking.effort)


def write_sampling(request: ModelRequest, plan: ThinkingPlan, dropped: list[str]) -> dict[str, Any]:
    """Encode the sampling settings and the stop sequences."""
    settings = request.settings
    if settings is NO_SETTINGS:
        return {}
    dropped += _UNSUPPORTED.warnings(settings)
    if settings.choices > 1:
        dropped.append("n has no place here")
    if settings.safety_identifier and settings.user:
        dropped.append("safety_identifier has no place beside user")
    if settings.metadata and settings.metadata.keys() != {"user_id"}:
        dropped.append("metadata has no place here")
    fields: dict[str, Any] = {"temperature": settings.temperature, "top_p": settings.top_p, "top_k": settings.top_k}
    # A client of this dialect knows the rules, and gets the upstream's own error if it breaks one.
    if request.dialect != NAME:
        _drop_rejected(fields, plan.thinks, dropped)
    stops = [sequence for sequence in settings.stop if sequence.strip()]
    if len(stops) < len(settings.stop):
        dropped.append("stop sequences of blanks alone cannot be asked for")
    fields["stop_sequences"] = stops or None
    return {name: value for name, value in fields.items() if value is not None}


def _drop_rejected(fields: dict[str, Any], thinks: bool, dropped: list[str]) -> None:
    """Drop what Anthropic rejects: temperatures above 1, temperature with top_p, and most of it while thinking."""
    temperature, top_p = fields["temperature"], fields["top_p"]
    if temperature is not None and temperature > 1:
        dropped.append(f"temperature {temperature} was lowered to 1")
        fields["temperature"] = temperature = 1
    rejected = {}
    if thinks:
        rejected = {
            "temperature": temperature not in (None, 1),
            "top_k": True,
            "top_p": top_p is not None and top_p < 0.95,
        }
        reason = "cannot be combined with thinking"
    elif temperature is not None:
        rejected = {"top_p": True}
        reason = "cannot be combined with temperature"
    for name, is_rejected in rejected.items():
        if is_rejected and fields[name] is not None:
            if (name, fields[name]) != ("top_p", 1):  # which changes nothing, so that its loss needs no warning
                dropped.append(f"{name} {reason}")
            fields[name] = None
