"""The laws of dialects, held against every folder below `dialects/`: a new one is tested as soon as it is there.

A folder has both codecs, so a dialect's server codec is the fake upstream of its upstream codec, and its upstream codec
the fake client of its server codec. Errors that cancel out between the two are left to the dialects' own tests.
"""

import importlib
import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import toolgate.dialects
from tests.dialects.meaning import answer_meaning, request_meaning, unsupported, well_formed
from tests.dialects.relays import end_of
from tests.dialects.strategies import law, requests, responses, run_events, texts
from toolgate.conversation.errors import (
    InvalidRequest,
    InvalidUpstreamAnswer,
    NotFound,
    RateLimited,
    ToolgateError,
    UpstreamError,
    UpstreamUnavailable,
)
from toolgate.conversation.events import ModelResponse, StepEvent, Usage
from toolgate.conversation.fold import fold
from toolgate.conversation.history import match_results
from toolgate.conversation.message import Message, Reasoning, ReasoningSignature, Text
from toolgate.conversation.reasoning_envelope import wrap_signature
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.dialect import AnswerMetadata, Dialect, Quirks
from toolgate.wire.jsontext import decode_body, decode_event, encode
from toolgate.wire.received_stream_frames import ReceivedStreamFrame

FOLDERS = sorted(path.parent.name for path in Path(toolgate.dialects.__path__[0]).glob("*/__init__.py"))
REPLY = AnswerMetadata("reply_1", 1_700_000_000, "public-name")


def _load(folder: str) -> dict[str, Dialect]:
    """The dialects of a folder: `DIALECT`, and further server codecs under names of their own."""
    try:
        module = importlib.import_module(f"toolgate.dialects.{folder}")
    except ImportError:
        return {}  # reported by the first test
    found = {name: value for name, value in vars(module).items() if isinstance(value, Dialect)}
    return {folder if name == "DIALECT" else f"{folder}:{name.lower()}": dialect for name, dialect in found.items()}


WITH_SIDE_ENDPOINTS = {name: dialect for folder in FOLDERS for name, dialect in _load(folder).items()}
DIALECTS = {name: dialect for name, dialect in WITH_SIDE_ENDPOINTS.items() if ":" not in name}

every_endpoint = pytest.mark.parametrize("dialect", list(WITH_SIDE_ENDPOINTS.values()), ids=list(WITH_SIDE_ENDPOINTS))
every_dialect = pytest.mark.parametrize("dialect", list(DIALECTS.values()), ids=list(DIALECTS))
every_pair = pytest.mark.parametrize(
    ("client", "upstream"),
    list(itertools.product(DIALECTS.values(), repeat=2)),
    ids=[f"{client}-over-{upstream}" for client, upstream in itertools.product(DIALECTS, repeat=2)],
)


def received(dialect: Dialect, request: ModelRequest) -> ModelRequest:
    """The request as a server of this dialect reads it when a client of this dialect writes it."""
    body, _ = dialect.upstream.encode_request(request, Quirks())
    return dialect.server.decode_request(decode_body(encode(body)))


def streamed(dialect: Dialect, response: ModelResponse, request: ModelRequest, size: int = 1000) -> bytes:
    """The answer as the dialect's server codec streams it."""
    encoder = dialect.server.encoder(request, REPLY)
    return b"".join([encoder.encode(event) for event in run_events(response, size)])


def frames_of(dialect: Dialect, data: bytes, sizes: list[int] | None = None) -> list[ReceivedStreamFrame]:
    """The frames in some bytes that come in pieces of these sizes, over and over."""
    frames: list[ReceivedStreamFrame] = []
    framing, position = dialect.frame_decoder(), 0
    for size in itertools.cycle(sizes or [len(data) or 1]):
        if position >= len(data):
            return frames + framing.end()
        frames += framing.feed(data[position : position + size])
        position += size
    raise AssertionError("sizes never run out")


def decode_frames(dialect: Dialect, frames: list[ReceivedStreamFrame], request: ModelRequest) -> list[StepEvent]:
    """What the dialect's upstream codec understands."""
    decoder = dialect.upstream.decoder(request)
    return [event for frame in frames for event in decoder.feed(frame)] + decoder.end()


def read(dialect: Dialect, data: bytes, request: ModelRequest) -> ModelResponse:
    return fold(decode_frames(dialect, frames_of(dialect, data), request))


def question(dialect: Dialect, request: ModelRequest | None = None) -> ModelRequest:
    """A request of this dialect that asks for a stream."""
    plain = ModelRequest("m", (Message("user", (Text("Hi"),)),))
    return received(dialect, replace(request or plain, stream=True))


def test_every_dialect_can_be_imported() -> None:
    assert set(DIALECTS) == set(FOLDERS)
    assert len(DIALECTS) >= 2
    assert all(dialect.name == name for name, dialect in DIALECTS.items())


@every_endpoint
@law(40)
@given(response=responses(), size=st.integers(1, 30))
def test_1_the_upstream_half_reads_back_what_the_server_half_streams(
    dialect: Dialect, response: ModelResponse, size: int
) -> None:
    request = question(dialect)
    decoded = read(dialect, streamed(dialect, response, request, size), request)
    assert answer_meaning(decoded, unsupported(dialect.name)) == answer_meaning(response, unsupported(dialect.name))


