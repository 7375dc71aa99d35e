"""OpenAPI documents that a reload reads: large, nested, doubling, of many operations, of many servers, garbage."""

import json
from typing import Any

from tests.laws.gateway import Gateway

BASE: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "t", "version": "1"},
    "servers": [{"url": "https://x.example"}],
}
OK = {"responses": {"200": {"description": "ok"}}}


def body(schema: Any) -> dict[str, Any]:
    return {"/a": {"post": {**OK, "requestBody": {"content": {"application/json": {"schema": schema}}}}}}


def doubling(levels: int) -> dict[str, Any]:
    own = {f"d{n}": {"anyOf": [{"$ref": f"#/components/schemas/d{n + 1}"}] * 2} for n in range(levels)}
    return {**BASE, "paths": body({"$ref": "#/components/schemas/d0"}), "components": {"schemas": own}}


VARIABLES = {f"v{number}": {"default": "x" * 60} for number in range(60)}
FIELD = {"type": "string", "description": "x" * 40}
DOCUMENTS: dict[str, str] = {
    "operations": json.dumps({**BASE, "paths": {f"/p{number}": {"get": OK} for number in range(9_000)}}),
    "fields": json.dumps(
        {**BASE, "paths": body({"type": "object", "properties": {f"f{n}": FIELD for n in range(20_000)}})}
    ),
    "doubling": json.dumps(doubling(300)),
    "variables": json.dumps(
        {
            **BASE,
            "servers": [{"url": "https://" + "{v0}{v1}{v2}" * 500, "variables": VARIABLES}],
            "paths": {"/a": {"get": OK}},
        }
    ),
    "parameters": json.dumps(
        {
            **BASE,
            "paths": {"/a": {"get": {**OK, "parameters": [{"name": f"q{n}", "in": "query"} for n in range(9_000)]}}},
        }
    ),
    "deep": '{"openapi": "3.1.0", "paths": ' + "[" * 300_000,
    "aliases": "openapi: 3.1.0\na0: &a0 [x]\n"
    + "".join([f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)]),
    "lines": "openapi: 3.1.0\npaths:\n"
    + "".join([f"  /p{number}: {{get: {{summary: x}}}}\n" for number in range(20_000)]),
    "garbage": ": - ? !\n" * 50_000,
    "brackets": json.dumps({**BASE, "servers": [{"url": "https://[x"}], "paths": {"/a": {"get": OK}}}),
}
VARIANTS = tuple(DOCUMENTS)


async def play(gateway: Gateway, kind: str) -> None:
    place = gateway.place / "document.yaml"
    place.write_text(DOCUMENTS[kind])
    plain = gateway.configuration()
    tools = {**plain["tools"], "http": {"shop": {"openapi": str(place)}}}
    try:
        await gateway.reload(json.dumps({**plain, "tools": tools}))
    finally:
        await gateway.reload()
