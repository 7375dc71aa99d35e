"""The names of a server's tools: accepted everywhere, never the same twice, the same after a restart (spec: R7)."""

import re

from hypothesis import given
from hypothesis import strategies as st

from toolgate.mcp.client.tool_names import public_names

GOOD = re.compile(r"[A-Za-z0-9_-]{1,64}")


@given(
    st.sets(st.text(min_size=1, max_size=80) | st.sampled_from(["a.b", "a_b", "a/b", "a b"]), max_size=12), st.text()
)
def test_every_name_is_good_no_two_are_the_same_and_order_does_not_matter(names: set[str], prefix: str) -> None:
    given_order = sorted(names)
    found = public_names(prefix, given_order)
    assert set(found) == names
    assert len(set(found.values())) == len(names)
    assert all(GOOD.fullmatch(public) for public in found.values())
    assert found == public_names(prefix, given_order[::-1])


def test_a_name_that_fits_stays_as_it_is() -> None:
    assert public_names("git_", ["status", "files/read"]) == {"status": "git_status", "files/read": "git_files_read"}


def test_the_one_that_fits_wins_over_one_that_had_to_be_changed() -> None:
    found = public_names("", ["a.b", "a_b"])
    assert found["a_b"] == "a_b"
    assert re.fullmatch(r"a_b_[0-9a-f]{8}", found["a.b"])


def test_a_long_name_is_cut_and_marked_with_its_digest() -> None:
    first, second = public_names("", ["x" * 70, "x" * 71]).values()
    assert len(first) == len(second) == 64
    assert first != second


def test_a_name_that_pretends_to_be_marked_takes_nobodys_place() -> None:
    marked = public_names("", ["a.b", "a_b"])["a.b"]
    assert len(set(public_names("", ["a.b", "a_b", marked]).values())) == 3
