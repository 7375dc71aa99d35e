"""Schemas of a client's tool that double with every reference, nest deeply, or hold patterns that backtrack."""

import json
from typing import Any

from tests.laws.answers import whole
from tests.laws.gateway import Gateway
from toolgate.conversation.message import ToolCall


def doubling(levels: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {
        f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(levels)
    }
    definitions[f"d{levels}"] = {"type": "integer"}
    return {"type": "object", "properties": {"at": {"$ref": "#/$defs/d0"}}, "$defs": definitions}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"at": schema}}
    return schema


def wide(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{n}": {"type": "string", "enum": ["a"] * 20} for n in range(count)}}


SCHEMAS = {
    "doubling": doubling(30),
    "deep": deep(150),
    "wide": wide(5_000),
    "pattern": {"type": "object", "properties": {"at": {"type": "string", "pattern": "^(a+)+$"}}},
    "circle": {"type": "object", "properties": {"at": {"$ref": "#/properties/at"}}},
}
VARIANTS = tuple(f"{kind}-{model}" for kind in SCHEMAS for model in ("anthropic", "ollama", "text", "promoted"))


async def play(gateway: Gateway, variant: str) -> None:
    kind, model = variant.split("-")
    call = ToolCall("call_1", "look", json.dumps({"at": "a" * 40 + "!"}))
    gateway.play(whole("openai_chat" if model in ("text", "promoted") else model, call))
    tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMAS[kind]}}]
    assert (await gateway.ask("openai_chat", model, tools=tools)).status in (200, 400, 502)
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMAS[kind]}}
    assert (await gateway.ask("openai_chat", model, response_format=form)).status in (200, 400, 502)
