"""Names and alias patterns: exact names first, then the most specific pattern (spec: C1)."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.upstreams.model_names import AliasPattern, ModelNameTable

NAMES = ModelNameTable(
    [("local", 1), ("*", 2), ("claude-*", 3), ("claude-3-*", 4), ("*-mini", 5), ("claude-3-opus", 6), ("gpt-*o", 7)]
)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("local", 1),
        ("local:latest", 1),
        ("something", 2),
        ("claude-sonnet-4-5", 3),
        ("claude-3-haiku-20240307", 4),
        ("claude-3-opus", 6),
        ("gpt-4o-mini", 5),
        ("gpt-4o", 7),
        ("claude-", 3),
        ("x" * 257, None),
    ],
)
def test_the_most_specific_pattern_wins_and_exact_names_come_first(asked: str, found: int | None) -> None:
    assert NAMES.find(asked) == found


def test_of_two_equally_specific_patterns_the_earlier_wins() -> None:
    assert ModelNameTable([("a*", 1), ("*a", 2)]).find("aba") == 1


@given(st.text("ab*", min_size=1, max_size=8).filter(lambda text: "*" in text), st.text("ab", max_size=12))
def test_a_pattern_matches_what_a_shell_pattern_does(pattern: str, name: str) -> None:
    assert AliasPattern(pattern).matches(name) == fnmatchcase(name, pattern)
