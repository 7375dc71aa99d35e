"""An MCP server on pipes that sends as much as it is asked for: `python mcp_server.py`. Knows nothing of Toolgate.

The tool `send` takes `form` (`text`, `many`, `structured`, `progress`, `blank`, `offer`, `small`, `changed`), `text` and
`count`. With `offer` it offers so many tools of large schemas, with fields named after the text, beside itself from then on,
with `small` so many small ones, and with `changed` so many that are named after the text, each time with other descriptions.
"""

import json
import sys
from typing import Any

TOOL = {
    "name": "send",
    "description": "Sends as much as it is asked for.",
    "inputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
}


more: list[dict[str, Any]] = []


def large_tool(number: int, text: str) -> dict[str, Any]:
    """A tool whose schema takes long to check, within all limits; with another text it is another schema."""
    choice = {"anyOf": [{"type": "string"}, {"type": "null"}], "enum": ["a"]}
    fields = {f"{text}_{number}_{each}": choice for each in range(700)}
    return {**TOOL, "name": f"large_{number}", "inputSchema": {"type": "object", "properties": fields}}


def changed_tools(text: str, count: int) -> list[dict[str, Any]]:
    """Tools of 20,000 fields altogether, whose descriptions are not those of the tools that are offered now."""
    schema = {"type": "object", "properties": {f"field_{each}": {"type": "string"} for each in range(20_000 // count)}}
    description = "Changed." if more and more[0]["description"] == "New." else "New."
    tool = {**TOOL, "description": description, "inputSchema": schema}
    return [{**tool, "name": f"{text}_{number}"} for number in range(count)]


def write(text: str) -> None:
    """Send one line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def send(id: Any, token: Any, form: str, text: str, count: int) -> None:
    """Answer a call in the form that it asks for."""
    if form == "progress":
        params = {"progressToken": token, "progress": 1, "message": text}
        line = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}) + "\n"
        sys.stdout.write(line * count)
    elif form == "blank":
        sys.stdout.write((text + "\n") * count)
    elif form == "small":
        more[:] = [{**TOOL, "name": f"small_{number}"} for number in range(count)]
        write(json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}))
    elif form == "changed":
        more[:] = changed_tools(text, count) if count else []
        write(json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}))
    elif form == "offer":
        more[:] = [large_tool(number, text) for number in range(count)]
        write(json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}))
    parts = [{"type": "text", "text": text}] * count if form == "many" else [{"type": "text", "text": "done"}]
    result: dict[str, Any] = {"content": parts}
    if form == "text":
        result = {"content": [{"type": "text", "text": text * count}]}
    elif form == "structured":
        result["structuredContent"] = {"rows": [{"n": number, "text": text} for number in range(count)]}
    write(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}))


def main() -> None:
    """Answer until the pipe ends."""
    for line in sys.stdin:
        message = json.loads(line)
        id, params = message.get("id"), message.get("params") or {}
        match message.get("method"):
            case "initialize":
                version = params.get("protocolVersion", "2025-06-18")
                info = {"name": "hostile", "version": "1"}
                result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
                write(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}))
            case "tools/list":
                write(f'{{"jsonrpc":"2.0","id":{json.dumps(id)},"result":{{"tools":{json.dumps([TOOL, *more])}}}}}')
            case "tools/call":
                asked = params.get("arguments") or {}
                token = (params.get("_meta") or {}).get("progressToken")
                send(id, token, asked.get("form", "text"), asked.get("text", ""), asked.get("count", 1))
            case _ if id is not None:
                write(json.dumps({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "unknown"}}))


if __name__ == "__main__":
    main()
