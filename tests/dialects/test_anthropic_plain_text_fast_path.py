"""Plain answers of Messages upstreams, which are decoded in one step."""

from collections.abc import Callable
from typing import Any

import pytest

from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.message import Message, Text
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.anthropic import DIALECT
from toolgate.dialects.dialect import AnswerMetadata
from toolgate.wire.jsontext import encode

REQUEST = ModelRequest("m", (Message("user", (Text("Hi"),)),))


def answer() -> dict[str, Any]:
    """An answer with the fields that Anthropic sends."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m-1",
        "content": [{"type": "text", "text": "Grüß dich 👋", "citations": None}],
        "container": None,
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 9,
            "cache_creation_input_tokens": 2,
            "cache_read_input_tokens": 5,
            "output_tokens": 4,
            "service_tier": "standard",
        },
    }


@pytest.mark.parametrize("relayed", [True, False])
def test_a_plain_answer_is_decoded_as_any_other(relayed: bool) -> None:
    plain = DIALECT.decode_plain_answer(encode(answer()), relayed)
    assert plain == ModelResponse((Text("Grüß dich 👋"),), "stop", Usage(16, 4, 5, 2), "msg_1", "m-1")
    assert plain == DIALECT.upstream.decode_response(answer(), REQUEST)


def test_an_answer_that_is_relayed_without_change_needs_no_repair() -> None:
    response = DIALECT.upstream.decode_response(answer(), REQUEST)
    repaired = DIALECT.upstream.relay_response(answer(), response, REQUEST, AnswerMetadata("msg_own", 1, "m"))
    assert repaired == answer()


def test_a_cut_answer_is_plain_and_ends_for_its_length() -> None:
    plain = DIALECT.decode_plain_answer(encode({**answer(), "stop_reason": "max_tokens"}), True)
    assert plain is not None
    assert plain.reason == "length"


@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": 9, "output_tokens": 4},
        {**answer()["usage"], "cache_read_input_tokens": None},
        {**answer()["usage"], "server_tool_use": None},
        {**answer()["usage"], "output_tokens": 4.0},
    ],
)
def test_counts_that_clients_require_are_added_before_an_answer_is_relayed(usage: dict[str, Any]) -> None:
    body = {**answer(), "usage": usage}
    assert DIALECT.decode_plain_answer(encode(body), True) is None
    assert DIALECT.decode_plain_answer(encode(body), False) == DIALECT.upstream.decode_response(body, REQUEST)


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.update(id=""),
        lambda body: body.update(id="x" * 513),
        lambda body: body.update(type="completion"),
        lambda body: body.update(role="user"),
        lambda body: body.update(model=""),
        lambda body: body.update(usage=None),
        lambda body: body.update(usage={}),
        lambda body: body.update(error={"message": "Overloaded"}),
        lambda body: body.update(stop_reason="tool_use"),
        lambda body: body.update(stop_reason="refusal"),
        lambda body: body.update(stop_reason="model_context_window_exceeded"),
        lambda body: body.update(stop_sequence="END"),
        lambda body: body.update(container={"id": "c"}),
        lambda body: body.update(context_management={"applied_edits": []}),
        lambda body: body.update(news=1),
        lambda body: body.update(content=[]),
        lambda body: body["content"].append(body["content"][0]),
        lambda body: body["content"].insert(0, {"type": "thinking", "thinking": "Hm", "signature": "s"}),
        lambda body: body["content"][0].update(text=""),
        lambda body: body["content"][0].update(text=" \n"),
        lambda body: body["content"][0].update(text=None),
        lambda body: body["content"][0].update(citations=[{"type": "char_location"}]),
        lambda body: body["content"][0].update(news=1),
        lambda body: body.update(padding="x" * 64 * 1024),
    ],
)
def test_an_answer_with_anything_to_repair_or_to_add_is_not_plain(change: Callable[[dict[str, Any]], None]) -> None:
    body = answer()
    change(body)
    assert DIALECT.decode_plain_answer(encode(body), False) is None


@pytest.mark.parametrize("value", [b'"\xff"', b'"\\ud800 "', b"tru", b"{"])
def test_an_answer_that_is_not_valid_json_anywhere_is_not_plain(value: bytes) -> None:
    assert DIALECT.decode_plain_answer(encode(answer()).replace(b'"standard"', value), False) is None
