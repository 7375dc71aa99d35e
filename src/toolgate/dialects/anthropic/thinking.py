"""How much to think, as Anthropic's models of different age take it.

Newer models think adaptively, by an effort word; older ones by a token budget within `max_tokens`, which rules out forced
calls and demands that the thinking before open tool calls comes back. A client of this dialect knows its model, so what it
wrote is sent as it is, unless it is sure to be refused.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.errors import Rejected
from toolgate.conversation.message import Reasoning
from toolgate.conversation.request import ModelRequest, Settings, Thinking, unspoken
from toolgate.dialects.anthropic.turns import lacks_thinking
from toolgate.dialects.anthropic.words import NAME
from toolgate.dialects.dialect import Quirks

LEAST_BUDGET = 1024
_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 24576, "max": 32768}
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
_UNSPOKEN = (
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "verbosity",
    "cache_key",
    "cache_retention",
    "logprobs",
    "top_logprobs",
)
_LOST = "thinking was turned off: the thinking before the open tool calls is lost"


def without_signed_thinking(request: ModelRequest, fault: Rejected) -> tuple[ModelRequest, str] | None:
    """The request without the thinking of earlier turns, if the upstream refused a signature of it.

    Signatures go stale: the model was changed, the thinking came from another platform, or a client altered the text.
    """
    refused = fault.message.lower()
    if "signature" not in refused or "thinking" not in refused:
        return None
    messages = [
        replace(message, parts=tuple([part for part in message.parts if not isinstance(part, Reasoning)]))
        for message in request.messages
    ]
    left = tuple([message for message in messages if message.parts])
    if left == request.messages:
        return None
    return replace(
        request, messages=left
    ), "the thinking of earlier turns was left out: the upstream refused its signature"


class Plan(Struct, frozen=True):
    """What a request says of thinking, and the limit that leaves room for it."""

    max_tokens: int
    thinking: Mapping[str, Any] | None = None
    effort: str | None = None

    @property
    def thinks(self) -> bool:
        """Whether the model is asked to think."""
        return self.thinking is not None and self.thinking.get("type") != "disabled"


def plan_thinking(request: ModelRequest, quirks: Quirks, messages: list[dict[str, Any]], dropped: list[str]) -> Plan:
    """How this request asks the model to think."""
    settings = request.settings
    limit = settings.max_tokens if settings.max_tokens is not None else quirks.default_max_tokens
    thinking = settings.thinking
    if request.dialect == NAME:
        return _own_plan(request, limit, messages, dropped)
    if thinking is None:
        return Plan(limit)
    if not thinking.enabled:
        return _off(limit, quirks, dropped)
    if settings.max_tokens is None:
        limit += _budget(thinking)
    if quirks.thinking != "budget":
        return Plan(limit, {"type": "adaptive", **_display(thinking)}, _effort(thinking, dropped))
    return _budgeted(request, thinking, limit, messages, dropped)


def _own_plan(request: ModelRequest, limit: int, messages: list[dict[str, Any]], dropped: list[str]) -> Plan:
    wanted = request.extra.get(NAME, {}).get("thinking")
    effort = request.settings.thinking.effort if request.settings.thinking else None
    if type(wanted) is dict and wanted.get("type") == "enabled" and lacks_thinking(messages):
        dropped.append(_LOST)
        wanted = None
    return Plan(limit, wanted, effort)


def _off(limit: int, quirks: Quirks, dropped: list[str]) -> Plan:
    if quirks.thinking == "always":
        dropped.append("the upstream's model always thinks")
    return Plan(limit, {"type": "disabled"} if quirks.thinking == "adaptive" else None)


def _budgeted(
    request: ModelRequest, thinking: Thinking, limit: int, messages: list[dict[str, Any]], dropped: list[str]
) -> Plan:
    budget = min(_budget(thinking), limit - LEAST_BUDGET)
    if lacks_thinking(messages):
        dropped.append(_LOST)
    elif request.tools and request.tool_choice is not None and request.tool_choice.mode == "required":
        dropped.append("thinking was turned off: a tool call is demanded")
    elif budget < LEAST_BUDGET:
        dropped.append("thinking was turned off: max_tokens leaves no room for it")
    else:
        return Plan(limit, {"type": "enabled", "budget_tokens": budget, **_display(thinking)})
    return Plan(limit)


def _budget(thinking: Thinking) -> int:
    return max(thinking.budget or _BUDGETS.get(thinking.effort or "medium", _BUDGETS["medium"]), LEAST_BUDGET)


def _effort(thinking: Thinking, dropped: list[str]) -> str | None:
    """The effort word, or the one that a budget amounts to."""
    if thinking.effort is None:
        if thinking.budget is None:
            return None
        return next(
            (word for word, budget in _BUDGETS.items() if word != "minimal" and thinking.budget <= budget), "max"
        )
    if thinking.effort not in _EFFORTS:
        dropped.append(f"the effort {thinking.effort!r} is unknown here")
    return _EFFORTS.get(thinking.effort)


def _display(thinking: Thinking) -> dict[str, str]:
    return {"display": "summarized"} if thinking.summary not in (None, "none") else {}


def write_sampling(request: ModelRequest, plan: Plan, dropped: list[str]) -> dict[str, Any]:
    """How to choose words and where to stop."""
    settings = request.settings
    _note_unknown(settings, dropped)
    fields: dict[str, Any] = {"temperature": settings.temperature, "top_p": settings.top_p, "top_k": settings.top_k}
    if request.dialect != NAME:
        _restrain(fields, plan.thinks, dropped)
    stops = [word for word in settings.stop if word.strip()]
    if len(stops) < len(settings.stop):
        dropped.append("stop sequences of blanks alone cannot be asked for")
    fields["stop_sequences"] = stops or None
    return {name: value for name, value in fields.items() if value is not None}


def _restrain(fields: dict[str, Any], thinks: bool, dropped: list[str]) -> None:
    """Leave out what Anthropic refuses: heat beyond 1, heat beside top_p, and any of it while thinking."""
    temperature, top_p = fields["temperature"], fields["top_p"]
    if temperature is not None and temperature > 1:
        dropped.append(f"temperature {temperature} was lowered to 1")
        fields["temperature"] = temperature = 1
    refused = {}
    if thinks:
        refused = {
            "temperature": temperature not in (None, 1),
            "top_k": True,
            "top_p": top_p is not None and top_p < 0.95,
        }
        reason = "cannot be combined with thinking"
    elif temperature is not None:
        refused = {"top_p": True}
        reason = "cannot be combined with temperature"
    for name, is_refused in refused.items():
        if is_refused and fields[name] is not None:
            if fields[name] != 1:
                dropped.append(f"{name} {reason}")
            fields[name] = None


def _note_unknown(settings: Settings, dropped: list[str]) -> None:
    dropped += unspoken(settings, _UNSPOKEN)
    if settings.choices > 1:
        dropped.append("n has no place here")
    if settings.safety_identifier and settings.user:
        dropped.append("safety_identifier has no place beside user")
    if settings.metadata and settings.metadata.keys() != {"user_id"}:
        dropped.append("metadata has no place here")
