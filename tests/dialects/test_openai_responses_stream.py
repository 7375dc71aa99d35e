"""Every quirk of Responses upstreams is understood, in pieces of any size."""

import json

import pytest

from tests.dialects.openai_responses_cases import (
    CITY,
    ID1,
    QUIRKS,
    WEATHER,
    Quirk,
    added,
    argument_delta,
    call,
    completed,
    created,
    done,
    event,
    message,
    text_delta,
)
from toolgate.conversation.errors import InvalidUpstreamAnswer, UpstreamUnavailable
from toolgate.conversation.events import ModelResponse, PartDelta, StepEvent
from toolgate.conversation.fold import fold
from toolgate.conversation.message import Media, Text, ToolCall
from toolgate.dialects.openai_responses import DIALECT
from toolgate.dialects.openai_responses.shared_codec import NAME
from toolgate.wire.received_stream_frames import ReceivedStreamFrame
from toolgate.wire.sse_decoder import SseDecoder

REQUEST = DIALECT.server.decode_request(
    {
        "model": "m",
        "input": "hi",
        "stream": True,
        "tools": [{"type": "function", "name": name} for name in ("get_weather", "get_time")],
    }
)
CASES = [pytest.param(quirk, id=f"quirk: {quirk.name}") for quirk in QUIRKS]


def events_of(stream: bytes, size: int | None = None) -> list[StepEvent]:
    """The events that the decoder tells of a stream arriving in pieces of this size."""
    frames, decoder = SseDecoder(), DIALECT.upstream.decoder(REQUEST)
    events: list[StepEvent] = []
    for start in range(0, len(stream), size or len(stream)):
        for frame in frames.feed(stream[start : start + (size or len(stream))]):
            events += decoder.feed(frame)
    for frame in frames.end():
        events += decoder.feed(frame)
    return [*events, *decoder.end()]


def decode_stream(stream: bytes, size: int | None = None) -> ModelResponse:
    return fold(events_of(stream, size))


@pytest.mark.parametrize("size", [None, 1, 7])
@pytest.mark.parametrize("quirk", CASES)
def test_a_quirk_is_understood(quirk: Quirk, size: int | None) -> None:
    if quirk.fails:
        with pytest.raises(quirk.fails) as failure:
            decode_stream(quirk.stream, size)
        assert quirk.mentions in failure.value.message
        return
    response = decode_stream(quirk.stream, size)
    assert response.parts == quirk.parts
    assert response.reason == quirk.reason
    assert quirk.usage is None or response.usage == quirk.usage


@pytest.mark.parametrize("quirk", [case for case, quirk in zip(CASES, QUIRKS, strict=True) if not quirk.fails])
def test_the_deltas_make_up_the_parts(quirk: Quirk) -> None:
    sent = "".join([one.text for one in events_of(quirk.stream) if isinstance(one, PartDelta)])
    whole = [part.arguments if isinstance(part, ToolCall) else getattr(part, "text", "") for part in quirk.parts]
    assert sent == "".join(whole)


def test_text_is_emitted_as_it_arrives() -> None:
    decoder = DIALECT.upstream.decoder(REQUEST)
    frames = SseDecoder().feed(created() + text_delta("Hel"))
    assert PartDelta("Hel") in [one for frame in frames for one in decoder.feed(frame)]


def test_the_answer_is_over_with_its_last_event_whatever_the_socket_does() -> None:
    decoder = DIALECT.upstream.decoder(REQUEST)
    for frame in SseDecoder().feed(created() + completed(message("a"))):
        decoder.feed(frame)
    assert decoder.done
    assert decoder.feed(ReceivedStreamFrame(None, b"[DONE]")) == []
    assert decoder.feed(ReceivedStreamFrame(None, b"late nonsense")) == []


def test_four_thousand_tiny_deltas_make_one_call() -> None:
    """quirk: many_tiny"""
    text = '{"text":"' + "x" * 4000 + '"}'
    deltas = b"".join([argument_delta(letter) for letter in text])
    stream = created() + added(call("")) + deltas + done(call(text)) + completed()
    assert decode_stream(stream).parts == (ToolCall(ID1, "get_weather", text),)


