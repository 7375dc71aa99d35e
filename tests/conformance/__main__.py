"""Run the suites and write docs/conformance.md: `python -m tests.conformance [--only features langchain …]`.

`--again features langchain` runs these anew, takes the other suites as the last run left them, and writes the page.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from tests.conformance import mcp_suite, report
from tests.conformance.node import HOME, ROOT, Node, install
from tests.conformance.suites import SUITES, Case, Suite

MCP = "mcp-suite"


def main() -> int:
    """Run what is asked for; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="make conformance")
    parser.add_argument("--only", nargs="+", choices=[*SUITES, MCP], help="run these suites and write nothing")
    parser.add_argument("--again", nargs="+", choices=SUITES, help="run these, and take the others from the last run")
    options = parser.parse_args()
    only, again = options.only, options.again or list(SUITES)
    HOME.mkdir(exist_ok=True)
    node = _node()
    cases = {
        name: run(name, suite, node) if name in again else read(results_file(name))
        for name, suite in SUITES.items()
        if only is None or name in only
    }
    runs = mcp_suite.run(node) if node is not None and (only is None or MCP in only) else []
    results = report.Results(cases, runs, node)
    for one in runs:
        print(f"{one.title}: {len(one.passed)} passed, {len(one.failed)} failed, {len(one.inapplicable)} do not apply")
    for title, count in report.summary(results):
        print(f"{title}: {count}")
    if only is None:
        for file, part in (
            (report.PAGE, report.page(results, datetime.now(UTC).date())),
            (report.README, report.totals(results)),
        ):
            file.write_text(report.renewed(file.read_text("utf-8"), part), "utf-8")
        print(f"written: {report.PAGE.relative_to(ROOT)}")
    return int(report.is_red(results))


def _node() -> Node | None:
    try:
        return install()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"Node cannot be had here, so its SDKs are not tried: {error}", file=sys.stderr)
        return None


def run(name: str, suite: Suite, node: Node | None) -> list[Case]:
    """Run a suite of tests in a process of its own."""
    print(f"{suite.title} …", flush=True)
    written = results_file(name)
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(suite.workers), f"--junitxml={written}", *suite.paths]
    with (HOME / f"{name}.log").open("w") as log:
        ran = subprocess.run(
            command, cwd=ROOT, env=_environment(node), stdout=log, stderr=subprocess.STDOUT, timeout=1200, check=False
        )
    if ran.returncode not in (0, 1):  # 1 says that tests failed, and those are counted
        raise SystemExit(f"{suite.title}: pytest ended with {ran.returncode}, see {log.name}")
    return read(written)


def _environment(node: Node | None) -> Mapping[str, str]:
    found = {"TOOLGATE_NODE": node.program, "TOOLGATE_NODE_MODULES": f"{node.modules}/"} if node else {}
    return {**os.environ, "TOOLGATE_CONFORMANCE": "1", **found}


def results_file(name: str) -> Path:
    """Where the results of a suite are."""
    return HOME / f"{name}.xml"


def read(written: Path) -> list[Case]:
    """The tests in a report of pytest."""
    cases = []
    for one in ElementTree.parse(written).iter("testcase"):
        outcome, message = "passed", ""
        for tag, meaning in (("skipped", "skipped"), ("failure", "failed"), ("error", "failed")):
            if (found := one.find(tag)) is not None:
                outcome, message = meaning, found.get("message", "").partition("\n")[0]
        cases.append(Case(one.get("classname", ""), one.get("name", ""), outcome, message))
    return cases


if __name__ == "__main__":
    sys.exit(main())
