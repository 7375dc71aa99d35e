"""Plain answers and chunks of Chat upstreams, which are decoded in one step."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.conversation.errors import UpstreamError
from toolgate.conversation.events import ModelResponse, PartDelta, Usage
from toolgate.conversation.message import Message, Text
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.dialect import AnswerMetadata
from toolgate.dialects.openai_chat import DIALECT
from toolgate.dialects.openai_chat.shared_codec import read_usage
from toolgate.wire.jsontext import decode, encode
from toolgate.wire.received_stream_frames import ReceivedStreamFrame

REQUEST = ModelRequest("m", (Message("user", (Text("Hi"),)),))


def answer() -> dict[str, Any]:
    """An answer with the fields that OpenAI, vLLM and llama.cpp send."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "Grüß dich 👋",
        "refusal": None,
        "annotations": [],
        "tool_calls": [],
        "reasoning_content": None,
    }
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    details = {"prompt_tokens_details": {"cached_tokens": 5}}
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13, **details}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "m-1",
        "choices": [choice],
        "usage": usage,
        "system_fingerprint": "fp",
        "timings": {"predicted_ms": 12.5},
    }


def test_a_plain_answer_is_decoded_as_any_other() -> None:
    plain = DIALECT.decode_plain_answer(encode(answer()), True)
    assert plain == ModelResponse((Text("Grüß dich 👋"),), "stop", Usage(9, 4, 5), "chatcmpl-1", "m-1")
    assert plain == DIALECT.upstream.decode_response(answer(), REQUEST)


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.update(id=""),
        lambda body: body.update(id="x" * 513),
        lambda body: body.update(id=None),
        lambda body: body.update(object="text_completion"),
        lambda body: body.update(created=0),
        lambda body: body.update(model=""),
        lambda body: body.update(usage=None),
        lambda body: body.update(usage={}),
        lambda body: body.update(usage={"prompt_tokens": -1}),
        lambda body: body.update(error={"message": "Overloaded"}),
        lambda body: body.update(citations=["https://example.org"]),
        lambda body: body.update(x_groq={"usage": {"prompt_tokens": 1}}),
        lambda body: body.update(choices=[]),
        lambda body: body["choices"].append(body["choices"][0]),
        lambda body: body["choices"][0].update(index=1),
        lambda body: body["choices"][0].update(finish_reason="tool_calls"),
        lambda body: body["choices"][0].update(logprobs={"content": []}),
        lambda body: body["choices"][0]["message"].update(role="model"),
        lambda body: body["choices"][0]["message"].update(content=""),
        lambda body: body["choices"][0]["message"].update(content=" \n"),
        lambda body: body["choices"][0]["message"].update(content=None),
        lambda body: body["choices"][0]["message"].update(content=[{"type": "text", "text": "Hi"}]),
        lambda body: body["choices"][0]["message"].update(refusal="No."),
        lambda body: body["choices"][0]["message"].update(reasoning="Hm"),
        lambda body: body["choices"][0]["message"].update(reasoning_content="Hm"),
        lambda body: body["choices"][0]["message"].update(annotations=[{"type": "url_citation"}]),
        lambda body: body["choices"][0]["message"].update(tool_calls=[{"id": "call_1"}]),
        lambda body: body["choices"][0]["message"].update(images=[{"url": "data:"}]),
        lambda body: body.update(padding="x" * 64 * 1024),
    ],
)
def test_an_answer_with_anything_to_repair_or_to_add_is_not_plain(change: Callable[[dict[str, Any]], None]) -> None:
    body = answer()
    change(body)
    assert DIALECT.decode_plain_answer(encode(body), False) is None


COUNTS = st.none() | st.integers(-1, 9) | st.sampled_from([10**9, 10**9 + 1, 1.0, 2.5, "3", True])


def details(*names: str) -> st.SearchStrategy[Any]:
    return st.none() | st.fixed_dictionaries({}, optional=dict.fromkeys((*names, "audio_tokens"), COUNTS))


@given(
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens", "prompt_cache_hit_tokens"), COUNTS),
            "prompt_tokens_details": details("cached_tokens", "cache_write_tokens", "cache_creation_tokens"),
            "completion_tokens_details": details("reasoning_tokens"),
        },
    )
)
def test_the_usage_of_a_plain_answer_is_that_of_any_other(usage: dict[str, Any]) -> None:
    plain = DIALECT.decode_plain_answer(encode(answer() | {"usage": usage}), False)
    assert plain is None or plain.usage == read_usage(usage)


