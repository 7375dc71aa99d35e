"""Framings take work that grows with what came, and bound what they keep."""

import time

import pytest

from tests.growth import is_linear
from toolgate.conversation.errors import InvalidUpstreamAnswer
from toolgate.wire.ndjson_decoder import MAX_GLUED, NdjsonDecoder
from toolgate.wire.sse_decoder import SseDecoder


def test_objects_glued_together_in_one_line_are_cut_in_one_pass() -> None:
    def worked(count: int) -> float:
        line = (b'{"a":"' + b"x" * 400 + b'"} ') * count + b"\n"
        began = time.thread_time()
        assert len(NdjsonDecoder().feed(line)) == count
        return time.thread_time() - began

    assert is_linear(worked, MAX_GLUED // 4)


def test_objects_glued_together_in_one_line_are_counted() -> None:
    with pytest.raises(InvalidUpstreamAnswer, match="objects"):
        NdjsonDecoder().feed(b"{} " * (MAX_GLUED + 1) + b"\n")


def test_empty_lines_of_one_event_are_counted() -> None:
    decoder = SseDecoder(limit=1000)
    with pytest.raises(InvalidUpstreamAnswer, match="single event"):
        decoder.feed(b"data:\n" * 2000)
