"""Proves before every run that the measuring itself is right: good answers count, bad ones are noticed."""

import msgspec

from bench.field import Standing
from bench.load import Job
from bench.peers import Direct
from bench.processes import Failed, load
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


def _check_wrong(job: Job) -> None:
    """Expects one word too many, an end that is never sent, and a path that is not there."""
    for change in ({"words": job.words + 1}, {"terminator": "never sent"}, {"path": "/nowhere"}):
        if load(msgspec.structs.replace(job, **change)).ok:
            raise Failed(f"the load generator calls wrong answers right: {change}")
