"""A bad request gets an error in its own dialect, at once, and never a server error."""

import time
from typing import Any

import msgspec
import pytest

from tests.api.http_client import CLIENTS, PATHS, HttpResponse, ask, body
from tests.stage import Stage
from toolgate.conversation.message import plain_text

pytestmark = pytest.mark.parametrize("client", CLIENTS)

MALFORMED = {
    "empty": b"",
    "half": b'{"model":',
    "trailing comma": b'{"model":"openai_chat",}',
    "not an object": b"[1, 2]",
    "a string": b'"hello"',
    "deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "deep list": b"[" * 100_000,
    "a million keys": b"{" + b",".join(b'"k%d":1' % number for number in range(500_000)) + b"}",
    "a long number": b'{"model":"openai_chat","seed":' + b"9" * 5000 + b"}",
    "NaN": b'{"model":"openai_chat","temperature":NaN}',
    "a key twice": b'{"model":"a","model":"openai_chat"}',
    "half a surrogate pair in half a body": b'{"model":"openai_chat","x":"\\ud83d"',
    "raw NUL": b'{"model":"open\x00ai"}',
    "bad UTF-8": b'{"model":"\xff\xfe"}',
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": "{}".encode("utf-16"),
}
CONFUSED: dict[str, dict[str, Any]] = {
    "model a number": {"model": 7},
    "unknown model": {"model": "nonesuch"},
    "tools a string": {"tools": "x"},
    "tools of numbers": {"tools": [1]},
    "tool without a name": {"tools": [{"type": "function", "function": {}}]},
    "stream a word": {"stream": "yes"},
}


def check_shape(client: str, received: HttpResponse) -> None:
    """An error in the words of the client's dialect."""
    decoded = msgspec.json.decode(received.body)
    if client == "ollama":
        assert isinstance(decoded["error"], str)
    elif client == "anthropic":
        assert decoded["type"] == "error"
        assert decoded["error"]["type"]
        assert decoded["error"]["message"]
        assert decoded["request_id"] == received.headers["request-id"]
    else:
        assert set(decoded["error"]) >= {"message", "type", "param", "code"}
    assert received.headers["x-request-id"]


@pytest.mark.parametrize("payload", MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_body_is_a_400(stage: Stage, client: str, payload: bytes) -> None:
    """fault: C9"""
    received = await ask(stage.url, PATHS[client], payload)
    assert received.status == 400
    check_shape(client, received)


@pytest.mark.parametrize("change", CONFUSED.values(), ids=CONFUSED)
async def test_a_field_of_the_wrong_type_is_a_400_or_404(stage: Stage, client: str, change: dict[str, Any]) -> None:
    """fault: C10"""
    received = await ask(stage.url, PATHS[client], {**body(client, "openai_chat", False), **change})
    assert received.status in (400, 404)
    check_shape(client, received)


async def test_messages_of_the_wrong_type_are_a_400(stage: Stage, client: str) -> None:
    """fault: C10"""
    field = "input" if client == "openai_responses" else "messages"
    strange = [] if client == "ollama" else [[{"role": "emperor", "content": "x"}]]  # Ollama's models may have any role
    for wrong in ({}, 7, [7], [{"role": "user", "content": 7}], *strange):
        received = await ask(stage.url, PATHS[client], {**body(client, "openai_chat", False), field: wrong})
        assert received.status == 400, wrong
        check_shape(client, received)


@pytest.mark.parametrize(
    "kind",
    [
        "multipart/form-data; boundary=x",
        "text/plain",
        "application/json; charset=utf-16",
        "application/json; charset=utf-7",
        "text/plain; application/json",
    ],
)
async def test_a_body_that_claims_to_be_something_else_is_a_415(stage: Stage, client: str, kind: str) -> None:
    """fault: C11"""
    payload = body(client, "openai_chat", False)
    received = await ask(stage.url, PATHS[client], payload, f"content-type: {kind}")
    assert received.status == 415
    check_shape(client, received)


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "application/octet-stream"])
async def test_json_is_read_under_the_content_type_that_programs_send_by_default(
    stage: Stage, client: str, kind: str
) -> None:
    """`curl -d` and LiteLLM's Ollama client name no type of their own."""
    stage.play("Hello.")
    received = await ask(stage.url, PATHS[client], body(client, "openai_chat", False), f"content-type: {kind}")
    assert received.status == 200
    assert b"Hello." in received.body


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "application/octet-stream"])
@pytest.mark.parametrize(
    "sign", ["origin: http://127.0.0.1:9", "sec-fetch-site: cross-site", "sec-fetch-mode: no-cors"]
)
async def test_a_form_that_a_web_page_posts_is_a_415(stage: Stage, client: str, kind: str, sign: str) -> None:
    received = await ask(stage.url, PATHS[client], body(client, "openai_chat", False), f"content-type: {kind}", sign)
    assert received.status == 415
    check_shape(client, received)


async def test_a_body_over_the_limit_is_a_413(stage: Stage, client: str) -> None:
    """fault: C8"""
    received = await ask(stage.url, PATHS[client], b'{"x":"' + b"y" * (10 * 1024 * 1024) + b'"}')
    assert received.status == 413
    decoded = msgspec.json.decode(received.body)
    assert "error" in decoded


async def test_129_tools_are_refused_with_the_limit_named(stage: Stage, client: str) -> None:
    """fault: L1; field: E31"""
    if client == "anthropic":
        tools: list[Any] = [{"name": f"t{n}", "input_schema": {"type": "object"}} for n in range(129)]
    elif client == "openai_responses":
        tools = [{"type": "function", "name": f"t{n}", "parameters": {}} for n in range(129)]
    else:
        tools = [{"type": "function", "function": {"name": f"t{n}", "parameters": {}}} for n in range(129)]
    received = await ask(stage.url, PATHS[client], body(client, "openai_chat", False, tools=tools))
    assert received.status == 400
    assert b"128" in received.body


async def test_a_bad_schema_is_refused_with_its_place(stage: Stage, client: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "strange"}}}
    if client == "anthropic":
        tools: list[Any] = [{"name": "t", "input_schema": schema}]
    elif client == "openai_responses":
        tools = [{"type": "function", "name": "t", "parameters": schema}]
    else:
        tools = [{"type": "function", "function": {"name": "t", "parameters": schema}}]
    received = await ask(stage.url, PATHS[client], body(client, "openai_chat", False, tools=tools))
    assert received.status == 400
    assert b"/properties/a/type" in received.body


async def test_bad_input_is_answered_quickly(stage: Stage, client: str) -> None:
    """fault: C9; the processor's time counts, for a busy machine makes any answer late"""

    async def used(payload: bytes) -> float:
        start = time.process_time()
        await ask(stage.url, PATHS[client], payload)
        return time.process_time() - start

    for name, payload in MALFORMED.items():
        assert min([await used(payload) for _ in range(3)]) < 0.05, name


async def test_half_a_surrogate_pair_in_a_conversation_is_replaced_with_a_warning(stage: Stage, client: str) -> None:
    model = stage.play("Hello.")
    request = msgspec.json.encode(body(client, "openai_chat", False, "cut HERE")).replace(b"HERE", b"\\ud83d")
    received = await ask(stage.url, PATHS[client], request)
    assert received.status == 200, received.body
    assert "U+FFFD" in received.headers["x-toolgate-warning"]
    assert plain_text(model.requests[0].messages[-1].parts) == "cut \ufffd"
