"""Run the official MCP conformance suite against the MCP server.

What does not apply to a server that has tools and nothing else is named, with the reason, in
tests/mcp/server/conformance*.yaml; all else must pass.
"""

import asyncio
import re
import subprocess

from msgspec import Struct

from tests.conformance.node import MCP_SUITES, ROOT, Node
from tests.mcp.server.conformance import conformance_catalog
from tests.mcp.server.fake_catalog import serving

FOLDER = ROOT / "tests" / "mcp" / "server"
RUNS = (
    ("2025-11-25", "mcp-conformance-released", ("--suite", "active"), "conformance.yaml"),
    (
        "2025-11-25",
        "mcp-conformance-next",
        ("--suite", "all", "--spec-version", "2025-11-25"),
        "conformance.yaml",
    ),
    (
        "2026-07-28",
        "mcp-conformance-next",
        ("--suite", "all", "--spec-version", "2026-07-28"),
        "conformance-2026-07-28.yaml",
    ),
)
_LINE = re.compile(r"^([✓✗]) ([\w-]+): (\d+) passed, (\d+) failed", re.MULTILINE)


class SuiteRun(Struct, frozen=True):
    """A run of the suite: its scenarios that passed, those that do not apply, and those that failed."""

    revision: str
    version: str
    passed: tuple[str, ...] = ()
    inapplicable: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    checks: int = 0
    output: str = ""

    @property
    def title(self) -> str:
        """Its row in the page."""
        return f"server, {self.revision}, suite {self.version}"


def planned() -> list[SuiteRun]:
    """The runs that there are, not yet run."""
    return [SuiteRun(revision, MCP_SUITES[suite]) for revision, suite, _, _ in RUNS]


def run(node: Node) -> list[SuiteRun]:
    """Serve the tools that the suite looks for, and run it in every revision."""

    async def all_of_them() -> list[SuiteRun]:
        async with serving(conformance_catalog(), seconds=None) as url:
            return [await asyncio.to_thread(_run, node, url, *one) for one in RUNS]

    return asyncio.run(all_of_them())


def _run(node: Node, url: str, revision: str, suite: str, options: tuple[str, ...], baseline: str) -> SuiteRun:
    expected = FOLDER / baseline
    command = [node.program, node.suite(suite), "server", "--url", f"{url}/mcp", *options]
    ran = subprocess.run(
        [*command, "--expected-failures", str(expected)], capture_output=True, text=True, timeout=600, check=False
    )
    named = set(re.findall(r"^  - ([\w-]+)", expected.read_text(), re.MULTILINE))
    found = _LINE.findall(ran.stdout)
    passed = tuple(name for mark, name, _, _ in found if mark == "✓" and name not in named)
    failed = tuple(name for mark, name, _, _ in found if mark == "✗" and name not in named)
    if ran.returncode and not failed:
        failed = ("the suite itself",)
    inapplicable = tuple(name for _, name, _, _ in found if name in named)
    checks = sum(int(count) for _, _, count, _ in found)
    return SuiteRun(revision, MCP_SUITES[suite], passed, inapplicable, failed, checks, ran.stdout + ran.stderr)
