"""JSON that is nested deeper than any decoder goes is refused or passed on, never an internal error."""

import ast
import base64
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.http.raw_client import Client, request, served
from tests.http.websocket_server import with_keys
from tests.stage import Player
from toolgate.app.asgi_app import Toolgate
from toolgate.config import KeySettings, Secret
from toolgate.testing import ScriptedModel

SOURCE = Path(__file__).parents[2] / "src" / "toolgate"
LIMITED = KeySettings(name="ann", key=Secret("ann-key"), tokens_per_minute=10_000_000)
DEEP = "[" * 50_000
ARGUMENTS = '{"a":' + "[" * 50_000 + "]" * 50_000 + "}"


@pytest.fixture(scope="module")
def port() -> Generator[int]:
    player = Player()
    player.scripted = ScriptedModel(["Hello."] * 20)
    gate = Toolgate(with_keys(LIMITED), {"played": player})
    with served(gate, encode_error=gate.refuse) as server:
        yield server.port


def ask(port: int, path: str, body: bytes) -> tuple[int, bytes]:
    headers = ("Authorization: Bearer ann-key", "Content-Type: application/json", f"Content-Length: {len(body)}")
    with Client(port) as client:
        client.send(request("POST", path, *headers, body=body))
        return client.read()


@pytest.mark.parametrize("body", [b'{"x":' + DEEP.encode(), b'{"model":"\xff"}', b'{"\xff":1}'])
def test_a_body_that_cannot_be_decoded_is_the_clients_fault_also_where_its_cost_is_estimated(
    port: int, body: bytes
) -> None:
    status, output = ask(port, "/v1/chat/completions", body)
    assert (status, json.loads(output)["error"]["code"]) == (400, "invalid_json")


def called(arguments: str) -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "Done."},
    ]


@pytest.mark.parametrize("arguments", [ARGUMENTS, '{"a":' + DEEP, json.dumps(ARGUMENTS)])
def test_a_past_call_with_deep_arguments_is_passed_on(port: int, arguments: str) -> None:
    body = {"model": "played", "messages": called(arguments)}
    assert ask(port, "/v1/chat/completions", json.dumps(body).encode())[0] == 200


def test_a_forged_envelope_of_reasoning_that_is_deep_is_no_internal_error(port: int) -> None:
    from toolgate.conversation.reasoning_envelope import _PREFIX

    sealed = _PREFIX + base64.urlsafe_b64encode(('{"dialect":"x","fields":{"a":' + DEEP).encode()).decode()
    past = {"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": sealed}]}
    messages = [{"role": "user", "content": "Hi"}, past, {"role": "user", "content": "And?"}]
    body = {"model": "played", "max_tokens": 9, "messages": messages}
    assert ask(port, "/v1/messages", json.dumps(body).encode())[0] == 200


def test_every_handler_of_broken_json_also_handles_deep_json() -> None:
    """msgspec raises RecursionError, which is none of its own errors."""
    sources = {path: path.read_text() for path in SOURCE.rglob("*.py")}
    for path in (path for path, text in sources.items() if "MsgspecError" in text or "msgspec.DecodeError" in text):
        for node in ast.walk(ast.parse(sources[path])):
            if not isinstance(node, ast.Try):
                continue
            caught = [ast.unparse(handler.type) for handler in node.handlers if handler.type is not None]
            if any("MsgspecError" in one or "msgspec.DecodeError" in one for one in caught):
                assert any("RecursionError" in one or one == "Exception" for one in caught), f"{path}:{node.lineno}"
