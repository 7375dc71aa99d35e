"""Write docs/conformance.md and the totals in the README from the results of a run."""

import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from importlib import metadata

from msgspec import Struct

import toolgate
from tests.conformance.clients import CLIENTS
from tests.conformance.examples import SOURCES
from tests.conformance.features import CELLS, FEATURES, LANGUAGES, Cell
from tests.conformance.mcp_suite import SuiteRun
from tests.conformance.node import ROOT, SDKS, Node
from tests.conformance.stage import COLUMNS
from tests.conformance.suites import FEATURES_SUITE, SUITES, Case, Suite
from tests.dialects import chat_quirks, openai_responses_cases
from toolgate.text_tools.syntaxes import syntaxes

PAGE = ROOT / "docs" / "conformance.md"
README = ROOT / "README.md"
TITLES = {
    "chat": "OpenAI Chat Completions",
    "responses": "OpenAI Responses",
    "messages": "Anthropic Messages",
    "ollama": "Ollama",
}
PYTHON = (
    "openai",
    "anthropic",
    "ollama",
    "langchain-tests",
    "langchain-openai",
    "langchain-anthropic",
    "langchain-ollama",
)
_BEGIN, _END = "<!-- conformance: begin -->", "<!-- conformance: end -->"


class Results(Struct, frozen=True):
    """What a run found."""

    cases: Mapping[str, Sequence[Case]]
    mcp: Sequence[SuiteRun]
    node: Node | None


class Count(Struct):
    """Tests that passed, failed and were skipped."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, case: Case) -> None:
        """Count a test."""
        setattr(self, case.outcome, getattr(self, case.outcome) + 1)

    def __str__(self) -> str:
        if not self.passed + self.failed:
            return "–"
        return f"{self.passed:,}" if not self.failed else f"**{self.passed:,} of {self.passed + self.failed:,}**"


def total(cases: Iterable[Case]) -> Count:
    """The count of these tests."""
    count = Count()
    for case in cases:
        count.add(case)
    return count


class Matrix:
    """The cells of the matrix, as the tests of the first suite left them."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self._found: dict[str, list[Case]] = {}
        for case in cases:
            self._found.setdefault(SUITES[FEATURES_SUITE].place(case)[0], []).append(case)

    def tests(self, cell: Cell) -> list[Case]:
        """The tests of a cell that were run."""
        return [case for case in self._found.get(cell.id, ()) if case.outcome != "skipped"]

    def state(self, cell: Cell) -> str:
        """`green`, `red`, or `untried`."""
        tests = self.tests(cell)
        if not tests:
            return "untried"
        return "green" if all(case.outcome == "passed" for case in tests) else "red"

    def count(self, state: str) -> int:
        """How many cells are in this state."""
        return sum(self.state(cell) == state for cell in CELLS)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return [*lines, *[f"| {' | '.join(row)} |" for row in rows], ""]


class Notes:
    """Numbered sentences below a table, each once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, sentence: str) -> str:
        """The mark that refers to it."""
        return f"<sup>{self._numbers.setdefault(sentence, len(self._numbers) + 1)}</sup>"

    def lines(self) -> list[str]:
        """The list of them."""
        listed = [f"{number}. {sentence}" for sentence, number in self._numbers.items()]
        return [*listed, ""] if listed else []


def _cell(matrix: Matrix, client: str, upstream: str, feature: str, notes: Notes) -> str:
    cells = [Cell(language, client, upstream, feature) for language in LANGUAGES]
    states = {matrix.state(cell) for cell in cells} - {"untried"}
    if "red" in states:
        failed = [case for cell in cells for case in matrix.tests(cell) if case.outcome == "failed"]
        return "✗" + notes.mark(f"{len(failed)} of its tests failed: {failed[0].message}")
    row = FEATURES[feature]
    if states:
        warned = row.warned.get(upstream)
        mark = notes.mark(warned) if warned else ""
        only = notes.mark("Tried with the SDK of Python alone.") if row.python_only else ""
        return f"✓{mark}{only}"
    return "–" + notes.mark(cells[0].reason or "Not tried.")


def _matrix(matrix: Matrix) -> list[str]:
    lines = ["## Client API × upstream API × feature", ""]
    lines += ["✓ green, ✗ red, – nothing to try; the notes say why.", ""]
    for client, title in TITLES.items():
        notes = Notes()
        rows = [
            [row.title, *[_cell(matrix, client, upstream, feature, notes) for upstream in COLUMNS]]
            for feature, row in FEATURES.items()
        ]
        lines += [f"### {title}", "", *_table(["feature", *COLUMNS.values()], rows), *notes.lines()]
    return lines


def _counts(suite: Suite, cases: Sequence[Case], head: str) -> list[str]:
    """A table of the suite's rows and columns."""
    places: dict[tuple[str, str], Count] = {}
    for case in cases:
        places.setdefault(suite.place(case), Count()).add(case)
    rows = list(dict.fromkeys(sorted(row for row, _ in places)))
    columns = [name for name in (*COLUMNS.values(), "all", "refused") if any(name == c for _, c in places)]
    columns += sorted({column for _, column in places} - set(columns))
    body = [[row, *[str(places.get((row, column), Count())) for column in columns]] for row in rows]
    return _table([head, *[column or "tests" for column in columns]], body)


