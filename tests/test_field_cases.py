"""Every field case that concerns what is built is cited by a test or accounted for in `field_cases.md`."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
LISTED = {
    "A": [1, 2, *range(4, 8), *range(9, 13), *range(14, 18), *range(19, 23), *range(24, 28), *range(29, 33)],
    "B": [
        1,
        2,
        *range(4, 8),
        *range(9, 13),
        *range(14, 18),
        *range(19, 23),
        *range(24, 28),
        *range(29, 33),
        *range(34, 38),
        39,
    ],
    "C": [1, 2, 4, 5, 6, 7, 9, 10, 11, 12],
    "D": [1, 2, 4, 5, 6, 7, 9, 10, 11, 12, 14, 15, 16, 17],
    "E": [
        1,
        2,
        *range(4, 8),
        *range(9, 13),
        *range(14, 18),
        *range(19, 23),
        *range(24, 28),
        *range(29, 33),
        *range(34, 38),
        *range(39, 43),
    ],
    "F": [0, 1, 2, 4, 5, 6, 7, 9, 10, 11, 12, 14, 15, 16, 17, 19, 20, 21, 22, 24, 25, 26, 27, 29, 30],
    "G": [1, 2, 4, 5, 6, 7, 9, 10, 11, 12, 14, 15],
}


def cited() -> set[str]:
    """The ids that tests name."""
    found: set[str] = set()
    for path in TESTS.rglob("*.py"):
        for group in re.findall(r"field:\s*((?:[A-G]\d+(?:,\s*)?)+)", path.read_text()):
            found |= set(re.findall(r"[A-G]\d+", group))
    return found


def test_every_field_case_is_cited_or_accounted_for() -> None:
    accounted = set(re.findall(r"^\| ([A-G]\d+) \|", (TESTS / "field_cases.md").read_text(), re.MULTILINE))
    wanted = {f"{letter}{number}" for letter, numbers in LISTED.items() for number in numbers}
    assert wanted - cited() - accounted == set()
    assert accounted & cited() == set(), "accounted for as uncovered, yet cited"
