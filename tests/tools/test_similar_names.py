"""Hints for misspelt names are found in time that is linear in the length of the names."""

import time

import pytest

from toolgate.tools.similar_names import similar_names

KNOWN = ("clock", "calculator", "get_page", "get_time", "files_delete", "github_create_issue")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("get_pages", ["get_page"]),
        ("clok", ["clock"]),
        ("Clock", ["clock"]),
        ("calculate", ["calculator"]),
        ("delete_files", ["files_delete"]),
        ("create_issue", ["github_create_issue"]),
        ("weather", []),
        ("", []),
        ("x" * 1_000_000, []),
    ],
)
def test_a_misspelt_name_is_found(written: str, meant: list[str]) -> None:
    assert similar_names(written, KNOWN) == meant


def test_the_most_similar_names_come_first() -> None:
    assert similar_names("get_tim", KNOWN, count=3) == ["get_time", "get_page"]


def test_names_that_take_difflib_long_are_compared_fast() -> None:
    names = [f"{'abb' * 20}{number:04}" for number in range(500)]
    started = time.thread_time()
    assert similar_names("aab" * 21, names) == [names[0]]
    assert time.thread_time() - started < 0.05
