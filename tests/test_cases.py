"""Every id that a test cites is explained in `tests/cases`, and every case there is cited or says why it is not."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LISTS = {
    "spec": ("requirements.md", r"[A-Z]\d{1,2}"),
    "fault": ("faults.md", r"K-[A-Z]|[A-Z]\d{1,2}"),
    "field": ("field_cases.md", r"[A-G]\d{1,2}"),
    "quirk": ("quirks.md", r"[a-z]\w*"),
}
NOT_COVERED = "## Not covered"


def citations(kind: str, text: str) -> set[str]:
    """The ids that a text cites, such as `fault: U5, K-K`."""
    case = LISTS[kind][1]
    groups = re.findall(rf"(?:\"|\(|; |\n *){kind}: ((?:{case})\b(?:, (?:{case})\b)*)", text)
    return {id for group in groups for id in group.split(", ")}


def cited(kind: str) -> set[str]:
    """The ids that tests cite."""
    return {id for path in TESTS.rglob("*.py") for id in citations(kind, path.read_text())}


def listed(kind: str) -> tuple[set[str], set[str]]:
    """The ids that must be cited, and those of which the list says why they are not."""
    name, case = LISTS[kind]
    covered, _, others = (TESTS / "cases" / name).read_text().partition(NOT_COVERED)
    row = re.compile(rf"^\| ({case}) \|", re.MULTILINE)
    return set(row.findall(covered)) - {"id"}, set(row.findall(others)) - {"id"}


@pytest.mark.parametrize("kind", LISTS)
def test_every_cited_case_is_listed_and_every_listed_case_is_cited(kind: str) -> None:
    covered, not_covered = listed(kind)
    assert covered
    assert cited(kind) - covered == set(), "cited, but not explained in tests/cases"
    assert covered - cited(kind) == set(), "listed, but cited by no test"
    assert covered & not_covered == set()


@pytest.mark.parametrize("kind", LISTS)
def test_no_case_is_listed_twice(kind: str) -> None:
    name, case = LISTS[kind]
    ids = re.findall(rf"^\| ({case}) \|", (TESTS / "cases" / name).read_text(), re.MULTILINE)
    assert len(set(ids) - {"id"}) == len([id for id in ids if id != "id"])


@pytest.mark.parametrize(
    ("kind", "text", "ids"),
    [
        ("fault", '"""fault: U5, K-K; field: A7"""', {"U5", "K-K"}),
        ("field", '"""fault: U5, K-K; field: A7"""', {"A7"}),
        ("spec", '"""Limits of keys (spec: E5, C7; fault: M3)."""', {"E5", "C7"}),
        ("quirk", 'pytest.param([], id="quirk: a_ping")', {"a_ping"}),
        ("quirk", "def test(quirk: Quirk, spec: ServerToolDefinition) -> None: ...", set()),
    ],
)
def test_citations_are_found_wherever_they_stand(kind: str, text: str, ids: set[str]) -> None:
    assert citations(kind, text) == ids
