"""Server-sent events: the standard's rules, wherever the bytes split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.conversation.errors import InvalidUpstreamAnswer
from toolgate.wire.received_stream_frames import ReceivedStreamFrame
from toolgate.wire.sse_decoder import SseDecoder


def frames(stream: bytes, cuts: list[int] | None = None) -> list[ReceivedStreamFrame]:
    """The frames of a stream that arrives cut at these places."""
    decoder, found, start = SseDecoder(), [], 0
    for cut in [*sorted(cuts or []), len(stream)]:
        found += decoder.feed(stream[start:cut])
        start = max(start, cut)
    return found + decoder.end()


LINES = st.sampled_from(
    [b"data: a", b"data:b", b"data", b"data: \xe2\x80\xa8x", b"event: e", b": comment", b"id: 1", b"", b""]
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])


@given(st.lists(st.tuples(LINES, ENDS), max_size=12), st.booleans(), st.data())
def test_any_split_of_the_bytes_gives_the_same_frames(
    lines: list[tuple[bytes, bytes]], bom: bool, data: st.DataObject
) -> None:
    stream = (b"\xef\xbb\xbf" if bom else b"") + b"".join(line + end for line, end in lines)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    assert frames(stream, cuts) == frames(stream)
    assert frames(stream, list(range(len(stream)))) == frames(stream)


def test_line_separators_inside_text_do_not_end_a_line() -> None:
    text = "a\u2028b\u2029c\x85d\x0be\x0cf"
    assert frames(f"data: {text}\n\n".encode()) == [ReceivedStreamFrame(None, text.encode())]


def test_several_data_lines_are_one_event() -> None:
    assert frames(b"event: x\ndata: a\ndata: b\n\n") == [ReceivedStreamFrame("x", b"a\nb")]


def test_a_last_event_without_a_blank_line_counts() -> None:
    assert frames(b"data: a\n\ndata: b") == [ReceivedStreamFrame(None, b"a"), ReceivedStreamFrame(None, b"b")]


def test_an_event_without_end_is_cut_off_at_the_limit() -> None:
    """fault: U9"""
    decoder = SseDecoder(limit=1000)
    for _ in range(10):
        decoder.feed(b"x" * 100)
    with pytest.raises(InvalidUpstreamAnswer):
        decoder.feed(b"x")


def test_many_short_data_lines_cannot_pass_the_limit_either() -> None:
    """fault: U9"""
    decoder = SseDecoder(limit=10 * (100 + 64))  # a line takes memory beside its bytes
    for _ in range(10):
        decoder.feed(b"data: " + b"x" * 100 + b"\n")
    with pytest.raises(InvalidUpstreamAnswer):
        decoder.feed(b"data: x\n")
