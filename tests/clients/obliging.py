"""A model that obliges: it calls the tool it is asked or forced to call, fills any schema, and otherwise talks.

It stands in for a real model where a public test suite asks in plain words and checks what comes back.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from toolgate.conversation.call_ids import new_call_id
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.message import Part, Text, ToolCall, plain_text
from toolgate.conversation.request import ModelRequest, ToolDef


def oblige(request: ModelRequest) -> ModelResponse:
    """The answer that a helpful model would give."""
    usage = Usage(30, 12)
    output = request.settings.output
    if " as a json" in (text := _question(request).lower()):
        keys = re.findall(r"'(\w+)'", text)
        return ModelResponse((Text(json.dumps(dict.fromkeys(keys, "x"))),), "stop", usage)
    if output is not None:
        filled = fill(output.schema or {"type": "object"}, request)
        return ModelResponse((Text(json.dumps(filled, ensure_ascii=False)),), "stop", usage)
    tool = _wanted(request)
    if tool is not None:
        arguments = json.dumps(fill(tool.input_schema or {"type": "object"}, request), ensure_ascii=False)
        parts: tuple[Part, ...] = (ToolCall(new_call_id(), tool.name, arguments),)
        return ModelResponse(parts, "tool_calls", usage)
    return ModelResponse((Text("One two three four five."),), "stop", usage)


def _wanted(request: ModelRequest) -> ToolDef | None:
    """The tool to call: the one that is forced, or the one that the last words speak of."""
    choice = request.tool_choice
    if not request.tools or (choice and choice.mode == "none"):
        return None
    if choice and choice.mode == "required":
        names = choice.names or (request.tools[0].name,)
        return next(tool for tool in request.tools if tool.name == names[0])
    last = request.messages[-1]
    text = plain_text(last.parts).lower() if last.role == "user" else ""
    asked = [tool for tool in request.tools if tool.name.lower() in text]
    if asked:
        return asked[-1]
    return (
        request.tools[0] if last.role == "user" and re.search(r"weather|joke|tool|greet|value|customer", text) else None
    )


def fill(schema: Mapping[str, Any], request: ModelRequest, root: Mapping[str, Any] | None = None) -> Any:
    """A value that the schema allows."""
    root = root or schema
    if "$ref" in schema:
        return fill(_resolved(schema["$ref"], root), request, root)
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        if choice.get("type") != "null":
            return fill(choice, request, root)
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "integer" | "number":
            return 3
        case "boolean":
            return True
        case "array":
            return [fill(schema.get("items", {}), request, root)]
        case "object" | None if "properties" in schema:
            return {name: fill(inner, request, root) for name, inner in schema["properties"].items()}
        case "object" | None:
            return {}
        case _:
            return _words(request)


def _resolved(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Any = root
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return found  # type: ignore[no-any-return]


def _words(request: ModelRequest) -> str:
    """What the user put in quotes, or a word."""
    quoted = re.findall(r"'([^']+)'", _question(request))
    return str(quoted[-1]) if quoted else "something"


def _question(request: ModelRequest) -> str:
    return " ".join(plain_text(message.parts) for message in request.messages if message.role == "user")
