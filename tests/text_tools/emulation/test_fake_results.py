"""Lines that are held back until it is clear whether they are text: the work for each delta stays the same."""

import time

import pytest

from tests.growth import is_linear
from toolgate.text_tools.emulation.fake_results import FakeResultFilter


@pytest.mark.parametrize(
    ("start", "delta"), [("Tool Call: look(", "\N{GRINNING FACE}"), ("Tool Call: look()\n", " ")], ids=["call", "blank"]
)
def test_a_line_that_is_held_back_costs_the_same_for_each_delta(start: str, delta: str) -> None:
    """A line of 250,000 characters, one at a time, took 11 seconds and steps of 60 ms."""

    def worked(count: int) -> float:
        began = time.thread_time()
        filter = FakeResultFilter(["look"])
        assert not any([filter.feed(start), *[filter.feed(delta) for _ in range(count)]])
        filter.release()
        return time.thread_time() - began

    assert is_linear(worked, 40_000)


@pytest.mark.parametrize("after", ["\n", "\n  ", "\n--", "\n---  \n"])
def test_a_call_that_comes_in_pieces_is_no_text(after: str) -> None:
    filter = FakeResultFilter(["look"])
    texts = [filter.feed(one) for one in 'Tool Call: look({"at": 1})' + after]
    assert "".join(texts) + filter.release() == ""
    assert filter.calls == [("look", '{"at": 1}')]
