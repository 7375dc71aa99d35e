"""Every quirk of Chat upstreams is understood, in pieces of any size, and passes on repaired to a Chat client."""

import json
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from tests.dialects.chat_quirks import CLOCK, QUIRKS, WEATHER, ExpectedAnswer, Quirk, chunk, sse
from tests.dialects.relays import end_of
from toolgate.conversation.errors import InvalidUpstreamAnswer
from toolgate.conversation.events import ModelResponse, StepEvent
from toolgate.conversation.fold import fold
from toolgate.conversation.message import Reasoning, RefusalPart, Text, ToolCall, plain_text
from toolgate.dialects.dialect import AnswerMetadata
from toolgate.dialects.openai_chat import DIALECT
from toolgate.dialects.openai_chat.repair_response import repair_response
from toolgate.wire.sse_decoder import SseDecoder

REQUEST = DIALECT.server.decode_request(
    {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": {"name": name}} for name in (WEATHER, CLOCK)],
    }
)
CASES = [pytest.param(quirk, id=f"quirk: {quirk.name}") for quirk in QUIRKS]
SMALL = [case for case, quirk in zip(CASES, QUIRKS, strict=True) if len(quirk.stream) < 100_000]


def decode_stream(stream: bytes, size: int) -> ModelResponse:
    """What the decoder understands of a stream that arrives in pieces of this size."""
    frames, decoder = SseDecoder(), DIALECT.upstream.decoder(REQUEST)
    events: list[StepEvent] = []
    for start in range(0, len(stream), size):
        for frame in frames.feed(stream[start : start + size]):
            if not decoder.done:
                events += decoder.feed(frame)
    for frame in frames.end():
        if not decoder.done:
            events += decoder.feed(frame)
    return fold([*events, *decoder.end()])


def relayed(stream: bytes) -> bytes:
    """What a Chat client gets of the stream."""
    frames, relay = SseDecoder(), DIALECT.upstream.relay(REQUEST, AnswerMetadata("chatcmpl-ours", 1, "m"))
    passed = [relay.feed(frame) for frame in [*frames.feed(stream), *frames.end()] if not relay.done]
    return b"".join([*passed, end_of(relay)])


def check(response: ModelResponse, expected: ExpectedAnswer) -> None:
    """The response says what the quirk's stream means."""
    calls = [part for part in response.parts if isinstance(part, ToolCall)]
    assert plain_text(response.parts) == expected.text
    assert "".join(part.text for part in response.parts if isinstance(part, Reasoning)) == expected.reasoning
    assert "".join(part.text for part in response.parts if isinstance(part, RefusalPart)) == expected.refusal
    assert [(c.name, c.arguments, c.complete) for c in calls] == [
        (c.name, c.arguments, c.complete) for c in expected.calls
    ]
    assert all(wanted.id in (None, call.id) for call, wanted in zip(calls, expected.calls, strict=True))
    assert len({call.id for call in calls}) == len(calls)
    assert response.reason == expected.reason
    assert expected.usage is None or response.usage == expected.usage


def test_a_text_that_ends_its_choice_is_relayed_if_the_stream_fails_behind_it() -> None:
    relay = DIALECT.upstream.relay(REQUEST, AnswerMetadata("chatcmpl-ours", 1, "m"))
    [first, *_] = SseDecoder().feed(sse(chunk({"content": "Hello"}, "stop")))
    passed = relay.feed(first) + relay.error(InvalidUpstreamAnswer("The connection broke."))
    assert b'"content":"Hello"' in passed
    assert b'"finish_reason":"stop"' not in passed


@pytest.mark.parametrize("quirk", CASES)
def test_a_quirk_is_understood(quirk: Quirk) -> None:
    if quirk.fails:
        with pytest.raises(quirk.fails):
            decode_stream(quirk.stream, len(quirk.stream))
    else:
        assert quirk.expected is not None
        check(decode_stream(quirk.stream, len(quirk.stream)), quirk.expected)


@pytest.mark.parametrize("quirk", SMALL)
@pytest.mark.parametrize("size", [1, 7])
def test_a_quirk_means_the_same_in_pieces_of_any_size(quirk: Quirk, size: int) -> None:
    if quirk.fails:
        with pytest.raises(quirk.fails):
            decode_stream(quirk.stream, size)
    else:
        assert quirk.expected is not None
        check(decode_stream(quirk.stream, size), quirk.expected)


@pytest.mark.parametrize("quirk", CASES)
def test_a_relayed_quirk_fails_or_is_mended_until_the_official_client_understands_it(quirk: Quirk) -> None:
    if quirk.fails:
        with pytest.raises(quirk.fails):
            relayed(quirk.stream)
        return
    assert quirk.expected is not None
    state = ChatCompletionStreamState(input_tools=[])
    lines = relayed(quirk.stream).decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    identities = set()
    for line in lines[:-2]:
        body = json.loads(line.removeprefix("data: "))
        parsed = ChatCompletionChunk.model_validate(body)
        identities.add((parsed.id, parsed.created, parsed.model))
        state.handle_chunk(parsed)
    assert len(identities) == 1
    assert all(all(identity) for identity in identities)
    message = state.current_completion_snapshot.choices[0].message
    if quirk.name != "legacy_function_call":  # a relayed function_call stays one
        assert (message.content or "") == quirk.expected.text
        names = [call.function.name for call in message.tool_calls or []]
        assert names == [call.name for call in quirk.expected.calls]
        assert len({call.id for call in message.tool_calls or []}) == len(names)
        arguments = [call.function.arguments for call in message.tool_calls or []]
        assert arguments == [call.arguments for call in quirk.expected.calls]
        assert state.current_completion_snapshot.choices[0].finish_reason == quirk.expected.reason
    assert "".join(filter(None, [message.refusal])) == quirk.expected.refusal


@pytest.mark.parametrize("id", [{"a": 1}, 7, "x" * 513], ids=["an object", "a number", "long"])
def test_an_id_that_cannot_be_stored_is_replaced_by_ours(id: Any) -> None:
    """With `store`, an object was a 500; a text of 3 KB, which PostgreSQL cannot index, was a 503."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    body = {"id": id, "object": "chat.completion", "created": 1, "model": id, "choices": [choice], "usage": usage}
    relayed = repair_response(
        body, ModelResponse((Text("Hello."),), "stop"), AnswerMetadata("chatcmpl-1", 1, "m"), joined=False
    )
    assert (relayed["id"], relayed["choices"][0]["message"]["content"]) == ("chatcmpl-1", "Hello.")
    assert isinstance(relayed["model"], str)
