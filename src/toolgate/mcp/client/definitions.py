"""Parse a tool definition from a server's untrusted JSON and check that it can be used."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from toolgate.mcp.protocol.headers import header_parameters
from toolgate.mcp.protocol.line_reader import printable
from toolgate.tools.schema_check import ToolSchemaValidator
from toolgate.tools.tool import Annotations

# MCP sets no limits, and the model gets names and descriptions with every request.
_MAX_NAME_CHARS = 256
_MAX_DESCRIPTION_CHARS = 16 * 1024
_MAX_ICON_CHARS = 64 * 1024
# An SVG could hold a script, and plain HTTP shows to the network who looks at the tool.
_ICON = re.compile(r"https://[^\s\"'<>]+|data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+")
# `token` of RFC 9110: the characters of a header's name.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class UnusableToolError(Exception):
    """A tool is left out; the message names it and the reason."""


class HeaderArgument(Struct, frozen=True):
    """An argument that is repeated in a header: its path in the arguments and the header's name."""

    path: tuple[str, ...]
    header: str


class McpToolDefinition(Struct, frozen=True):
    """A usable tool. `definition` encodes all that a person or a model sees, with sorted keys, so that it can be compared.

    `former_definition` is the encoding of older versions, without title, output schema and icon.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]
    annotations: Annotations
    definition: bytes
    former_definition: bytes
    title: str | None = None
    output_schema: Mapping[str, Any] | None = None
    icon: str | None = None
    header_arguments: tuple[HeaderArgument, ...] = ()


def parse_definition(value: Any, schemas: ToolSchemaValidator) -> McpToolDefinition:
    """Parse one entry of a server's list of tools; UnusableToolError if it cannot be used."""
    if type(value) is not dict or type(value.get("name")) is not str or not value["name"]:
        raise UnusableToolError("a tool without a name")
    name = value["name"]
    if len(name) > _MAX_NAME_CHARS:
        raise UnusableToolError(f"{printable(name[:40])}: its name is longer than {_MAX_NAME_CHARS} letters")
    try:
        return _parse(name, value, schemas)
    except UnusableToolError as reason:
        raise UnusableToolError(f"{printable(name)}: {reason}") from None
    except RecursionError:
        raise UnusableToolError(f"{printable(name)}: its definition is nested too deeply") from None


def _parse(name: str, value: Mapping[str, Any], schemas: ToolSchemaValidator) -> McpToolDefinition:
    description = _text(value.get("description")) or ""
    if len(description) > _MAX_DESCRIPTION_CHARS:
        raise UnusableToolError(f"its description is longer than {_MAX_DESCRIPTION_CHARS} letters")
    if _object(value.get("execution")).get("taskSupport") == "required":
        raise UnusableToolError("it runs only as a task")
    schema = value.get("inputSchema", {"type": "object"})
    if type(schema) is not dict or (problem := schemas.problem(schema)) is not None:
        raise UnusableToolError(f"its input schema {problem if type(schema) is dict else 'is no object'}")
    hints = _object(value.get("annotations"))
    output = value.get("outputSchema")
    # Results are not checked against it, so that a tool with a bad one is usable without it.
    output = output if type(output) is dict and schemas.problem(output) is None else None
    title = _text(value.get("title")) or _text(hints.get("title"))
    if title is not None and len(title) > _MAX_NAME_CHARS:
        raise UnusableToolError(f"its title is longer than {_MAX_NAME_CHARS} letters")
    icons = value.get("icons")
    sources = [_text(_object(icon).get("src")) or "" for icon in icons[:8]] if type(icons) is list else []
    icon = next((src for src in sources if len(src) <= _MAX_ICON_CHARS and _ICON.fullmatch(src)), None)
    former = {"name": name, "description": description, "inputSchema": schema, "annotations": hints}
    return McpToolDefinition(
        name=name,
        description=description,
        input_schema=schema,
        annotations=_annotations(hints),
        definition=_canonical(former | {"title": title, "outputSchema": output, "icon": icon}),
        former_definition=_canonical(former),
        title=title,
        output_schema=output,
        icon=icon,
        header_arguments=_header_arguments(schema),
    )


def _canonical(fields: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(fields, order="sorted")
    except UnicodeEncodeError:  # "\ud83d" alone is valid JSON, and no text
        raise UnusableToolError("its definition holds halves of characters") from None


def _annotations(hints: Mapping[str, Any]) -> Annotations:
    """Read the server's hints; only true and false count, and a missing hint means the more dangerous value."""
    read_only = hints.get("readOnlyHint") is True
    return Annotations(
        read_only=read_only,
        destructive=not read_only and hints.get("destructiveHint") is not False,
        idempotent=hints.get("idempotentHint") is True,
        open_world=hints.get("openWorldHint") is not False,
    )


def _header_arguments(schema: Mapping[str, Any]) -> tuple[HeaderArgument, ...]:
    arguments = []
    for path, header, _ in header_parameters(schema):
        if type(header) is not str or not _TOKEN.fullmatch(header):
            raise UnusableToolError(f"it wants {printable(path[-1])!r} in a header with an invalid name")
        arguments.append(HeaderArgument(path, header))
    return tuple(arguments)


def _object(value: Any) -> dict[str, Any]:
    return value if type(value) is dict else {}


def _text(value: Any) -> str | None:
    return value if type(value) is str and value else None
