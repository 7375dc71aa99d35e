"""Ids that are given by their beginning."""

import pytest

from toolgate.cli.paging import begins_with


@pytest.mark.parametrize(
    ("id", "start", "expected"),
    [
        ("mcpr_m4x", "m", True),
        ("mcpr_m4x", "mcpr_m", True),
        ("mcpr_m4x", "mcpr_", True),
        ("mcpr_q7y", "m", False),
        ("mcpr_q7y", "mcpr_m", False),
        ("mcpr_mcp", "mcp", True),
    ],
)
def test_an_id_is_compared_behind_the_prefix_that_all_share(id: str, start: str, expected: bool) -> None:
    """`m` begins one approval's own part, and not every id because all begin with `mcpr_`."""
    assert begins_with(id, start, "mcpr_") == expected
