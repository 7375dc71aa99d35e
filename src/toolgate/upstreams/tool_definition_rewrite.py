"""Adapt the tools of a request to an upstream, and undo it in the response: names, namespaces and freeform tools.

A tool name that is too long or uses characters an upstream refuses gets a short stable one. A tool of a namespace gets its
namespace in front. A freeform tool becomes a function with one text parameter. What a choice narrows to names becomes
fewer tools. Each is undone in the calls of the response, so that the client receives only names it knows.
A request in the upstream's own dialect is sent unchanged.
"""

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.events import PartDelta, PartEnd, PartStart, StepEvent
from toolgate.conversation.message import Media, Message, Part, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest, ToolChoice, ToolDef, ToolKind
from toolgate.conversation.tool_definition_cache import cached_by_tools
from toolgate.dialects.dialect import Quirks
from toolgate.upstreams.foreign_field_warnings import foreign_fields, unusual_messages

_NAME, _EXTRA, _NAMESPACE, _KIND = map(attrgetter, ("name", "extra", "namespace", "kind"))
_FUNCTION = frozenset({"function"})
# OpenAI and Anthropic refuse a tool name with any other character.
_UNSAFE = re.compile(r"[^a-zA-Z0-9_-]")
_FREEFORM_FIELD = "input"
_VENDORS = {"openai_chat": "openai", "openai_responses": "openai"}  # the dialects that share files
Replacements: TypeAlias = Mapping[tuple[str | None, str], ToolDef]


class AdaptedRequest(Struct, frozen=True):
    """A request as the upstream accepts it, with the original of each changed tool.

    `dropped` names the fields that mean something in the client's dialect only.
    """

    request: ModelRequest
    originals: Mapping[str, ToolDef] = {}
    dropped: tuple[str, ...] = ()


def check_choices(request: ModelRequest, dialect: str) -> None:
    """Refuse several choices unless they are relayed: no other dialect has them."""
    if request.settings.choices > 1 and not (request.relay and request.dialect == dialect == "openai_chat"):
        raise InvalidRequest(
            "n must be 1 here: several answers pass from a Chat upstream to a Chat client alone, unchanged.", param="n"
        )


def adapt(request: ModelRequest, dialect: str, quirks: Quirks) -> AdaptedRequest:
    """Return the request as an upstream of this dialect and these quirks can take it."""
    check_choices(request, dialect)
    if request.dialect == dialect:
        return AdaptedRequest(request)
    dropped: tuple[str, ...] = ()
    if request.dialect:
        unusual = unusual_messages(request.messages)
        dropped = foreign_fields(request, dialect, unusual)
        if unusual:
            request = _without_foreign_files(request, dialect)
    choice = request.tool_choice
    # Few upstreams support a choice among some tools. A tool that is left out cannot be called either, so that the choice
    # among the others needs no names; a demand for one tool keeps its name.
    if choice is not None and choice.names and (choice.mode != "required" or len(choice.names) > 1):
        kept = tuple([tool for tool in request.tools if tool.name in choice.names])
        choice = ToolChoice(choice.mode, (), choice.parallel)
        request = replace(request, tools=kept, tool_choice=choice)
    keeps_namespaces = dialect == "openai_responses"
    replacements = _replacements(request.tools, quirks, keeps_namespaces) if request.tools else {}
    messages = _accepted_history(request.messages, replacements, quirks, keeps_namespaces)
    if not replacements:
        changed = request if messages is request.messages else replace(request, messages=messages)
        return AdaptedRequest(changed, dropped=dropped)
    tools = [replacements.get((tool.namespace, tool.name), tool) for tool in request.tools]
    if choice is not None and choice.names:
        names = {name: accepted.name for (_, name), accepted in replacements.items()}
        choice = replace(choice, names=tuple([names.get(name, name) for name in choice.names]))
    adapted = replace(request, tools=tuple(tools), messages=messages, tool_choice=choice)
    originals = {sent.name: tool for sent, tool in zip(tools, request.tools, strict=True) if sent is not tool}
    return AdaptedRequest(adapted, originals, dropped)