def test_the_details_of_usage_keep_no_answer_from_being_plain() -> None:
    counts = {"prompt_tokens": 9, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 7}}
    plain = DIALECT.decode_plain_answer(encode(answer() | {"usage": counts}), False)
    assert plain is not None
    assert plain.usage == Usage(9, 8, cache_read=7)


@pytest.mark.parametrize("value", [b'"\xff"', b'"\\ud800 "', b"tru", b"{"])
def test_an_answer_that_is_not_valid_json_anywhere_is_not_plain(value: bytes) -> None:
    assert DIALECT.decode_plain_answer(encode(answer()).replace(b'"fp"', value), False) is None


def chunk(**delta: Any) -> dict[str, Any]:
    """A chunk in the middle of a stream."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    identity = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m-1"}
    return {**identity, "choices": [choice], "system_fingerprint": "fp"}


def relayed(data: bytes, *, first: str = "") -> bytes:
    """Return what a client receives of a chunk that follows a first one."""
    relay = DIALECT.upstream.relay(REQUEST, AnswerMetadata("chatcmpl-own", 1, "m"))
    relay.feed(ReceivedStreamFrame(None, encode(chunk(role="assistant", content=first))))
    return relay.feed(ReceivedStreamFrame(None, data))


@pytest.mark.parametrize("text", ["on", "", "Grüße", "👋"])
def test_a_chunk_of_text_is_relayed_as_it_came(text: str) -> None:
    data = encode(chunk(content=text)).replace(b":", b": ")
    assert relayed(data) == b"data: " + data + b"\n\n"


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.update(id="chatcmpl-2"),
        lambda body: body.update(created=1_700_000_001),
        lambda body: body.update(model="m-2"),
        lambda body: body.update(object="chat.completion"),
        lambda body: body.update(usage={"prompt_tokens": 1, "completion_tokens": 1}),
        lambda body: body["choices"][0].pop("index"),
        lambda body: body["choices"][0].pop("finish_reason"),
        lambda body: body["choices"][0]["delta"].update(role="assistant"),
        lambda body: body["choices"][0]["delta"].update(content=[{"type": "text", "text": "on"}]),
    ],
)
def test_a_chunk_of_text_with_something_to_repair_is_repaired(change: Callable[[dict[str, Any]], None]) -> None:
    body = chunk(content="on")
    change(body)
    assert decode(relayed(encode(body)).removeprefix(b"data: ")) == chunk(content="on")


def test_a_chunk_over_several_lines_is_relayed_in_one() -> None:
    assert (
        relayed(encode(chunk(content="on")).replace(b",", b",\n")) == b"data: " + encode(chunk(content="on")) + b"\n\n"
    )


def test_half_a_character_is_replaced_before_a_chunk_of_text() -> None:
    half = encode(chunk(role="assistant", content="?")).replace(b'"?"', b'"\\ud83d"')
    relay = DIALECT.upstream.relay(REQUEST, AnswerMetadata("chatcmpl-own", 1, "m"))
    texts = [
        decode(relay.feed(ReceivedStreamFrame(None, data)).removeprefix(b"data: "))
        for data in (half, encode(chunk(content="on")))
    ]
    assert "".join([one["choices"][0]["delta"].get("content", "") for one in texts]) == "\ufffdon"


def test_chunks_of_text_are_decoded_until_another_kind_comes() -> None:
    decoder = DIALECT.upstream.decoder(REQUEST)
    sent = [chunk(role="assistant", content=""), chunk(content="a"), chunk(content="b"), chunk(reasoning="Hm")]
    sent += [chunk(content="c"), chunk(content="d")]
    events = [event for body in sent for event in decoder.feed(ReceivedStreamFrame(None, encode(body)))]
    assert [event.text for event in events if isinstance(event, PartDelta)] == ["a", "b", "Hm", "c", "d"]


def test_an_event_called_error_is_an_error_whatever_it_holds() -> None:
    decoder = DIALECT.upstream.decoder(REQUEST)
    decoder.feed(ReceivedStreamFrame(None, encode(chunk(role="assistant", content=""))))
    with pytest.raises(UpstreamError):
        decoder.feed(ReceivedStreamFrame("error", encode(chunk(content="a"))))