def _failures(cases: Sequence[Case]) -> list[str]:
    failed = [case for case in cases if case.outcome == "failed"]
    return [*[f"- ✗ `{case.name}`: {case.message}" for case in failed], ""] if failed else []


def _section(results: Results, name: str, head: str) -> list[str]:
    suite, cases = SUITES[name], results.cases.get(name, ())
    title = suite.title[0].upper() + suite.title[1:]
    return [f"## {title}", "", suite.about, "", *_counts(suite, cases, head), *_failures(cases)]


def _examples_not_offered() -> list[str]:
    lines = ["Not offered, and refused with a 404 or 405 in words:", ""]
    for source in SOURCES.values():
        for path, one in source.not_offered.items():
            times = f"{one.count} examples" if one.count > 1 else "1 example"
            lines.append(f"- `{one.method} {path}` ({times}): {one.why}")
    return [*lines, ""]


def _official_mcp(runs: Sequence[SuiteRun]) -> list[str]:
    rows = [
        [one.title, str(len(one.passed)), str(len(one.failed)), str(len(one.inapplicable)), str(one.checks)]
        for one in runs
    ]
    lines = ["## MCP, with the official conformance suite", ""]
    lines += ["`@modelcontextprotocol/conformance` against our server.", ""]
    lines += _table(["run", "scenarios passed", "failed", "do not apply", "checks passed"], rows)
    lines += [
        "What does not apply to a server that has tools and nothing else is named, with the reason, in"
        " `tests/mcp/server/conformance.yaml` and `conformance-2026-07-28.yaml`.",
        "",
    ]
    return [*lines, *[f"- ✗ {one.title}: {', '.join(one.failed)}" for one in runs if one.failed]]


def _versions(node: Node | None) -> dict[str, str]:
    found = {f"{name} (Python)": metadata.version(name) for name in (*PYTHON, "mcp")}
    if node is not None:
        found |= {f"{name} (Node)": node.package(name) for name in SDKS}
        found["Node"] = node.version
    return {"Toolgate": toolgate.__version__, "Python": platform.python_version(), **found}


def summary(results: Results) -> list[tuple[str, str]]:
    """The rows of the totals: a suite, and its count in words."""
    matrix = Matrix(results.cases.get(FEATURES_SUITE, ()))
    tried = matrix.count("green") + matrix.count("red")
    rows = [(SUITES[FEATURES_SUITE].title, f"{matrix.count('green'):,} of {tried:,} cells")]
    for name, suite in SUITES.items():
        if name == FEATURES_SUITE or name not in results.cases:
            continue
        count = total(results.cases[name])
        rows.append((suite.title, f"{count.passed:,} of {count.passed + count.failed:,} tests"))
    if results.mcp:
        passed, failed = sum(len(one.passed) for one in results.mcp), sum(len(one.failed) for one in results.mcp)
        rows.append(("MCP, with the official conformance suite", f"{passed} of {passed + failed} scenarios"))
    return rows


def is_red(results: Results) -> bool:
    """Whether anything failed."""
    failed = [case for cases in results.cases.values() for case in cases if case.outcome == "failed"]
    return bool(failed) or any(one.failed for one in results.mcp)


def page(results: Results, day: date) -> str:
    """The part of docs/conformance.md that a run writes."""
    versions = _versions(results.node)
    quirks = len(chat_quirks.QUIRKS) + len(openai_responses_cases.QUIRKS)
    lines = [f"Taken {day.isoformat()} on {platform.system()} with:", ""]
    lines += [*[f"- {name} {version}" for name, version in versions.items()], ""]
    if results.node is None:
        lines += ["Node could not be installed: its SDKs and the official MCP suite were not tried.", ""]
    lines += ["## Totals", "", *_table(["suite", "passed"], [[f"{name}", count] for name, count in summary(results)])]
    lines += _matrix(Matrix(results.cases.get(FEATURES_SUITE, ())))
    lines += _section(results, "clients", "what")
    lines += _section(results, "openresponses", "case")
    lines += _section(results, "langchain", "class")
    lines += _section(results, "examples", "documentation")
    lines += _examples_not_offered()
    lines += _official_mcp(results.mcp)
    lines += _section(results, "mcp", "side")
    lines += _section(results, "quirks", "what")
    lines += [f"{quirks} of the streams have a name of their own (`tests/dialects`).", ""]
    lines += _section(results, "text", "what")
    lines += [f"{len(list(syntaxes()))} forms are read ([text models](text-models.md)).", ""]
    lines += _section(results, "laws", "law")
    return "\n".join(lines).rstrip("\n")


def totals(results: Results) -> str:
    """The part of the README that a run writes."""
    return "\n".join([f"- {name}: {count}" for name, count in summary(results)])


def renewed(text: str, part: str) -> str:
    """The text with this part between its marks."""
    begin, end = text.index(_BEGIN) + len(_BEGIN), text.index(_END)
    return f"{text[:begin]}\n{part}\n{text[end:]}"


assert set(TITLES) == set(CLIENTS)
