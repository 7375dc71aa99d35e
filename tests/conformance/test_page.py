"""docs/conformance.md has every row that the code knows, and the README has its totals; the results are not judged here."""

import pytest

from tests.conformance import mcp_suite
from tests.conformance.features import FEATURES
from tests.conformance.node import ROOT
from tests.conformance.report import PAGE, README, TITLES
from tests.conformance.suites import FILES, SUITES, by_file

TEXT = PAGE.read_text("utf-8")


@pytest.mark.parametrize("client", TITLES)
def test_the_table_of_a_client_has_every_feature(client: str) -> None:
    table = TEXT.partition(f"### {TITLES[client]}\n")[2].partition("\n#")[0]
    missing = [feature.title for feature in FEATURES.values() if f"| {feature.title} |" not in table]
    assert missing == [], "run `make conformance`"


def test_every_suite_is_where_the_command_looks_for_it() -> None:
    paths = [ROOT / path for suite in SUITES.values() for path in suite.paths if not path.startswith("-")]
    assert [
        path for path in [*paths, *[mcp_suite.FOLDER / name for *_, name in mcp_suite.RUNS]] if not path.exists()
    ] == []


def test_every_file_of_a_suite_that_is_listed_by_files_has_a_name() -> None:
    listed = [suite for suite in SUITES.values() if suite.place is by_file]
    ignored = {path.removeprefix("--ignore=") for suite in listed for path in suite.paths if path.startswith("-")}
    files = {
        file.stem.removeprefix("test_")
        for suite in listed
        for path in suite.paths
        if not path.startswith("-")
        for file in ([ROOT / path] if path.endswith(".py") else (ROOT / path).rglob("test_*.py"))
        if str(file.relative_to(ROOT)) not in ignored
    }
    assert files == FILES.keys()


def test_page_and_readme_have_the_totals_of_every_suite() -> None:
    for suite in SUITES.values():
        assert f"| {suite.title} |" in TEXT, "run `make conformance`"
        assert f"- {suite.title}: " in README.read_text("utf-8"), "run `make conformance`"
