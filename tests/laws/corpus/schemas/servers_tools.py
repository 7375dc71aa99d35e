"""Schemas of registered server tools that double with every reference or backtrack, and arguments that do not fit."""

from typing import Any

from tests.laws.gateway import Gateway, call_answer, chat_answer


def doubling(levels: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {
        f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(levels)
    }
    definitions[f"d{levels}"] = {"type": "integer"}
    return {"type": "object", "properties": {"at": {"$ref": "#/$defs/d0"}}, "$defs": definitions}


NUMBERS = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/n"}}]}
SCHEMAS: dict[str, Any] = {
    "doubling": doubling(25),
    "pattern": {"type": "object", "properties": {"at": {"type": "string", "pattern": "^(a|a)*$"}}},
    "unique": {"type": "object", "properties": {"at": {"type": "array", "uniqueItems": True}}},
    "wide": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(400)}},
    "recursive": {"type": "object", "properties": {"at": {"$ref": "#/$defs/n"}}, "$defs": {"n": NUMBERS}},
}
ARGUMENTS: dict[str, Any] = {
    "doubling": {"at": "no"},
    "pattern": {"at": "a" * 60 + "!"},
    "unique": {"at": [[number] for number in range(20_000)]},
    "wide": {f"p{n}": n for n in range(400)},
    "recursive": {"at": [[1] * 100] * 800},
}
VARIANTS = tuple(SCHEMAS)


async def play(gateway: Gateway, kind: str) -> None:
    tool = {
        "type": "http",
        "name": f"registered_{kind}",
        "description": "Registered.",
        "inputSchema": SCHEMAS[kind],
        "url": "https://192.0.2.1/none",
    }
    registered = await gateway.post("/v1/tools", tool)
    assert registered.status == (400 if kind == "doubling" else 201), registered.body
    gateway.play(call_answer(tool["name"], ARGUMENTS[kind]), chat_answer())
    assert (await gateway.ask_with_tools()).status in (200, 400)
    await gateway.request("DELETE", f"/v1/tools/{tool['name']}")
