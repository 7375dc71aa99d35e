"""What is encoded or decoded in steps is what one call would write or read."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.wire import jsontext
from toolgate.wire.jsontext import decode, decode_in_steps, encode, encode_in_steps

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@pytest.fixture(autouse=True, scope="module")
def short_steps() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsontext, "_STEP_CHARACTERS", 3)
        yield


@given(VALUES)
def test_the_steps_write_what_one_call_writes(value: Any) -> None:
    assert encode_in_steps(value) == encode(value)


@given(VALUES)
def test_the_steps_read_what_one_call_reads(value: Any) -> None:
    assert decode_in_steps(encode(value)) == decode(encode(value))


@pytest.mark.parametrize("value", [["a\ud83d"], {"\ud83d": [{"text": "\ude00"}]}, [Decimal("1e400")], (1, [2])])
def test_so_do_they_with_lone_surrogates_and_other_types(value: Any) -> None:
    assert encode_in_steps(value) == encode(value)
    assert decode_in_steps(encode(value)) == decode(encode(value))
