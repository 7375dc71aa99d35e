"""What a request means for a small model that makes one call at a time: what may be called, what must be, what is left out.

Pure; it knows neither prompts nor the engine.
"""

from typing import Any

from msgspec import Struct

from toolgate.conversation.request import ModelRequest, Settings, ToolDef
from toolgate.dialects.dialect import Quirks
from toolgate.upstreams.adapt import Adapted, adapt
from toolgate.upstreams.embedded import grammar, turns
from toolgate.upstreams.embedded.turns import Talk

NAME = "embedded"
MOST_CALLS = 6
"""Calls for one question after which it is answered with what is known: deeper chains only go astray."""

_ONE_CALL = "parallel_tool_calls: the embedded model makes one call at a time"
_UNSAID = {"temperature": 0.3, "top_p": 0.9, "top_k": 20}


class Plan(Struct, frozen=True):
    """A request made ready: the conversation, the tools it is shown, which may be called next, and whether none may be."""

    adapted: Adapted
    talk: Talk
    tools: tuple[ToolDef, ...]
    callable: tuple[ToolDef, ...]
    may_decline: bool
    max_tokens: int
    warnings: tuple[str, ...]

    @property
    def settings(self) -> Settings:
        """How to answer."""
        return self.adapted.request.settings


def make(request: ModelRequest, max_tokens: int) -> Plan:
    """What to do for this request; `max_tokens` holds where it says nothing. InvalidRequest for what cannot be done."""
    adapted = adapt(request, NAME, Quirks())
    asked = adapted.request
    talk = turns.read(asked.messages)
    tools = tuple([tool for tool in asked.tools if tool.kind == "function"])
    choice = asked.tool_choice
    mode = choice.mode if choice else "auto"
    named = choice.names[0] if choice and choice.names else None
    if mode == "none" or (mode == "auto" and len(talk.last.used) >= MOST_CALLS):
        offered: tuple[ToolDef, ...] = ()
    else:
        offered = tuple([tool for tool in tools if named in (None, tool.name)])
    return Plan(
        adapted,
        talk,
        offered,
        _fresh(offered, talk) if mode == "auto" else offered,
        mode == "auto",
        asked.settings.max_tokens or max_tokens,
        (*adapted.dropped, *talk.warnings, *_left_out(asked, offered)),
    )


def _fresh(tools: tuple[ToolDef, ...], talk: Talk) -> tuple[ToolDef, ...]:
    """The tools that have given nothing yet for this question: shown a result, a small model calls the same tool again."""
    served = {used.name for used in talk.last.used if not used.failed}
    return tuple([tool for tool in tools if tool.name not in served])


def _left_out(request: ModelRequest, offered: tuple[ToolDef, ...]) -> list[str]:
    choice, settings = request.tool_choice, request.settings
    left: list[str] = []
    if choice is not None and choice.parallel and offered:
        left.append(_ONE_CALL)
    if settings.thinking is not None and settings.thinking.enabled:
        left.append("the embedded model does not think before it answers")
    left += [f"tool {tool.name} is hosted elsewhere" for tool in request.tools if tool.kind == "hosted"]
    loose = [tool.name for tool in offered if grammar.unheld(tool.input_schema)]
    left += [f"the schema of {name} holds references or patterns that the embedded model ignores" for name in loose]
    return left


def sampling(settings: Settings) -> dict[str, Any]:
    """The settings in the engine's words; where the client says nothing, those that suit a small model."""
    said = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        "seed": settings.seed,
        "frequency_penalty": settings.frequency_penalty,
        "presence_penalty": settings.presence_penalty,
    }
    return {**_UNSAID, **{name: value for name, value in said.items() if value is not None}}
