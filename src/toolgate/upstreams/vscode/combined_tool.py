"""Demand a call of one of several tools from an API that can demand a call of one tool only.

All tools are offered as one, whose input names the tool and its arguments; the answer is turned back into the call that
is meant. Calls of an editor's models come whole, so that no streaming is lost by it.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from toolgate.conversation.events import PartDelta, PartEnd, PartStart, StepEvent
from toolgate.conversation.fold import unfold_part
from toolgate.conversation.message import ToolCall
from toolgate.conversation.request import ModelRequest, ToolChoice, ToolDef

_NAME = "call_tool"
_ANY_OBJECT: Mapping[str, Any] = {"type": "object", "properties": {}}


def as_one_tool(request: ModelRequest) -> "tuple[ModelRequest, CombinedToolUnwrapper] | None":
    """Return the request with one tool in place of several, if it demands a call of one of them."""
    choice = request.tool_choice
    tools = [tool for tool in request.tools if tool.kind == "function"]
    if choice is None or choice.mode != "required" or len(choice.names) == 1 or len(tools) < 2:
        return None
    name = _NAME
    while name in {tool.name for tool in tools}:
        name += "_"
    lines = [f"- {tool.name}: {tool.description or 'no description'}" for tool in tools]
    description = "\n".join(["Call one of these tools, by its name and with its arguments:", *lines])
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "enum": [tool.name]},
                "arguments": tool.input_schema or _ANY_OBJECT,
            },
            "required": ["name", "arguments"],
        }
        for tool in tools
    ]
    # The alternatives are one level down, because editors accept none at the root of a schema.
    schema = {"type": "object", "properties": {"call": {"anyOf": calls}}, "required": ["call"]}
    combined = ToolDef(name, description, schema)
    changed = replace(request, tools=(combined,), tool_choice=ToolChoice("required", (name,), choice.parallel))
    return changed, CombinedToolUnwrapper(name, {tool.name for tool in tools})


class _Call(Struct):
    name: str
    arguments: Raw = Raw(b"{}")


class _Combined(Struct):
    call: _Call


_decode_combined = msgspec.json.Decoder(_Combined).decode
_decode_bare = msgspec.json.Decoder(_Call).decode


class CombinedToolUnwrapper:
    """Turns calls of the combined tool into calls of the tools that they name; other calls pass unchanged."""

    done = False

    def __init__(self, name: str, names: set[str]) -> None:
        self._name = name
        self._names = names
        self._holding = False

    def restore(self, events: list[StepEvent]) -> list[StepEvent]:
        """Return the events with the calls that are meant."""
        restored: list[StepEvent] = []
        for event in events:
            match event:
                case PartStart(ToolCall(name=name)) if name == self._name:
                    self._holding = True
                case PartDelta() if self._holding:
                    continue
                case PartEnd(ToolCall(name=name) as call) if name == self._name:
                    self._holding = False
                    restored += unfold_part(self._meant(call))
                case _:
                    restored.append(event)
        return restored

    def _meant(self, call: ToolCall) -> ToolCall:
        """Return the call that is meant; an unreadable one stays as it is, and is refused as a call of an unknown tool."""
        # `{"call": {"name": …, "arguments": {…}}}`; some models leave out the object around the call.
        try:
            meant = _decode_combined(call.arguments).call
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            try:
                meant = _decode_bare(call.arguments)
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                return call
        if meant.name not in self._names or not bytes(meant.arguments).startswith(b"{"):
            return call
        return replace(call, name=meant.name, arguments=bytes(meant.arguments).decode())