@every_endpoint
@law(40)
@given(response=responses())
def test_2_a_whole_answer_means_what_the_streamed_one_means(dialect: Dialect, response: ModelResponse) -> None:
    request = question(dialect)
    raw = dialect.server.encode_response(response, request, REPLY)
    whole = dialect.upstream.decode_response(decode_event(raw), request)
    for relayed in (True, False):
        assert dialect.decode_plain_answer(raw, relayed) in (None, whole)
    assert answer_meaning(whole) == answer_meaning(read(dialect, streamed(dialect, response, request), request))


@every_endpoint
@law(25)
@given(response=responses(), sizes=st.lists(st.integers(1, 60), min_size=1, max_size=5))
def test_3_where_the_bytes_are_split_changes_nothing(
    dialect: Dialect, response: ModelResponse, sizes: list[int]
) -> None:
    request = question(dialect)
    data = streamed(dialect, response, request)
    frames = frames_of(dialect, data, sizes)
    assert frames == frames_of(dialect, data)
    assert fold(decode_frames(dialect, frames, request)) == read(dialect, data, request)


@every_endpoint
@law(40)
@given(response=responses(), size=st.integers(1, 30))
def test_4_one_part_is_open_at_a_time(dialect: Dialect, response: ModelResponse, size: int) -> None:
    request = question(dialect)
    well_formed(decode_frames(dialect, frames_of(dialect, streamed(dialect, response, request, size)), request))


@every_endpoint
@law(25)
@given(response=responses(), where=st.floats(0, 1, exclude_max=True))
def test_5_a_stream_that_is_cut_off_fails_or_was_complete(
    dialect: Dialect, response: ModelResponse, where: float
) -> None:
    """A dialect may say that it ended before its very last frame; it may never end before that."""
    request = question(dialect)
    data = streamed(dialect, response, request)
    whole = answer_meaning(replace(read(dialect, data, request), usage=None))
    frames = frames_of(dialect, data)
    cuts = [frames[:count] for count in range(len(frames))]
    for cut in [*cuts, frames_of(dialect, data[: int(len(data) * where)])]:
        try:
            decoded = fold(decode_frames(dialect, cut, request))
        except InvalidUpstreamAnswer:
            continue
        assert answer_meaning(replace(decoded, usage=None)) == whole
    with pytest.raises(InvalidUpstreamAnswer):
        decode_frames(dialect, [], request)


@every_endpoint
@law(15)
@given(response=responses(), where=st.floats(0, 1))
def test_5_an_error_in_a_stream_reaches_the_client(dialect: Dialect, response: ModelResponse, where: float) -> None:
    request = question(dialect)
    encoder, events = dialect.server.encoder(request, REPLY), run_events(response, 5)[:-1]
    encoded = [encoder.encode(event) for event in events[: round(len(events) * where)]]
    data = b"".join([*encoded, encoder.error(UpstreamUnavailable("It broke."))])
    with pytest.raises(UpstreamError, match="It broke"):
        read(dialect, data, request)
    relay = dialect.upstream.relay(request, REPLY)
    with pytest.raises(UpstreamError, match="It broke"):
        [relay.feed(frame) for frame in frames_of(dialect, data)]


@every_endpoint
@pytest.mark.parametrize(
    "error", [InvalidRequest("Not so."), NotFound("Nowhere."), RateLimited("Too much."), InvalidUpstreamAnswer("?")]
)
def test_5_a_refusal_keeps_its_words_and_what_the_client_can_mend_its_status(
    dialect: Dialect, error: ToolgateError
) -> None:
    read_back = dialect.upstream.decode_error(error.status, {}, dialect.server.encode_error(error))
    assert (read_back.message, read_back.status) == (error.message, error.status)


@every_dialect
@law(60)
@given(request=requests())
def test_6_a_request_survives_the_round_trip(dialect: Dialect, request: ModelRequest) -> None:
    lost = unsupported(dialect.name)
    assert request_meaning(match_results(received(dialect, request)), lost) == request_meaning(request, lost)


def _with_unknown_fields(body: dict[str, Any]) -> dict[str, Any]:
    """The body with a field that nobody knows at the top, in every message and in every tool."""
    strange: dict[str, Any] = {"x_strange": "at the top"}
    for name in ("messages", "input"):
        if type(body.get(name)) is list:
            strange[name] = [{**message, "x_strange": "in a message"} for message in body[name]]
    if "tools" in body:
        strange["tools"] = [{**tool, "x_strange": "in a tool"} for tool in body["tools"]]
    return {**body, **strange}


@every_dialect
@law(20)
@given(request=requests())
def test_7_unknown_fields_return_to_their_own_dialect_and_to_no_other(dialect: Dialect, request: ModelRequest) -> None:
    body, _ = dialect.upstream.encode_request(request, Quirks())
    strange = decode_body(encode(_with_unknown_fields(body)))
    understood = dialect.server.decode_request(strange)
    for other in DIALECTS.values():
        written = encode(other.upstream.encode_request(understood, Quirks())[0])
        if other is dialect:
            places = ["at the top", "in a message", *(["in a tool"] if "tools" in body else [])]
            assert [place for place in places if place.encode() not in written] == []
        else:
            assert b"x_strange" not in written


