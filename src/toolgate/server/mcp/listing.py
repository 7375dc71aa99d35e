"""Tools as `tools/list` shows them, a page at a time.

Pure. A cursor is where the last page ended and the name of the tool it ended with, so that a list that changed
meanwhile goes on after that tool, or, if it is gone, at the same place.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from toolgate.server.mcp.jsonrpc import INVALID_PARAMS, Json, RpcError
from toolgate.server.mcp.revisions import has_any_structure
from toolgate.tools.tool import ToolSpec

PAGE = 100
_cursor = msgspec.json.Decoder(tuple[int, str])


def page(tools: Sequence[ToolSpec], cursor: str | None, revision: str, size: int = PAGE) -> Json:
    """The tools after the cursor, and the next cursor unless these are the last."""
    start = 0 if cursor is None else _place(tools, cursor)
    end = start + size
    shown: Json = {"tools": [describe(spec, revision) for spec in tools[start:end]]}
    if end < len(tools):
        shown["nextCursor"] = _encode(end, tools[end - 1].name)
    return shown


def describe(spec: ToolSpec, revision: str) -> Json:
    """One tool; schemas are shown as they are, save that older revisions know objects alone."""
    told: Json = {"name": spec.name}
    if spec.display_name:
        told["title"] = spec.display_name
    told["description"] = spec.description
    told["inputSchema"] = _as_object(spec.input_schema)
    output = spec.output_schema
    if output is not None and (has_any_structure(revision) or output.get("type") == "object"):
        told["outputSchema"] = output
    told["annotations"] = _hints(spec)
    if spec.icon and spec.icon.startswith(("https://", "data:")):  # clients must refuse any other
        told["icons"] = [{"src": spec.icon}]
    return told


def _as_object(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    return schema if schema.get("type") == "object" else {**schema, "type": "object"}


def _hints(spec: ToolSpec) -> Json:
    promised = spec.annotations
    return {
        "readOnlyHint": promised.read_only,
        "destructiveHint": promised.destructive and not promised.read_only,
        "idempotentHint": promised.repeatable,
        "openWorldHint": promised.open_world,
    }


def _encode(end: int, name: str) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode((end, name))).decode()


def _place(tools: Sequence[ToolSpec], cursor: str) -> int:
    try:
        end, name = _cursor.decode(base64.b64decode(cursor, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):  # msgspec's own errors are ValueErrors
        raise RpcError(INVALID_PARAMS, "This cursor was not made here.") from None
    if end < 1:
        raise RpcError(INVALID_PARAMS, "This cursor was not made here.")
    if end <= len(tools) and tools[end - 1].name == name:
        return end
    return next((place + 1 for place, spec in enumerate(tools) if spec.name == name), end)
