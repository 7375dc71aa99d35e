"""The loop law: under hostile input no step of the event loop uses more than 50 ms of CPU, and no thread holds it up.

Every file of `corpus/` is a case, found by itself; README.md says how one is written. A case fails only if each of three
attempts has an overrun, so that a cold cache or a collection of somebody else's garbage does not count.

Of variants that combine things (`client-upstream`), a slice is played in which each thing occurs; `TOOLGATE_LAW_CASES=all`
plays every combination, and so does `make laws`.
"""

import asyncio
import importlib.util
import os
import random
import re
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from tests.laws.gateway import Gateway, measured_gateway
from tests.laws.loop import LIMIT, PERIOD, MeasuredLoop, Monitor, Overrun

CORPUS = Path(__file__).parent / "corpus"
ALL = os.environ.get("TOOLGATE_LAW_CASES") == "all"
ATTEMPTS = 3
_SHOWN = 3


def _load(path: Path) -> ModuleType:
    name = ".".join(("tests.laws.corpus", *path.relative_to(CORPUS).with_suffix("").parts))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _slice(variants: Sequence[str], seed: str) -> list[str]:
    """Few of the variants, drawn by chance, in which every kind, client, model, … of their names occurs."""
    drawn = random.Random(seed).sample(variants, len(variants))
    things = {variant: set(enumerate(variant.split("-"))) for variant in drawn}
    missing = set[tuple[int, str]]().union(*things.values())
    chosen = []
    while missing:
        chosen.append(max(drawn, key=lambda variant: len(things[variant] & missing)))
        missing -= things[chosen[-1]]
    return chosen


def _cases() -> Iterator[object]:
    for path in sorted(CORPUS.rglob("*.py")):
        case = _load(path)
        if not hasattr(case, "play"):
            continue  # test_answers.py plays it
        name = "/".join(path.relative_to(CORPUS).with_suffix("").parts)
        variants = getattr(case, "VARIANTS", None)
        for variant in [None] if variants is None else variants if ALL else _slice(variants, name):
            known = getattr(case, "KNOWN", {}).get(variant)
            marks = [pytest.mark.xfail(strict=False, reason=known)] if known else []
            yield pytest.param(case, variant, id=name if variant is None else f"{name}:{variant}", marks=marks)


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with measured_gateway() as opened:
        yield opened


@pytest.mark.parametrize(("case", "variant"), list(_cases()))
def test_no_step_of_the_loop_uses_more_than_its_share(gateway: Gateway, case: ModuleType, variant: str | None) -> None:
    overruns: list[Overrun] = []
    for _ in range(ATTEMPTS):
        overruns = _attempt(gateway, case, variant)
        if not overruns:
            return
    worst = sorted(overruns, key=lambda one: -one.seconds)[:_SHOWN]
    pytest.fail("\n\n".join([f"{len(overruns)} overruns, the worst:", *map(str, worst)]), pytrace=False)


def _attempt(gateway: Gateway, case: ModuleType, variant: str | None) -> list[Overrun]:
    gateway.begin()
    try:
        asyncio.run(_played(gateway, case, variant))
        return gateway.end()
    except BaseException:
        gateway.restart()
        raise


async def _played(gateway: Gateway, case: ModuleType, variant: str | None) -> None:
    gateway.play()
    await (case.play(gateway) if variant is None else case.play(gateway, variant))
    assert (await gateway.get("/healthz")).status == 200


def test_every_route_has_a_case(gateway: Gateway) -> None:
    bodies, lists, objects = [
        _load(CORPUS / f"{name}.py").VARIANTS
        for name in ("bodies/every_endpoint", "listings/records", "listings/one_object")
    ]
    posted = {re.sub(r"/[a-z]+_1\b|/repeat\b", "/{}", path) for path in bodies}
    tested = {f"POST {path}" for path in posted} | {f"GET {path}" for path in lists} | set(objects)
    routes = asyncio.run(gateway.get("/openapi.json")).json["paths"]
    found = {f"{method.upper()} {path.replace('{id}', '{}')}" for path in routes for method in routes[path]}
    # WebSockets are in `websocket/` and in `tests/bridge/test_loop.py`; the stream of /mcp carries nothing that is sent.
    assert found - tested == {"GET /v1/responses", "GET /bridge", "GET /mcp", "DELETE /mcp"}


def _measured(work: Callable[[], Coroutine[None, None, None]]) -> list[Overrun]:
    monitor = Monitor()

    async def watched() -> None:
        monitor.start()
        await asyncio.create_task(work())
        await asyncio.to_thread(monitor.stop)

    with asyncio.Runner(loop_factory=lambda: MeasuredLoop(monitor)) as runner:
        runner.run(watched())
    return monitor.overruns


def _compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(100))


def test_a_step_that_computes_too_long_is_found_with_its_place() -> None:
    async def greedy() -> None:
        await asyncio.sleep(0)
        _compute(4 * LIMIT)

    (overrun,) = _measured(greedy)
    assert overrun.kind == "step"
    assert "greedy" in overrun.name
    assert any("_compute" in stack for stack in overrun.stacks)


def test_waiting_is_not_charged_to_a_step() -> None:
    async def patient() -> None:
        time.sleep(4 * LIMIT)  # noqa: ASYNC251  # blocks the loop, but needs no processor

    assert _measured(patient) == []


def test_a_thread_that_shares_the_interpreter_is_no_hold() -> None:
    async def shared() -> None:
        await asyncio.to_thread(_compute, 4 * LIMIT)

    assert _measured(shared) == []


def test_a_thread_that_keeps_the_interpreter_to_itself_is_found() -> None:
    async def frozen() -> None:
        for _ in range(5):  # one that begins while the watch reads its own delay is missed
            await asyncio.sleep(5 * PERIOD)
            await asyncio.to_thread(sum, range(8_000_000))

    overruns = _measured(frozen)
    assert overruns
    assert {one.kind for one in overruns} == {"hold"}
