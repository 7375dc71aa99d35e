"""A benchmark whose load generator fails: the figure is missing, and the rest is measured."""

import io
import os
import sys
from pathlib import Path

import pytest
from rich.console import Console

from bench.__main__ import print_change
from bench.field import QUICK, Field, Standing, mock
from bench.figures import Figure, Machine, Results
from bench.load import Job
from bench.peers import Direct
from bench.processes import hold, load
from bench.sampling import Case, sample
from bench.shapes import CHAT, Shape

JOB = Job(0, "/v1/chat/completions", {}, "{}", requests=7, connections=1, words=1)
CASE = Case("cpu", "request", CHAT, Shape("mock"))
LOST = "the load generator ended with 0 and no outcome"


def replace_generator(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a shell script run in place of the Python that load generators run in."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


@pytest.mark.parametrize(("script", "code"), [("read job; echo '{\"ok\": 1'", 0), ("kill -9 $$", -9)])
def test_a_failed_generator_names_its_job_and_counts_no_answer(
    script: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    replace_generator(script, tmp_path, monkeypatch)
    outcomes = [load(JOB), hold(JOB, os.getpid())[1]]
    reason = f"the load generator ended with {code} and no outcome"
    assert [(outcome.ok, outcome.lost) for outcome in outcomes] == [(0, reason)] * 2
    sent = "7 × POST /v1/chat/completions on port 0, 1 connections"
    assert capfd.readouterr().err == f"not measured: {sent}: {reason}\n" * 2


def test_other_jobs_are_measured_after_one_was_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = tmp_path / "failing"
    script = f"""[ -e {failing} ] && echo '{{"ok": 1' && exit 0\nexec {sys.executable} "$@" """
    replace_generator(script, tmp_path, monkeypatch)
    monkeypatch.setattr("bench.processes.WORK", tmp_path)  # where logs are written
    with mock() as upstream:
        field = Field([], upstream, QUICK._replace(repeats=1, cpu_budget=0.01), lambda topic, line: True)
        field.servers = [Standing(Direct(), os.getpid(), upstream, upstream)]
        failing.touch()
        (missing,) = sample(field, CASE)
        failing.unlink()
        (measured,) = sample(field, CASE)
    assert (missing.samples, missing.failures, missing.absent) == ((), {}, LOST)
    assert (len(measured.samples), measured.absent) == (1, "")


def test_the_table_of_a_comparison_marks_what_is_missing() -> None:
    figures = (
        Figure("cpu", "request", "before", absent=LOST),
        Figure("cpu", "request", "toolgate", samples=(1e-3,)),
    )
    machine = Machine("", "", 2, 0, "", 0.0)
    console = Console(record=True, width=200, file=io.StringIO())
    print_change(Results("", "quick", machine, {}, {}, figures), console)
    (row,) = [line for line in console.export_text().splitlines() if "request" in line]
    assert LOST in row
    assert "1.00 ms" in row
    assert "missing" in row