class ToolNameRestorer:
    """Restores the original tools in the events of one response."""

    done = False

    def __init__(self, originals: Mapping[str, ToolDef]) -> None:
        self._originals = originals
        self._holding = False  # inside a freeform call: its text is emitted whole, without the JSON around it

    def restore(self, events: list[StepEvent]) -> list[StepEvent]:
        """Return the events with the client's own tools."""
        restored: list[StepEvent] = []
        for event in events:
            match event:
                case PartDelta() if self._holding:
                    continue
                case PartStart(ToolCall() as call) if call.name in self._originals:
                    self._holding = self._originals[call.name].kind == "freeform"
                    restored.append(PartStart(self._call(call)))
                case PartEnd(ToolCall() as call) if call.name in self._originals:
                    whole = self._call(call)
                    if self._holding:
                        self._holding = False
                        restored.append(PartDelta(whole.arguments))
                    restored.append(PartEnd(whole))
                case _:
                    restored.append(event)
        return restored

    def _call(self, call: ToolCall) -> ToolCall:
        tool = self._originals[call.name]
        # A Responses client finds its tool by name and namespace.
        extra = {**call.extra, "openai_responses": {"namespace": tool.namespace}} if tool.namespace else call.extra
        if tool.kind != "freeform":
            return replace(call, name=tool.name, extra=extra)
        # The model was asked for `{"input": "…"}`. Where it wrote something else, all of that is the text.
        text = call.arguments
        try:
            value = msgspec.json.decode(text)
        except (msgspec.MsgspecError, RecursionError):
            value = None
        if type(value) is dict and type(value.get(_FREEFORM_FIELD)) is str:
            text = value[_FREEFORM_FIELD]
        return replace(call, name=tool.name, arguments=text, freeform=True, extra=extra)


def _without_foreign_files(request: ModelRequest, dialect: str) -> ModelRequest:
    """Remove file ids of other vendors; the codec then warns of what it cannot send."""
    vendor = _VENDORS.get(dialect, dialect)
    if _VENDORS.get(request.dialect, request.dialect) == vendor:
        return request
    if not any(_has_file_id(part) for message in request.messages for part in message.parts):
        return request
    messages = [replace(one, parts=tuple([_without_file_id(part) for part in one.parts])) for one in request.messages]
    return replace(request, messages=tuple(messages))


def _has_file_id(part: Part) -> bool:
    if type(part) is ToolResult:
        return any(_has_file_id(piece) for piece in part.content)
    return type(part) is Media and part.file_id is not None


def _without_file_id(part: Any) -> Any:
    if type(part) is ToolResult:
        return replace(part, content=tuple([_without_file_id(piece) for piece in part.content]))
    return replace(part, file_id=None) if type(part) is Media else part


@cached_by_tools
def _replacements(tools: tuple[ToolDef, ...], quirks: Quirks, keeps_namespaces: bool) -> Replacements:
    """Return the tools that the upstream accepts only in another form, by namespace and name."""
    limit, names = quirks.name_limit, [*map(_NAME, tools)]
    if (
        max(map(len, names)) <= limit
        and _UNSAFE.search("".join(names)) is None
        and not any(map(_EXTRA, tools))
        and not any(map(_NAMESPACE, tools))
        and _FUNCTION.issuperset(map(_KIND, tools))
    ):
        return {}  # as for most requests; five passes in C are cheaper than a look at each tool
    return {
        (tool.namespace, tool.name): other
        for tool in tools
        if tool.kind != "function" or tool.namespace or tool.extra or short_name(tool.name, limit) != tool.name
        if (other := _accepted_form(tool, quirks, keeps_namespaces)) is not tool
    }


