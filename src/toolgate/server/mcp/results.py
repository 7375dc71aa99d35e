"""What a call gave back, as `tools/call` tells it. Pure."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from toolgate.conversation.message import Media, Text
from toolgate.server.mcp.jsonrpc import Json
from toolgate.server.mcp.revisions import has_any_structure, has_audio, has_links
from toolgate.tools.tool import Output
from toolgate.wire.jsontext import encode

_UNKNOWN = "application/octet-stream"


def encode_output(output: Output, revision: str) -> Json:
    """The result of a call; what is structured also stands in the text, for clients that read nothing else."""
    content = [_part(part, place, revision) for place, part in enumerate(output.content)]
    structured = output.structured
    if structured is not None and not any(part["type"] == "text" for part in content):
        content.append({"type": "text", "text": encode(structured).decode()})
    told: Json = {"content": content, "isError": output.is_error}
    if structured is not None and (has_any_structure(revision) or isinstance(structured, Mapping)):
        told["structuredContent"] = structured
    if output.meta:
        told["_meta"] = dict(output.meta)
    return told


def encode_failure(message: str) -> Json:
    """The result of a call that failed, in words for the model."""
    return {"content": [{"type": "text", "text": message}], "isError": True}


def _part(part: Text | Media, place: int, revision: str) -> Json:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Media(kind="image" | "audio" as kind, data=str() as data) if kind == "image" or has_audio(revision):
            return {"type": kind, "data": data, "mimeType": part.mime or _UNKNOWN}
        case Media(data=str() as data):
            return {"type": "resource", "resource": _blob(part, place, data)}
        case Media(url=str() as url) if has_links(revision):
            return {"type": "resource_link", "uri": url, "name": part.name or url} | _mime(part)
        case _:
            where = part.url or part.file_id or "nowhere"
            return {"type": "text", "text": f"[{part.kind} {part.name or ''} at {where}]".replace("  ", " ")}


def _blob(part: Media, place: int, data: str) -> Json:
    """A file must have an address; one that came from elsewhere has it in its name."""
    name = part.name or part.kind
    uri = name if "://" in name else f"toolgate://output/{place}/{quote(name, safe='')}"
    return {"uri": uri, "mimeType": part.mime or _UNKNOWN, "blob": data}


def _mime(part: Media) -> dict[str, Any]:
    return {"mimeType": part.mime} if part.mime else {}
