"""JSON that is nested deeply is refused or passed on, never an internal error."""

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
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import KeySettings, Secret
from toolgate.testing import ScriptedModel

SOURCE = Path(__file__).parents[2] / "src" / "toolgate"
LIMITED = KeySettings(name="ann", key=Secret("ann-key"), tokens_per_minute=10_000_000)
DEEP = "[" * 50_000
ARGUMENTS = '{"a":' + "[" * 50_000 + "]" * 50_000 + "}"


@pytest.fixture(scope="module")
def port() -> Generator[int]:
    player = Player()
    player.scripted = ScriptedModel(["Hello."] * 50)
    gate = Toolgate(with_keys(LIMITED), {"played": player})
    with served(gate, encode_error=gate.refuse) as server:
        yield server.port


def ask(port: int, path: str, body: bytes) -> tuple[int, bytes]:
    headers = ("Authorization: Bearer ann-key", "Content-Type: application/json", f"Content-Length: {len(body)}")
    with Client(port) as client:
        client.send(request("POST", path, *headers, body=body))
        return client.read()


BODIES: dict[str, tuple[str, str]] = {
    "chat": ("/v1/chat/completions", '{"model":"played","messages":[{"role":"user","content":"Hi"}],"x":@}'),
    "messages": (
        "/v1/messages",
        '{"model":"played","max_tokens":9,"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":'
        '[{"type":"tool_use","id":"t","name":"f","input":@}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t"}]}]}',
    ),
    "count_tokens": (
        "/v1/messages/count_tokens",
        '{"model":"played","messages":[{"role":"user","content":[{"type":"text","text":"Hi","x":@}]}]}',
    ),
    "responses": ("/v1/responses", '{"model":"played","input":[{"role":"user","content":"Hi","x":@}]}'),
    "in the background": ("/v1/responses", '{"model":"played","input":"Hi","background":true,"x":@}'),
    "conversations": ("/v1/conversations", '{"items":[{"type":"message","role":"user","content":"Hi","x":@}]}'),
    "ollama": ("/api/chat", '{"model":"played","stream":false,"messages":[{"role":"user","content":"Hi","x":@}]}'),
}


def nested(template: str, levels: int) -> bytes:
    """The body with objects in the place of `@`, so that it has this many levels in all."""
    before = template.partition("@")[0]
    inner = levels - sum(map(before.count, "[{")) + sum(map(before.count, "]}"))
    return template.replace("@", '{"a":' * inner + "1" + "}" * inner).encode()


@pytest.mark.parametrize("padding", [b"", b" " * 70_000], ids=["small", "large"])
@pytest.mark.parametrize("name", BODIES)
def test_a_body_may_be_nested_512_levels_deep(port: int, name: str, padding: bytes) -> None:
    path, template = BODIES[name]
    status, output = ask(port, path, nested(template, 512) + padding)
    assert status == 200, output
    for levels in (513, 900, 968, 980, 992, 5_000):
        status, output = ask(port, path, nested(template, levels) + padding)
        error = json.loads(output)["error"]
        message = error if isinstance(error, str) else error["message"]
        assert (status, message) == (400, "The body is nested deeper than 512 levels."), levels
        assert isinstance(error, str) or error.get("code", "invalid_json") == "invalid_json"


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
