"""What a request with tools becomes for a model that only writes text. Pure: it asks nobody."""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.history import settle
from toolgate.conversation.message import NO_EXTRA, Extra, Media, Message, Text, ToolCall
from toolgate.conversation.request import ModelRequest, Settings, ToolChoice, ToolDef
from toolgate.dialects.dialect import Quirks
from toolgate.text.prompts.conversation import Scribe, in_turns
from toolgate.upstreams.adapt import adapt
from toolgate.upstreams.emulation.imitation import result_marks
from toolgate.wire.jsontext import encode

_MOST_STOPS = 4
_ABOUT_TOOLS = frozenset(
    {
        "function_call",
        "functions",
        "legacy_functions",
        "max_tool_calls",
        "mcp_servers",
        "parallel_tool_calls",
        "tool_choice",
        "tool_resources",
    }
)
"""Fields of clients that speak of tools: an upstream that is offered none must not hear them."""

_NO_CHOICE = ToolChoice()


class Plan(Struct, frozen=True):
    """What to ask, and what the answer may hold.

    `tools` are all that the answer may name, `allowed` those that it may call; `originals` leads back to the names that the
    client knows. `own_stops` are the stop sequences that the client did not ask for.
    """

    asked: ModelRequest
    tools: tuple[ToolDef, ...]
    allowed: frozenset[str]
    choice: ToolChoice
    originals: Mapping[str, ToolDef]
    own_stops: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def held(self) -> bool:
        """Whether nothing may be told before a call begins, or the answer is over."""
        return not self.asked.stream or self.choice.mode == "required"


def plan(request: ModelRequest, scribe: Scribe, stops: bool = True) -> Plan | None:
    """The plan for a request; None if there is nothing in it that the model could not be asked as it is."""
    settled = settle(request, lenient=True)
    usable = tuple([tool for tool in request.tools if tool.kind != "hosted"])
    adapted = adapt(replace(settled, tools=usable, tool_choice=None, dialect=""), "text", Quirks())
    choice = _renamed(request.tool_choice or _NO_CHOICE, usable, adapted.request.tools)
    offered = _offered(adapted.request, choice)
    output = _output(request.settings) if offered else ""
    written = scribe.write(adapted.request.messages, offered, choice, output)
    if not written.changed and not request.tools:
        return None
    marks = result_marks(scribe.syntax.name) if stops and (offered or _has_calls(request)) else ()
    own_stops = _stops(request.settings, marks)
    settings = replace(
        request.settings,
        stop=(*request.settings.stop, *own_stops),
        output=None if output else request.settings.output,
    )
    asked = replace(
        request,
        messages=written.messages,
        tools=(),
        tool_choice=None,
        settings=settings,
        extra=_without_tools(request.extra),
        relay=False,
    )
    allowed = frozenset() if choice.mode == "none" else frozenset([tool.name for tool in offered])
    warnings = (*settled.warnings[len(request.warnings) :], *_lost(request, written.left_out))
    return Plan(asked, adapted.request.tools, allowed, choice, adapted.originals, own_stops, warnings)


def corrected(plan: Plan, scribe: Scribe, said: str, problems: Sequence[str]) -> ModelRequest:
    """The request to ask after an answer that could not be used."""
    mode = "none" if not plan.allowed else plan.choice.mode
    text = scribe.prompts.correction(problems, mode, plan.choice.names, scribe.form)
    answer = (Message("assistant", (Text(said),)),) if said.strip() else ()
    messages = (*plan.asked.messages, *answer, Message("user", (Text(text),)))
    return replace(plan.asked, messages=in_turns(messages))


def _renamed(choice: ToolChoice, tools: Sequence[ToolDef], taken: Sequence[ToolDef]) -> ToolChoice:
    """The choice by the names under which the model knows the tools."""
    if not choice.names:
        return choice
    names = [new.name for old, new in zip(tools, taken, strict=True) if old.name in choice.names]
    return replace(choice, names=tuple(names))


def _offered(request: ModelRequest, choice: ToolChoice) -> tuple[ToolDef, ...]:
    """The tools to describe; where none may be called, only to a model that has called some before."""
    if choice.mode == "none":
        return request.tools if _has_calls(request) else ()
    if not choice.names:
        return request.tools
    return tuple([tool for tool in request.tools if tool.name in choice.names])


def _has_calls(request: ModelRequest) -> bool:
    return any(isinstance(part, ToolCall) for message in request.messages for part in message.parts)


def _output(settings: Settings) -> str:
    """The schema of the answer: an upstream that held the model to it would leave no way to write a call."""
    if settings.output is None:
        return ""
    return encode(settings.output.schema or {"type": "object"}).decode()


def _stops(settings: Settings, marks: tuple[str, ...]) -> tuple[str, ...]:
    """Where a model that goes on to make up results is stopped; what the client wants to stop at goes before."""
    room = max(0, _MOST_STOPS - len(settings.stop))
    return tuple([f"\n{mark}" for mark in marks][:room])


def _without_tools(extra: Extra) -> Extra:
    return {
        dialect: {name: value for name, value in fields.items() if name not in _ABOUT_TOOLS}
        for dialect, fields in extra.items()
    } or NO_EXTRA


def _lost(request: ModelRequest, left_out: Sequence[Media]) -> list[str]:
    """What the model is not told, in words for a person."""
    hosted = [tool.name for tool in request.tools if tool.kind == "hosted"]
    lost = [f"the hosted tool {name} cannot be offered to a model that only writes text" for name in hosted]
    kinds = dict.fromkeys([media.kind for media in left_out])
    return lost + [f"{kind} content was left out: the model reads text only" for kind in kinds]