def _accepted_form(tool: ToolDef, quirks: Quirks, keeps_namespaces: bool) -> ToolDef:
    if tool.kind == "hosted":
        return tool
    if tool.namespace and not keeps_namespaces:
        tool = replace(tool, name=f"{tool.namespace}__{tool.name}", namespace=None)
    if tool.kind == "freeform" and not quirks.freeform_tools:
        field: dict[str, Any] = {"type": "string", "description": "The whole input of the tool, as plain text."}
        if tool.format and tool.format.get("type") == "grammar":
            # Chat: {"type": "grammar", "grammar": {"syntax": "lark", "definition": "…"}}; Responses has no object inside.
            inner = tool.format.get("grammar")
            grammar = inner if type(inner) is dict else tool.format
            syntax, definition = grammar.get("syntax", ""), grammar.get("definition", "")
            field["description"] += f" It must follow this {syntax} grammar:\n{definition}"
        schema = {"type": "object", "properties": {_FREEFORM_FIELD: field}, "required": [_FREEFORM_FIELD]}
        tool = ToolDef(tool.name, tool.description, {**schema, "additionalProperties": False}, extra=tool.extra)
    # Only Anthropic has a field for examples.
    examples = tool.extra["anthropic"].get("input_examples") if "anthropic" in tool.extra else None
    if examples:
        shown = f"Examples of its input: {msgspec.json.encode(examples).decode()}"
        tool = replace(tool, description=f"{tool.description}\n\n{shown}" if tool.description else shown)
    name = short_name(tool.name, quirks.name_limit)
    return tool if name == tool.name else replace(tool, name=name)


@lru_cache(maxsize=8192)  # the same tools are offered again and again
def short_name(name: str, limit: int) -> str:
    """Return the name if every upstream accepts it, else a readable beginning and a digest of the whole."""
    safe = _UNSAFE.sub("_", name)
    if safe == name and len(name) <= limit:
        return name
    # The digest is of the whole name: two names with the same beginning stay different, and one name is always the same.
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{safe[: limit - 9]}_{digest}"


def _accepted_history(
    messages: tuple[Message, ...], replacements: Replacements, quirks: Quirks, keeps_namespaces: bool
) -> tuple[Message, ...]:
    """Return the messages with calls as the upstream accepts them, also of tools that are not offered any more."""
    names: dict[str, str] = {}  # of the changed calls, by their ids, for the results that follow
    changed: dict[int, list[Part]] = {}
    for number, message in enumerate(messages):
        for place, part in enumerate(message.parts):
            if type(part) is ToolCall:
                accepted = _accepted_call(part, replacements, quirks, keeps_namespaces)
                if accepted is part:
                    # Some upstreams use one id again: the results that follow are of this call.
                    names.pop(part.id, None)
                    continue
                names[part.id] = accepted.name
                changed.setdefault(number, [*message.parts])[place] = accepted
            elif names and type(part) is ToolResult and part.call_id in names:
                changed.setdefault(number, [*message.parts])[place] = replace(part, name=names[part.call_id])
    if not changed:
        return messages
    return tuple(
        [
            replace(message, parts=tuple(changed[number])) if number in changed else message
            for number, message in enumerate(messages)
        ]
    )


def _accepted_call(call: ToolCall, replacements: Replacements, quirks: Quirks, keeps_namespaces: bool) -> ToolCall:
    namespace = call.extra.get("openai_responses", {}).get("namespace") if call.extra else None
    if type(namespace) is not str:  # an upstream may have sent anything; clients are refused
        namespace = None
    tool = replacements.get((namespace, call.name))
    if tool is None:
        if namespace is None and not call.freeform and short_name(call.name, quirks.name_limit) == call.name:
            return call
        kind: ToolKind = "freeform" if call.freeform else "function"
        tool = _accepted_form(ToolDef(call.name, kind=kind, namespace=namespace), quirks, keeps_namespaces)
    if call.freeform and tool.kind == "function":
        text = msgspec.json.encode({_FREEFORM_FIELD: call.arguments}).decode()
        return replace(call, name=tool.name, arguments=text, freeform=False)
    return call if tool.name == call.name else replace(call, name=tool.name)
