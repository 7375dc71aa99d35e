"""Outputs are limited to what a model should read: nothing passes that is too long, secret or not encodable."""

import asyncio
from typing import Any

import pytest

from toolgate.conversation.message import Media, Text, plain_text
from toolgate.tools.result_limits import ToolCallLimits, limit_output
from toolgate.tools.tool import ToolOutput

SECRET = "the-canary"
BOUNDS = ToolCallLimits(output=100, media=50, pieces=3)


def cut(*content: Text | Media, **fields: Any) -> ToolOutput:
    return asyncio.run(limit_output(ToolOutput(content, **fields), BOUNDS, lambda text: text.replace(SECRET, "…")))


def test_text_is_cut_with_a_mark_and_counted_over_all_pieces() -> None:
    """fault: T3; field: E29"""
    output = cut(Text("a" * 60), Text("b" * 60), Text("c" * 60))
    first, second, third = [plain_text((piece,)) for piece in output.content]
    assert (first, second) == ("a" * 60, "b" * 40 + "\n[truncated: 20 of 60 characters are left out]")
    assert third == "\n[truncated: 60 of 60 characters are left out]"


def test_pieces_without_end_are_cut_with_one_mark() -> None:
    output = cut(*[Text("")] * 100_000)
    assert len(output.content) == BOUNDS.pieces + 1
    assert plain_text(output.content[-1:]) == "[truncated: 99997 of 100000 pieces are left out]"


def test_an_image_that_is_too_large_is_replaced_by_a_note() -> None:
    small, large = Media("image", "image/png", "a" * 30), Media("image", "image/png", "a" * 60)
    assert cut(small).content == (small,)
    assert plain_text(cut(small, large).content) == "[left out: image of 60 characters, which is too large]"
    assert plain_text(cut(small, small).content) == "[left out: image of 30 characters, which is too large]"


def test_data_without_text_is_encoded_as_text_within_the_same_limits() -> None:
    """fault: T3"""
    assert cut(structured={"a": 1}).content == (Text('{"a":1}'),)
    long = cut(structured={"a": "b" * 1000})
    assert "[truncated: " in plain_text(long.content)
    assert long.structured is None


def test_secrets_are_nowhere() -> None:
    """fault: T4, O1"""
    output = cut(Text(f"with {SECRET}"), structured={"key": SECRET}, meta={"key": SECRET})
    assert SECRET not in repr(output)
    assert output.structured == {"key": "…"}


def test_a_secret_across_the_cut_is_no_secret_in_part() -> None:
    output = cut(Text("a" * 95 + SECRET + "b" * 95))
    assert SECRET[:5] not in repr(output)


@pytest.mark.parametrize("data", [{"a": object()}, {"a": {1: {2, 3}, "b": object}}])
def test_data_that_cannot_be_encoded_becomes_an_error(data: Any) -> None:
    assert cut(structured=data).is_error


def test_data_that_contains_itself_becomes_an_error() -> None:
    """fault: T3"""
    circle: dict[str, Any] = {}
    circle["again"] = circle
    assert cut(structured=circle).is_error


def test_nan_and_halves_of_surrogate_pairs_can_be_encoded() -> None:
    """fault: T3"""
    assert plain_text(cut(structured={"a": float("nan")}).content) == '{"a":null}'
    assert cut(Text("\ud800")).content == (Text("?"),)
