"""Whether something is large decides where it is encoded."""

from typing import Any

import pytest

from toolgate.conversation.rough_size_estimate import is_json_larger


@pytest.mark.parametrize("value", ["x" * 2000, ["x" * 1000] * 2, {"a": {"b": "x" * 2000}}, {"x" * 2000: 1}, [[]] * 100])
def test_texts_names_and_many_values_make_json_large(value: Any) -> None:
    assert is_json_larger(value, 1900)
    assert not is_json_larger(value, 20_000)