def _send_back(dialect: Dialect, response: ModelResponse, request: ModelRequest) -> ModelRequest:
    """The next request of a client that was given this answer."""
    answer = read(dialect, streamed(dialect, response, request), request)
    turns = (Message("assistant", answer.parts), Message("user", (Text("Go on."),)))
    return received(dialect, replace(request, messages=(*request.messages, *turns)))


@every_dialect
@law(20)
@given(thought=texts, secret=st.from_regex(r"secret[a-zA-Z0-9]{20}", fullmatch=True))
def test_8_a_seal_crosses_into_no_other_dialect_but_in_an_envelope_that_opens_again(
    dialect: Dialect, thought: str, secret: str
) -> None:
    signature = ReasoningSignature("elsewhere", {"signature": secret})
    request = question(dialect)
    response = ModelResponse((Reasoning(thought, signature), Text("Hello.")), "stop", Usage(1, 1))
    data = streamed(dialect, response, request)
    assert secret.encode() not in data

    back = _send_back(dialect, response, request)
    signatures = [part.signature for message in back.messages for part in message.parts if isinstance(part, Reasoning)]
    assert (signature in signatures) == ("signatures" not in unsupported(dialect.name))
    for other in DIALECTS.values():
        written = encode(other.upstream.encode_request(back, Quirks())[0])
        assert secret.encode() not in written
        assert wrap_signature(signature).encode() not in written


SIGNED_REASONING = {"anthropic": {"signature": "U0VBTEVE"}, "openai_responses": {"encrypted_content": "U0VBTEVE"}}
"""Reasoning as these upstreams signature it."""


@every_pair
def test_8_a_seal_returns_to_the_upstream_that_made_it_through_a_client_of_any_dialect(
    client: Dialect, upstream: Dialect
) -> None:
    if upstream.name not in SIGNED_REASONING or "signatures" in unsupported(client.name):
        return
    made = ModelResponse(
        (Reasoning("Hm.", ReasoningSignature(upstream.name, SIGNED_REASONING[upstream.name])), Text("Hello.")),
        "stop",
        Usage(1, 1),
    )
    request = question(upstream)
    given = read(upstream, streamed(upstream, made, request), request)
    back = _send_back(client, given, question(client))
    assert b"U0VBTEVE" in encode(upstream.upstream.encode_request(back, Quirks())[0])


@every_endpoint
@law(30)
@given(response=responses(), size=st.integers(1, 30))
def test_9_a_relayed_stream_means_what_it_meant_before(dialect: Dialect, response: ModelResponse, size: int) -> None:
    request = question(dialect)
    data = streamed(dialect, response, request, size)
    relay = dialect.upstream.relay(request, REPLY)
    passed = b"".join([relay.feed(frame) for frame in frames_of(dialect, data)]) + end_of(relay)
    direct = read(dialect, data, request)
    assert answer_meaning(read(dialect, passed, request)) == answer_meaning(direct)
    assert (relay.done, relay.reason) == (True, direct.reason)
    assert relay.calls == len(answer_meaning(direct)["calls"])
    assert relay.usage == direct.usage


@every_endpoint
@law(20)
@given(response=responses())
def test_9_a_relayed_whole_answer_means_what_it_meant_before(dialect: Dialect, response: ModelResponse) -> None:
    request = question(dialect)
    body = decode_event(dialect.server.encode_response(response, request, REPLY))
    read_back = dialect.upstream.decode_response(body, request)
    passed = dialect.upstream.relay_response(body, read_back, request, REPLY)
    direct = answer_meaning(dialect.upstream.decode_response(body, request))
    assert answer_meaning(read_back) == direct
    assert answer_meaning(dialect.upstream.decode_response(decode_event(encode(passed)), request)) == direct


@every_pair
@law(12)
@given(given=st.data())
def test_10_every_client_dialect_works_over_every_upstream_dialect(
    client: Dialect, upstream: Dialect, given: st.DataObject
) -> None:
    lost = unsupported(client.name, upstream.name)
    request = given.draw(requests())
    from_client = match_results(received(client, request))
    at_upstream = received(upstream, from_client)
    assert request_meaning(match_results(at_upstream), lost) == request_meaning(request, lost)

    response = given.draw(responses(request.tools))
    if request.stream:
        frames = streamed(upstream, response, at_upstream, given.draw(st.integers(1, 30)))
        middle = read(upstream, frames, from_client)
        arrived = read(client, streamed(client, middle, from_client), request)
    else:
        body = decode_event(upstream.server.encode_response(response, at_upstream, REPLY))
        middle = upstream.upstream.decode_response(body, from_client)
        body = decode_event(client.server.encode_response(middle, from_client, REPLY))
        arrived = client.upstream.decode_response(body, request)
    assert answer_meaning(arrived, lost) == answer_meaning(response, lost)
