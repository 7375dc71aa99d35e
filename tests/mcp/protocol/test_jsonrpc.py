"""JSON-RPC messages as both sides of MCP encode and decode them."""

from typing import Any

import pytest

from toolgate.mcp.protocol.jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    Message,
    RpcErrorResponse,
    RpcNotification,
    RpcRequest,
    RpcRequestRefused,
    RpcResultResponse,
    decode_messages,
    parse_message,
)


@pytest.mark.parametrize(
    "message",
    [
        RpcRequest(1, "tools/list", {}),
        RpcRequest("a", "tools/call", {"name": "x", "_meta": {"progressToken": 1}}),
        RpcNotification("notifications/initialized"),
        RpcNotification("notifications/cancelled", {"requestId": 1}),
        RpcResultResponse(1, {"tools": []}),
        RpcErrorResponse(1, -32601, "Method not found", {"code": "x"}),
        RpcErrorResponse(None, -32700, "no JSON"),
    ],
)
def test_a_message_is_decoded_as_it_was_encoded(message: Message) -> None:
    assert decode_messages(message.encode()) == [message]


def test_a_request_always_has_params_and_a_notification_only_if_it_has_some() -> None:
    assert RpcRequest(1, "ping").encode() == b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{}}'
    assert RpcNotification("ping").encode() == b'{"jsonrpc":"2.0","method":"ping"}'


@pytest.mark.parametrize(
    ("value", "code", "id"),
    [
        ([], INVALID_REQUEST, None),
        ({"id": 1, "method": "ping"}, INVALID_REQUEST, 1),
        ({"jsonrpc": "2.0", "id": 1, "method": 7}, INVALID_REQUEST, 1),
        ({"jsonrpc": "2.0", "id": None, "method": "ping"}, INVALID_REQUEST, None),
        ({"jsonrpc": "2.0", "id": True, "method": "ping"}, INVALID_REQUEST, None),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}, INVALID_PARAMS, 1),
    ],
)
def test_the_server_names_the_mistake_of_a_message(value: Any, code: int, id: int | None) -> None:
    with pytest.raises(RpcRequestRefused) as refused:
        parse_message(value)
    assert (refused.value.response().code, refused.value.response().id) == (code, id)


def test_the_server_ignores_responses_because_it_sends_no_requests() -> None:
    assert parse_message({"jsonrpc": "2.0", "id": 1, "result": "text"}) is None


def test_the_client_skips_what_is_no_message_and_keeps_the_rest_of_a_batch() -> None:
    strange = b'{"jsonrpc":"2.0"}, {"jsonrpc":"2.0","result":3}, {"jsonrpc":"2.0","id":1,"method":7}'
    batch = b'[7, %b, {"jsonrpc":"2.0","method":"m","params":[]}]' % strange
    assert decode_messages(batch) == [RpcNotification("m")]


def test_the_client_takes_a_request_whose_id_it_cannot_answer_for_a_notification() -> None:
    assert decode_messages(b'{"jsonrpc":"2.0","id":null,"method":"m"}') == [RpcNotification("m")]
    assert decode_messages(b'{"jsonrpc":"2.0","id":"%s","method":"m"}' % (b"x" * 2000)) == [RpcNotification("m")]
