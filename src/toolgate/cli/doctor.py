"""`toolgate doctor`: look at everything that a server needs, and say for each thing how it is and what to do.

It changes nothing. Tool sources are opened for a moment as a server would open them: MCP servers are started and Python
tools are loaded.
"""

import os
import shutil
import sys
import textwrap
from typing import Annotated

import typer

from toolgate.cli.api_client import Key, Url, plain, url_given
from toolgate.cli.config_file import ConfigOption, find_config
from toolgate.cli.doctor_findings import DoctorFinding, FindingLevel
from toolgate.cli.server_url import DEFAULT_URL, configured_url

_COLOURS = {FindingLevel.OK: "green", FindingLevel.WARNING: "yellow", FindingLevel.PROBLEM: "red"}
_LEVEL_WIDTH = 9
_SUBJECT_WIDTH = 12


def doctor(
    context: typer.Context,
    config: ConfigOption = None,
    offline: Annotated[bool, typer.Option("--offline", help="Ask no upstream and open no tool source.")] = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Check configuration, port, database, Redis, upstreams, keys, weights, disk and tools, and say what to do."""
    from toolgate.cli.doctor_checks import run_checks

    worst, path, given = FindingLevel.OK, find_config(config), url_given(context)
    # The option's own default reads toolgate.yaml in the current folder, but --config may name another file.
    if path is not None and not given:
        url = configured_url(path)
    for finding in run_checks(path, url, key, url_given=given, offline=offline):
        _print(finding)
        worst = max(worst, finding.level)
    if worst is FindingLevel.PROBLEM:
        raise typer.Exit(1)


def _print(finding: DoctorFinding) -> None:
    """Print a finding: a line and its advice for a person, tab-separated values for a program."""
    level, lines = finding.level.name.lower(), [plain(line.expandtabs(1)) for line in finding.text.splitlines() or [""]]
    if not sys.stdout.isatty():
        advice = plain(" ".join((finding.advice or "").split()))
        typer.echo("\t".join([level, finding.subject, " ".join(lines), advice]))
        return
    indent = " " * (_LEVEL_WIDTH + _SUBJECT_WIDTH)
    width = max(20, shutil.get_terminal_size().columns - len(indent))
    texts = [part for line in lines for part in textwrap.wrap(line, width) or [""]]
    advice_lines = textwrap.wrap(plain(finding.advice or ""), max(10, width - 2))
    texts += [f"→ {part}" if number == 0 else f"  {part}" for number, part in enumerate(advice_lines)]
    colour = None if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else _COLOURS[finding.level]
    head = typer.style(f"{level:{_LEVEL_WIDTH}}", fg=colour) + f"{finding.subject:{_SUBJECT_WIDTH}}"
    typer.echo(head + f"\n{indent}".join(texts))
