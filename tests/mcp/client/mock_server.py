"""An MCP server on pipes that misbehaves as it is told: `python mock_server.py MODE DIRECTORY`. Knows nothing of Toolgate.

What it is asked is written to files in the directory, so that a test sees what really arrived.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

MODE, STATE = sys.argv[1], Path(sys.argv[2])
OBJECT = {"type": "object"}


def note(name: str, line: str) -> None:
    """Append a line to one of the files."""
    with (STATE / name).open("a") as file:
        file.write(line + "\n")


def write(message: Any) -> None:
    """Say something, JSON or not."""
    text = message if isinstance(message, str) else json.dumps({"jsonrpc": "2.0", **message})
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def hear() -> dict[str, Any]:
    """The next message; ends with the pipe."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    note("heard", line.rstrip())
    return dict(json.loads(line))


def tools() -> list[dict[str, Any]]:
    """What it offers; a file may say otherwise."""
    offered = STATE / "tools.json"
    if offered.exists():
        return list(json.loads(offered.read_text()))
    if MODE in ("paginated", "circular"):
        return [{"name": f"tool_{number}", "inputSchema": OBJECT} for number in range(250)]
    return [{"name": "echo", "description": "Says it again.", "inputSchema": OBJECT}]


def page(cursor: str | None) -> dict[str, Any]:
    """One page of the list, or all of it."""
    if MODE == "greedy":
        number = int(cursor or 0)
        large = {"name": f"tool_{number}", "description": "x" * 3_900_000, "inputSchema": OBJECT}
        return {"tools": [large], "nextCursor": str(number + 1)}
    if MODE == "circular":
        return {"tools": tools()[:3], "nextCursor": "again"}
    if MODE != "paginated":
        return {"tools": tools()}
    start = int(cursor or 0)
    more = {"nextCursor": str(start + 20)} if start + 20 < 250 else {}
    return {"tools": tools()[start : start + 20], **more}


def output(text: str) -> dict[str, Any]:
    """A result of words alone."""
    return {"content": [{"type": "text", "text": text}]}


def call(message: dict[str, Any]) -> dict[str, Any]:
    """Run a tool, in this mode's own way."""
    id, params = message["id"], message["params"]
    note("calls", json.dumps(params["arguments"]))
    match MODE:
        case "dies":
            sys.stderr.write("out of cheese\n")
            sys.exit(3)
        case "wrong_id":
            write({"id": id + 1000, "result": output("forged")})
            write({"id": str(id), "result": output("forged, too")})
        case "late":
            cancelled = hear()
            write({"id": cancelled["params"]["requestId"], "result": output("too late")})
        case "progress":
            for step in range(1, 4):
                progress = {"progressToken": params["_meta"]["progressToken"], "progress": step, "total": 3}
                write({"method": "notifications/progress", "params": {**progress, "message": f"step {step}"}})
        case "stringly":
            progress = {"progressToken": str(params["_meta"]["progressToken"]), "progress": 1}
            write({"method": "notifications/progress", "params": progress})
        case "asks":
            return output(
                json.dumps([answer_to(method) for method in ("ping", "sampling/createMessage", "roots/list")])
            )
        case "environment":
            return output(json.dumps(dict(os.environ)))
        case "invalid_json":
            write("{not json")
            write("[1, 2")
            write('"a string"')
        case "floods_stderr":
            sys.stderr.write("noise " * 500_000)
        case "long_line":
            write("x" * (5 * 1024 * 1024))
        case "dense":
            return {"content": [], "x": [[]] * 1_000_000}
        case "blocks":
            return {"content": [{"type": "text", "text": "x"}] * 40_000}
        case "crowded":
            write("[" + ",".join(['{"jsonrpc":"2.0","method":"notifications/message"}'] * 40_000) + "]")
        case _ if MODE.startswith("deep_"):
            inner = int(MODE.removeprefix("deep_")) - 2
            deep = "[" * inner + "]" * inner
            write(f'{{"jsonrpc":"2.0","id":{id},"result":{{"content":[],"structuredContent":{deep}}}}}')
        case "enormous":
            return output("x" * (5 * 1024 * 1024))
        case "logs":
            for number in range(5000):
                write({"method": "notifications/message", "params": {"level": "info", "data": "x" * 100 + str(number)}})
    return output(json.dumps(params["arguments"]))


def answer_to(method: str) -> Any:
    """What the client says to a request of ours."""
    write({"id": f"ours-{method}", "method": method})
    return hear()


def discovered() -> dict[str, Any]:
    """The handshake of a server without handshakes."""
    return {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "resultType": "complete"}


def answer(message: dict[str, Any]) -> None:
    """Answer a request."""
    id = message["id"]
    match message["method"]:
        case "initialize" if MODE == "stateless":
            error = {"code": -32022, "message": "no", "data": {"supported": ["2026-07-28"]}}
            write({"id": id, "error": error})
        case "initialize":
            capabilities = {"tools": {"listChanged": True}}
            version = message["params"]["protocolVersion"] if MODE != "old" else "2024-11-05"
            write({"id": id, "result": {"protocolVersion": version, "capabilities": capabilities, "serverInfo": {}}})
        case "server/discover":
            write({"id": id, "result": discovered()})
        case "tools/list":
            note("lists", "")
            write({"id": id, "result": page(message.get("params", {}).get("cursor"))})
            if MODE == "storm":
                for _ in range(500):
                    write({"method": "notifications/tools/list_changed"})
        case "tools/call" if MODE.startswith("answers_"):
            write({"id": id, **json.loads(MODE.removeprefix("answers_"))})
        case "tools/call":
            write({"id": id, "result": call(message)})


def main() -> None:
    """Serve until the pipe closes, or until the mode says otherwise."""
    note("pids", str(os.getpid()))
    if MODE == "grandchild":
        note("pids", str(subprocess.Popen(["sleep", "1000"]).pid))
    if MODE == "hangs_in_initialize":
        hear()
        sys.stdin.read()
    if MODE == "deaf":
        subprocess.Popen(["sleep", "1000"]).wait()
    while MODE == "garbage":
        write("garbage")
    while True:
        message = hear()
        if "id" in message and "method" in message:
            answer(message)
        elif message.get("method") == "notifications/poke":
            write({"method": "notifications/tools/list_changed"})


main()
