"""Plan a request for a small model that makes one call at a time: what may, must and cannot be called.

Pure; it knows neither prompts nor the engine.
"""

from typing import Any

from msgspec import Struct

from toolgate.conversation.request import ModelRequest, RequestSettings, ToolDef
from toolgate.conversation.result_delimiters import new_secret
from toolgate.dialects.dialect import Quirks
from toolgate.upstreams.local import grammar, history
from toolgate.upstreams.local.history import LocalHistory
from toolgate.upstreams.tool_definition_rewrite import AdaptedRequest, adapt

NAME = "embedded"
# Calls for one question, after which it is answered: small models get lost in longer chains.
MOST_CALLS = 6
_ONE_CALL = "parallel_tool_calls: the embedded model makes one call at a time"
GREEDY = {"temperature": 0.0}
_SAMPLING_DEFAULTS = {"temperature": 0.3, "top_p": 0.9, "top_k": 20}


class ToolChoicePlan(Struct, frozen=True):
    """A plan: the conversation, the tools in the prompt, which may be called next, and whether none may be."""

    adapted: AdaptedRequest
    conversation: LocalHistory
    tools: tuple[ToolDef, ...]
    callable: tuple[ToolDef, ...]
    may_decline: bool
    max_tokens: int
    warnings: tuple[str, ...]

    @property
    def settings(self) -> RequestSettings:
        """The settings of the answer."""
        return self.adapted.request.settings


def make(request: ModelRequest, max_tokens: int, secret: bytes | None = None) -> ToolChoicePlan:
    """Return the plan of a request; `max_tokens` is its default. InvalidRequest for what is not supported.

    Results of tools stand between marks made of `secret`.
    """
    adapted = adapt(request, NAME, Quirks())
    asked = adapted.request
    conversation = history.read(asked.messages, secret or new_secret())
    tools = tuple([tool for tool in asked.tools if tool.kind == "function"])
    choice = asked.tool_choice
    # A choice among several names has become fewer tools in `adapt`: what is left here is one name, or none.
    mode = choice.mode if choice else "auto"
    named = choice.names[0] if choice and choice.names else None
    if mode == "none" or (mode == "auto" and len(conversation.last.used) >= MOST_CALLS):
        offered: tuple[ToolDef, ...] = ()
    else:
        offered = tuple([tool for tool in tools if named in (None, tool.name)])
    # A small model would call the tool again that has just given its result.
    used = {used.name for used in conversation.last.used if not used.failed} if mode == "auto" else set[str]()
    left_out: list[str] = []
    if choice is not None and choice.parallel and offered:
        left_out.append(_ONE_CALL)
    if asked.settings.thinking is not None and asked.settings.thinking.enabled:
        left_out.append("the embedded model does not think before it answers")
    left_out += [f"tool {tool.name} is hosted elsewhere" for tool in asked.tools if tool.kind == "hosted"]
    for tool in offered:
        if grammar.has_unsupported(tool.input_schema):
            left_out.append(f"the schema of {tool.name} holds references or patterns that the embedded model ignores")
    return ToolChoicePlan(
        adapted,
        conversation,
        offered,  # all of them stay in the prompt, whose beginning the engine then has in its cache
        tuple([tool for tool in offered if tool.name not in used]),
        mode == "auto",
        asked.settings.max_tokens or max_tokens,
        (*adapted.dropped, *conversation.warnings, *left_out),
    )


def sampling(plan: ToolChoicePlan) -> dict[str, Any]:
    """Return the sampling settings for an answer in text, with defaults that suit a small model."""
    settings = plan.settings
    # Results of tools have to be repeated exactly, and a digit that is sampled may be another one.
    defaults = GREEDY if plan.conversation.last.used else _SAMPLING_DEFAULTS
    given = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        "seed": settings.seed,
        "frequency_penalty": settings.frequency_penalty,
        "presence_penalty": settings.presence_penalty,
    }
    return {**defaults, **{name: value for name, value in given.items() if value is not None}}
