"""Encode a request as a question to a model of an editor, and list what an editor cannot express.

Editors have two roles and no system messages: system text is sent as the user's, where it stands. What has no place in
the editor's API is named in a warning. Pure.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from toolgate.bridge.frames import (
    BridgeAskFrame,
    BridgeDataPart,
    BridgeTextPart,
    BridgeToolCall,
    BridgeToolResult,
    EditorChatTool,
    EditorMessage,
    EditorModelSelector,
    Piece,
)
from toolgate.conversation import call_ids
from toolgate.conversation.arguments import is_object
from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.message import (
    REASONING_DROPPED,
    Media,
    Opaque,
    Part,
    Reasoning,
    RefusalPart,
    Text,
    ToolCall,
    ToolResult,
)
from toolgate.conversation.request import (
    HOSTED_SETTINGS,
    ModelRequest,
    OptionalSettingsEncoder,
    ToolChoice,
)

_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
_OPTIONS = OptionalSettingsEncoder(
    temperature="temperature",
    top_p="top_p",
    max_tokens="max_tokens",
    frequency_penalty="frequency_penalty",
    presence_penalty="presence_penalty",
    seed="seed",
)
_UNSUPPORTED = OptionalSettingsEncoder(
    **HOSTED_SETTINGS,
    top_k="top_k",
    verbosity="verbosity",
    logprobs="logprobs",
    top_logprobs="top_logprobs",
    thinking="thinking",
)
# Keywords that models of editors refuse at the root of a schema.
_BESIDE_PROPERTIES = ("oneOf", "anyOf", "allOf", "not", "if", "then", "else")


class LentModelCapabilities(Struct, frozen=True):
    """What the model can take."""

    images: bool = True


class AskAttribution(Struct, frozen=True):
    """On whose behalf a model is asked: `request` and `round` let the editor show what one client request costs."""

    caller: str = ""
    request: str = ""
    round: int = 1


def encode_ask(
    id: str,
    model: EditorModelSelector,
    request: ModelRequest,
    capabilities: LentModelCapabilities,
    origin: AskAttribution,
) -> tuple[BridgeAskFrame, tuple[str, ...]]:
    """Return the frame, and warnings of what it leaves out."""
    dropped: list[str] = []
    choice = request.tool_choice or ToolChoice()
    tools = _offered(request, choice, dropped)
    # Editors can demand a call of one tool only: `combined_tool.py` has made one of several before.
    forced = choice.mode == "required" and len(tools) == 1
    if choice.mode == "required" and not tools:
        raise InvalidRequest("tool_choice demands a call, but there is no tool to call.", param="tool_choice")
    messages: list[EditorMessage] = []
    for message in request.messages:
        parts = tuple([piece for part in message.parts for piece in _pieces(part, capabilities, dropped)])
        if parts:
            messages.append(EditorMessage("assistant" if message.role == "assistant" else "user", parts))
    dropped += _UNSUPPORTED.warnings(request.settings)
    if request.settings.output is not None:
        dropped.append("the editor's models take no output format")
    frame = BridgeAskFrame(
        id=id,
        model=model,
        messages=tuple(messages),
        tools=tuple(tools),
        tool_mode="required" if forced else "auto",
        options=_OPTIONS.fields(request.settings),
        justification=f"Toolgate passes on a request of {origin.caller or 'a program on this machine'}.",
        caller=origin.caller,
        request=origin.request,
        round=origin.round,
    )
    return frame, tuple(dict.fromkeys(dropped))


def _offered(request: ModelRequest, choice: ToolChoice, dropped: list[str]) -> list[EditorChatTool]:
    if choice.mode == "none":
        return []
    if any(tool.strict for tool in request.tools):
        dropped.append("strict schemas are not enforced")
    offered: list[EditorChatTool] = []
    for tool in request.tools:
        if tool.kind != "function":
            dropped.append(f"the {tool.kind} tool {tool.name!r} has no place here")
        elif not choice.names or tool.name in choice.names:
            # The editor's API has no tool without a description.
            offered.append(EditorChatTool(tool.name, tool.description or tool.name, plain_schema(tool.input_schema)))
    return offered


def plain_schema(schema: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return a schema as models of editors take it: an object with properties, and no alternatives at its root."""
    if not schema or schema.get("type") != "object":
        return _NO_PARAMETERS
    plain = {key: value for key, value in schema.items() if key not in _BESIDE_PROPERTIES}
    properties = plain.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    # A field that only an alternative describes may not be required any more.
    required = plain.get("required")
    if isinstance(required, list):
        plain["required"] = [name for name in required if name in properties]
    return {**plain, "properties": properties}


def _pieces(part: Part, capabilities: LentModelCapabilities, dropped: list[str]) -> Iterator[Piece]:
    match part:
        case Text(text) | RefusalPart(text):
            if text:
                yield BridgeTextPart(text)
        case Media(kind="image", data=str(data)):
            if not capabilities.images:
                raise InvalidRequest(
                    "This model of the editor takes no images.", param="messages", code="unsupported_content"
                )
            if part.detail not in (None, "auto"):
                dropped.append("detail of an image has no place here")
            yield BridgeDataPart(part.mime or "image/png", data)
        case Media():
            where = "url" if part.url else "value" if part.data else "file id"
            dropped.append(f"{part.kind} by {where} has no place here")
        case ToolCall():
            # Arguments of a freeform call, or broken ones, are no object, which is all that an editor takes.
            arguments = part.arguments if is_object(part.arguments) else msgspec.json.encode({"input": part.arguments})
            raw = Raw(arguments.encode() if isinstance(arguments, str) else arguments)
            yield BridgeToolCall(call_ids.original_id(part.id), part.name, raw)
        case ToolResult(call_id, content, is_error):
            inner = [piece for one in content for piece in _pieces(one, capabilities, dropped)]
            kept = tuple([piece for piece in inner if isinstance(piece, (BridgeTextPart, BridgeDataPart))])
            yield BridgeToolResult(call_ids.original_id(call_id), kept or (BridgeTextPart(""),), bool(is_error))
        case Reasoning():
            dropped.append(REASONING_DROPPED)
        case Opaque(dialect, value):
            dropped.append(f"a part of type {value.get('type')!r} is known to {dialect} only")
        case _:
            pass  # an approval request, which no history holds
