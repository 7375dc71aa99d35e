"""Framings take work that grows with what came, and bound what they keep."""

import time

import pytest

from toolgate.conversation.errors import Garbled
from toolgate.wire.ndjson import NdjsonDecoder
from toolgate.wire.sse import SseDecoder


def test_objects_glued_together_in_one_line_are_cut_in_one_pass() -> None:
    def worked(count: int) -> float:
        began = time.thread_time()
        assert len(NdjsonDecoder().feed(b"{} " * count + b"\n")) == count
        return time.thread_time() - began

    assert min(worked(80_000) for _ in range(2)) < 6 * max(min(worked(40_000) for _ in range(2)), 0.005)


def test_empty_lines_of_one_event_are_counted() -> None:
    decoder = SseDecoder(limit=1000)
    with pytest.raises(Garbled, match="single event"):
        decoder.feed(b"data:\n" * 2000)
