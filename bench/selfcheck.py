"""Proves before every run that the measuring itself is right: good answers count, bad ones are noticed."""

import msgspec

from bench import processes
from bench.field import Standing
from bench.load import Job, Outcome
from bench.peers import Direct
from bench.processes import Failed
from bench.shapes import CHAT, Route, Shape

RIGHT = (Shape("mock"), Shape("mock-tools", stream=True, tools=True), Shape("mock-chunks-1000", stream=True))


def check(upstream: int) -> None:
    """Sends every kind of request to the mock itself, and some that must be called wrong."""
    direct = Standing(Direct(), 0, upstream, upstream)
    for route in (CHAT, Route("messages", "messages")):
        jobs = [job for shape in RIGHT if (job := direct.job(route, shape, 10)) is not None]
        for job in jobs:
            if failures := load(job).failures:
                raise Failed(f"the load generator calls right answers wrong: {failures}")
        _check_wrong(jobs[-1])
    _check_rounds(direct)
    _check_first_text(direct)


def load(job: Job) -> Outcome:
    """The outcome, without which nothing is proved."""
    outcome = processes.load(job)
    if outcome.lost:
        raise Failed(outcome.lost)
    return outcome


def _check_wrong(job: Job) -> None:
    """Expects one word too many, an end that is never sent, and a path that is not there."""
    for change in ({"words": job.words + 1}, {"terminator": "never sent"}, {"path": "/nowhere"}):
        if load(msgspec.structs.replace(job, **change)).ok:
            raise Failed(f"the load generator calls wrong answers right: {change}")


def _check_rounds(direct: Standing) -> None:
    """Expects answers to be right at every stage of a client's rounds, and the first alone to be no run of all rounds."""
    stages = [Shape("mock-rounds-4", ran=ran) for ran in range(5)]
    for shape, right in [
        *((stage, True) for stage in stages),
        (Shape("mock-rounds-4", server_tools=("clock",)), False),
    ]:
        job = direct.job(CHAT, shape, 1)
        assert job is not None
        if bool(load(job).ok) is not right:
            raise Failed(f"the load generator misjudges {shape}")


def _check_first_text(direct: Standing) -> None:
    """Expects the first word of a stream that takes half a second long before its last."""
    job = direct.job(CHAT, Shape("mock-chunks-100-every-5", stream=True), 1)
    assert job is not None
    response = load(job)
    if not response.first or response.first[0] > response.latencies[0] / 2:
        raise Failed("the load generator does not notice when the first word comes")
