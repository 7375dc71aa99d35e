"""A gateway that editors can join, answers of every client API read alike, and tools to offer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from tests.api.http_client import PATHS, body
from tests.stage import MEMORY, QUIET
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import Config, ServerSettings
from toolgate.http.listener import listening

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


@asynccontextmanager
async def gateway(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway with these settings; its base URL is the gateway's."""
    config = Config(**{"server": ServerSettings(port=0), "storage": MEMORY, "log": QUIET, **settings})
    async with listening(Toolgate(config)) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        yield client


def tool(client: str, name: str) -> dict[str, Any]:
    """The definition of a tool in the client's dialect."""
    match client:
        case "openai_responses":
            return {"type": "function", "name": name, "description": f"The {name}.", "parameters": WEATHER}
        case "anthropic":
            return {"name": name, "description": f"The {name}.", "input_schema": WEATHER}
        case _:
            function = {"name": name, "description": f"The {name}.", "parameters": WEATHER}
            return {"type": "function", "function": function}


class Answer(msgspec.Struct):
    """What a client reads: text, reasoning, calls by name and arguments, and the whole response."""

    status: int
    text: str
    reasoning: str
    calls: list[tuple[str, Any]]
    raw: str
    headers: dict[str, str]


async def ask(http: httpx.AsyncClient, client: str, model: str, stream: bool, text: str = "Hi", **more: Any) -> Answer:
    """Ask in a client's dialect and read its answer."""
    headers = more.pop("headers", {})
    response = await http.post(PATHS[client], json=body(client, model, stream, text, **more), headers=headers)
    events = _events(client, response.text) if stream and response.status_code == 200 else [response.json()]
    read = Answer(response.status_code, "", "", [], response.text, dict(response.headers))
    if response.status_code == 200:
        _READERS[client](events, read)
    return read


def _events(client: str, text: str) -> list[Any]:
    if client == "ollama":
        return [msgspec.json.decode(line) for line in text.splitlines()]
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [msgspec.json.decode(line) for line in lines if line != "[DONE]"]


def _chat(events: list[Any], read: Answer) -> None:
    arguments: list[tuple[str, str]] = []
    for event in events:
        for choice in event.get("choices", ()):
            message = choice.get("delta") or choice.get("message") or {}
            read.text += message.get("content") or ""
            read.reasoning += message.get("reasoning_content") or message.get("reasoning") or ""
            for call in message.get("tool_calls") or ():
                function = call["function"]
                if function.get("name"):
                    arguments.append((function["name"], ""))
                name, before = arguments[-1]
                arguments[-1] = (name, before + function.get("arguments", ""))
    read.calls = [(name, msgspec.json.decode(text)) for name, text in arguments]


def _responses(events: list[Any], read: Answer) -> None:
    whole = events[-1].get("response", events[-1])
    for item in whole["output"]:
        match item["type"]:
            case "message":
                read.text += "".join(part["text"] for part in item["content"])
            case "function_call":
                read.calls.append((item["name"], msgspec.json.decode(item["arguments"])))
            case "reasoning":
                parts = [*item.get("summary", ()), *(item.get("content") or ())]
                read.reasoning += "".join(part["text"] for part in parts)


def _messages(events: list[Any], read: Answer) -> None:
    if "content" in events[0]:
        for block in events[0]["content"]:
            read.text += block.get("text", "")
            read.reasoning += block.get("thinking", "")
            if block["type"] == "tool_use":
                read.calls.append((block["name"], block["input"]))
        return
    arguments: list[tuple[str, str]] = []
    for event in events:
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            arguments.append((event["content_block"]["name"], ""))
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            read.text += delta.get("text", "")
            read.reasoning += delta.get("thinking", "")
            if delta["type"] == "input_json_delta":
                arguments[-1] = (arguments[-1][0], arguments[-1][1] + delta["partial_json"])
    read.calls = [(name, msgspec.json.decode(text or "{}")) for name, text in arguments]


def _ollama(events: list[Any], read: Answer) -> None:
    for event in events:
        message = event["message"]
        read.text += message.get("content") or ""
        read.reasoning += message.get("thinking") or ""
        read.calls += [
            (one["function"]["name"], one["function"]["arguments"]) for one in message.get("tool_calls") or ()
        ]


_READERS = {"openai_chat": _chat, "openai_responses": _responses, "anthropic": _messages, "ollama": _ollama}
