"""Plan the request to a model that only writes text: tools, calls and results become text in it. No I/O."""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.history import match_results
from toolgate.conversation.message import NO_EXTRA, Media, Message, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest, RequestSettings, ToolChoice, ToolDef
from toolgate.dialects.dialect import Quirks
from toolgate.text_tools.emulation.fake_results import result_marks
from toolgate.text_tools.prompts.conversation_writer import ConversationWriter, in_turns
from toolgate.text_tools.prompts.prompt_renderer import RESULT_MARKS
from toolgate.text_tools.prompts.system_messages_to_user import lost_of_system
from toolgate.upstreams.foreign_field_warnings import foreign_fields
from toolgate.upstreams.tool_definition_rewrite import adapt
from toolgate.wire.jsontext import encode

_MAX_STOPS = 4  # OpenAI's API accepts no more
_RESULT_LINE = "\n<output "  # how the line behind the mark of a result begins in our prompts
# Extra fields about tools, which must not be sent to an upstream without tools.
_TOOL_FIELDS = frozenset(
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
_DEFAULT_CHOICE = ToolChoice()


class EmulationPlan(Struct, frozen=True):
    """The request to send, and what the answer may contain.

    `tools` are all that the answer may name, `allowed` those that it may call; `originals` maps their names to the client's
    tools. `own_stops` are the stop sequences that the client did not ask for.
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
        """Whether no event may be emitted before a call begins or the answer ends."""
        return not self.asked.stream or self.choice.mode == "required"


def plan(request: ModelRequest, writer: ConversationWriter, stops: bool = True) -> EmulationPlan | None:
    """Plan the request; None if the model can be asked the request as it is."""
    matched = match_results(request, lenient=True)
    usable = tuple([tool for tool in request.tools if tool.kind != "hosted"])
    adapted = adapt(replace(matched, tools=usable, tool_choice=None, dialect=""), "text", Quirks())
    choice = request.tool_choice or _DEFAULT_CHOICE
    if choice.names:  # from here on by the names under which the model knows the tools
        names = [new.name for old, new in zip(usable, adapted.request.tools, strict=True) if old.name in choice.names]
        choice = replace(choice, names=tuple(names))
    offered = adapted.request.tools
    if choice.mode == "none":  # described nevertheless where the history has calls of them
        offered = offered if _has_calls(adapted.request) else ()
    elif choice.names:
        offered = tuple([tool for tool in offered if tool.name in choice.names])
    # An upstream that held the model to the schema of the output would leave no way to write a call.
    output = request.settings.output if offered else None
    schema = encode(output.schema or {"type": "object"}).decode() if output else ""
    written = writer.write(adapted.request.messages, offered, choice, schema)
    if not written.changed and not request.tools:
        return None
    own_stops: tuple[str, ...] = ()
    if stops and (offered or _has_calls(request)):
        # A model that makes up results stops there. Of the marks of our prompts, the line behind belongs to the stop
        # sequence too, because an answer may quote a mark.
        marks = result_marks(writer.syntax.name)
        sequences = [f"\n{mark}{_RESULT_LINE}" if mark in RESULT_MARKS else f"\n{mark}" for mark in marks]
        own_stops = tuple(sequences[: max(0, _MAX_STOPS - len(request.settings.stop))])
    settings = replace(
        request.settings,
        stop=(*request.settings.stop, *own_stops),
        output=None if schema else request.settings.output,
    )
    asked = _without_tools(request, written.messages, settings)
    allowed = frozenset() if choice.mode == "none" else frozenset([tool.name for tool in offered])
    lost = _lost_warnings(request, written.left_out, writer.inject)
    warnings = (*matched.warnings[len(request.warnings) :], *lost)
    return EmulationPlan(asked, adapted.request.tools, allowed, choice, adapted.originals, own_stops, warnings)


def correction(plan: EmulationPlan, writer: ConversationWriter, answer: str, problems: Sequence[str]) -> ModelRequest:
    """Return the request to send after an answer that could not be used."""
    mode = "none" if not plan.allowed else plan.choice.mode
    text = writer.prompts.correction(problems, mode, plan.choice.names, writer.form)
    answered = (Message("assistant", (Text(answer),)),) if answer.strip() else ()
    messages = (*plan.asked.messages, *answered, Message("user", (Text(text),)))
    return replace(plan.asked, messages=in_turns(messages))


def _has_calls(request: ModelRequest) -> bool:
    return any(isinstance(part, ToolCall) for message in request.messages for part in message.parts)


def _without_tools(request: ModelRequest, messages: tuple[Message, ...], settings: RequestSettings) -> ModelRequest:
    extra = {
        dialect: {name: value for name, value in fields.items() if name not in _TOOL_FIELDS}
        for dialect, fields in request.extra.items()
    }
    return replace(
        request,
        messages=messages,
        tools=(),
        tool_choice=None,
        settings=settings,
        extra=extra or NO_EXTRA,
        relay=False,
    )


def _lost_warnings(request: ModelRequest, left_out: Sequence[Media], inject: bool) -> list[str]:
    """Return warnings about what the model does not get: hosted tools, media, and extra fields of what becomes text."""
    hosted = [tool.name for tool in request.tools if tool.kind == "hosted"]
    lost = [f"the hosted tool {name} cannot be offered to a model that only writes text" for name in hosted]
    kinds = dict.fromkeys([media.kind for media in left_out])
    lost += [f"{kind} content was left out: the model reads text only" for kind in kinds]
    lost += lost_of_system(request.messages) if inject else []
    # Of the messages only calls and results become text; fields of the others reach the upstream.
    messages = []
    for message in request.messages:
        parts = tuple([part for part in message.parts if isinstance(part, (ToolCall, ToolResult))])
        messages.append(replace(message, parts=parts, extra=message.extra if message.role == "tool" else NO_EXTRA))
    return [*lost, *foreign_fields(replace(request, extra=NO_EXTRA), "text", messages)]
