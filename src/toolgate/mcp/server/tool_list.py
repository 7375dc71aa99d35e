"""Encode the tools for `tools/list`, one page at a time.

Pure. A cursor holds the index where the last page ended and the name of its last tool. If the list has changed meanwhile,
the next page starts after that tool, or at the same index if the tool is gone.
"""

import base64
import binascii
from collections.abc import Sequence

import msgspec

from toolgate.mcp.protocol.jsonrpc import INVALID_PARAMS, Json, RpcRequestRefused
from toolgate.mcp.protocol.revisions import has_any_structure
from toolgate.tools.tool import ServerToolDefinition

PAGE = 100
_cursor = msgspec.json.Decoder(tuple[int, str])


def encode_page(tools: Sequence[ServerToolDefinition], cursor: str | None, revision: str, size: int = PAGE) -> Json:
    """Encode the tools after the cursor, and the next cursor unless these are the last."""
    start = 0
    if cursor is not None:
        try:
            start, name = _cursor.decode(base64.b64decode(cursor, altchars=b"-_", validate=True))
        except (binascii.Error, ValueError):  # msgspec's own errors are ValueErrors
            raise RpcRequestRefused(INVALID_PARAMS, "This cursor was not made here.") from None
        if start < 1:
            raise RpcRequestRefused(INVALID_PARAMS, "This cursor was not made here.")
        if start > len(tools) or tools[start - 1].name != name:
            start = next((index + 1 for index, spec in enumerate(tools) if spec.name == name), start)
    end = start + size
    page: Json = {"tools": [encode_tool(spec, revision) for spec in tools[start:end]]}
    if end < len(tools):
        page["nextCursor"] = base64.urlsafe_b64encode(msgspec.json.encode((end, tools[end - 1].name))).decode()
    return page


def encode_tool(spec: ServerToolDefinition, revision: str) -> Json:
    """Encode one tool with its schemas unchanged, except that older revisions take only schemas of objects."""
    tool: Json = {"name": spec.name}
    if spec.display_name:
        tool["title"] = spec.display_name
    tool["description"] = spec.description
    schema = spec.input_schema
    tool["inputSchema"] = schema if schema.get("type") == "object" else {**schema, "type": "object"}
    output = spec.output_schema
    if output is not None and (has_any_structure(revision) or output.get("type") == "object"):
        tool["outputSchema"] = output
    annotations = spec.annotations
    tool["annotations"] = {
        "readOnlyHint": annotations.read_only,
        "destructiveHint": annotations.destructive and not annotations.read_only,
        "idempotentHint": annotations.repeatable,
        "openWorldHint": annotations.open_world,
    }
    if spec.icon and spec.icon.startswith(("https://", "data:")):  # clients must refuse any other
        tool["icons"] = [{"src": spec.icon}]
    return tool
