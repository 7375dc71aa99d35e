"""Encode the output of a tool as the result of `tools/call`. Pure."""

from collections.abc import Mapping
from urllib.parse import quote

from toolgate.conversation.message import Media, Text
from toolgate.mcp.protocol.jsonrpc import Json
from toolgate.mcp.protocol.revisions import has_any_structure, has_audio, has_links
from toolgate.tools.tool import ToolOutput
from toolgate.wire.jsontext import encode

_UNKNOWN_MIME = "application/octet-stream"


def encode_output(output: ToolOutput, revision: str) -> Json:
    """Encode an output; structured content is also added as text, for clients that read nothing else."""
    content = [_encode_part(part, index, revision) for index, part in enumerate(output.content)]
    structured = output.structured
    if structured is not None and not any(part["type"] == "text" for part in content):
        content.append({"type": "text", "text": encode(structured).decode()})
    result: Json = {"content": content, "isError": output.is_error}
    if structured is not None and (has_any_structure(revision) or isinstance(structured, Mapping)):
        result["structuredContent"] = structured
    if output.meta:
        result["_meta"] = dict(output.meta)
    return result


def encode_failure(message: str) -> Json:
    """Encode the result of a failed call; the message is written for the model."""
    return {"content": [{"type": "text", "text": message}], "isError": True}


def _encode_part(part: Text | Media, index: int, revision: str) -> Json:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Media(kind="image" | "audio" as kind, data=str() as data) if kind == "image" or has_audio(revision):
            return {"type": kind, "data": data, "mimeType": part.mime or _UNKNOWN_MIME}
        case Media(data=str() as data):
            # An embedded resource must have a URI; one that another MCP server sent has it in its name.
            name = part.name or part.kind
            uri = name if "://" in name else f"toolgate://output/{index}/{quote(name, safe='')}"
            return {"type": "resource", "resource": {"uri": uri, "mimeType": part.mime or _UNKNOWN_MIME, "blob": data}}
        # MCP has no images by URL, only links.
        case Media(url=str() as url) if has_links(revision):
            mime = {"mimeType": part.mime} if part.mime else {}
            return {"type": "resource_link", "uri": url, "name": part.name or url, **mime}
        case _:
            place = part.url or part.file_id or "nowhere"
            return {"type": "text", "text": f"[{part.kind} {part.name or ''} at {place}]".replace("  ", " ")}