def test_numbers_in_arguments_stay_as_they_are_spelled() -> None:
    """quirk: args_bignum"""
    text = '{"id": 12345678901234567890, "n": 1e400}'
    assert decode_stream(created() + added(call("")) + argument_delta(text) + completed()).parts == (
        ToolCall(ID1, "get_weather", text),
    )


def test_an_upstream_without_call_ids_gets_fresh_ones() -> None:
    bare = {name: value for name, value in call().items() if name not in ("id", "call_id")}
    (part,) = decode_stream(created() + done(bare) + completed()).parts
    assert isinstance(part, ToolCall)
    assert len(part.id) == 29


def test_two_calls_of_one_id_get_unique_ids() -> None:
    """field: B6"""
    stream = created() + done(call()) + done(call("{}", "fc_2", ID1, "get_time"), 1) + completed()
    calls = [part for part in decode_stream(stream).parts if isinstance(part, ToolCall)]
    assert [one.name for one in calls] == ["get_weather", "get_time"]
    assert len({one.id for one in calls}) == 2


def test_citations_and_phases_stay_with_their_text() -> None:
    citation = {"type": "url_citation", "url": "https://example.org", "title": "t", "start_index": 0, "end_index": 1}
    content = [{"type": "output_text", "text": "a", "annotations": [citation]}, {"type": "output_text", "text": "b"}]
    (first, second) = decode_stream(
        created() + done(message("", phase="commentary", content=content)) + completed()
    ).parts
    assert first == Text("a", {NAME: {"annotations": [citation], "message": {"phase": "commentary"}}})
    assert second == Text("b", {NAME: {"continues": True}})


def test_a_generated_picture_can_be_shown_in_any_dialect() -> None:
    item = {
        "id": "ig_1",
        "type": "image_generation_call",
        "status": "completed",
        "result": "QUJD",
        "output_format": "webp",
    }
    (part,) = decode_stream(created() + done(item) + completed()).parts
    assert isinstance(part, Media)
    assert (part.kind, part.mime, part.data) == ("image", "image/webp", "QUJD")


def test_a_whole_answer_means_what_the_streamed_one_means() -> None:
    for quirk in QUIRKS:
        if quirk.name in ("r_item_done_only", "r_only_completed", "r_id_rotation"):
            frame = SseDecoder().feed(quirk.stream)[-1]
            body = json.loads(frame.data)["response"]
            assert DIALECT.upstream.decode_response(body, REQUEST).parts == quirk.parts


@pytest.mark.parametrize(
    ("body", "fails"),
    [
        ({"error": {"message": "boom", "type": "server_error"}}, UpstreamUnavailable),
        ({"status": "failed", "output": [], "error": {"code": "server_error", "message": "boom"}}, UpstreamUnavailable),
        ({"status": "in_progress", "output": []}, InvalidUpstreamAnswer),
        ({"status": "completed"}, InvalidUpstreamAnswer),
        ({"status": "completed", "output": [{"no": "type"}]}, InvalidUpstreamAnswer),
        ([], InvalidUpstreamAnswer),
    ],
)
def test_a_whole_answer_that_is_none_fails(body: object, fails: type[Exception]) -> None:
    with pytest.raises(fails):
        DIALECT.upstream.decode_response(body, REQUEST)


def test_a_delta_of_an_item_that_is_over_changes_nothing() -> None:
    stream = (
        created() + done(call()) + argument_delta("late") + text_delta("x", 5) + done(message("x"), 5) + completed()
    )
    assert decode_stream(stream).parts == (WEATHER, Text("x"))


def test_events_that_only_name_the_item_find_it() -> None:
    stream = (
        event("response.created", response={"id": "resp_up"})
        + event("response.output_item.added", item=call(""))
        + event("response.function_call_arguments.delta", item_id="fc_1", delta=CITY)
        + event("response.output_item.done", item=call())
        + completed()
    )
    assert decode_stream(stream).parts == (WEATHER,)
