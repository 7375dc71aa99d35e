"""Followers of a run share its description, and neither they nor a long timeline take much memory (spec: E8, D1)."""

import asyncio
from contextlib import AsyncExitStack

from tests.api.runs.test_runs import Runs, runs
from tests.tools.execution.toolwork import call
from toolgate.api.runs.followed_runs import MOST_FOLLOWED, FollowedRunCache
from toolgate.api.runs.run_object import MOST_CONTENT, MOST_TEXT, RunTextsByStep, timeline_object
from toolgate.runs.timeline_recorder import TimelineCallEntry
from toolgate.storage.run_records import RunRecord

__all__ = ["runs"]

RUN = RunRecord("run_1", "ann", "background", "running", "m", 1.0)


async def test_a_run_that_many_follow_is_described_once_for_each_change() -> None:
    followers, described = FollowedRunCache(), 0

    async def describe() -> bytes:
        nonlocal described
        described += 1
        await asyncio.sleep(0)
        return b"{}"

    async def follow() -> list[bytes]:
        with followers.follow("ann", RUN.id) as followed:
            return [await followed.event(RUN, entries, describe) for entries in (["a"], ["a"], ["a", "b"])]

    (first, *others) = await asyncio.gather(*[follow() for _ in range(20)])
    assert described == 2
    assert first[0] is first[1] is not first[2]
    assert all([one is other for one, other in zip(first, seen, strict=True)] == [True] * 3 for seen in others)


async def test_a_key_follows_a_bounded_number_of_runs_at_a_time(runs: Runs) -> None:
    async def held(arguments: object) -> str:
        await asyncio.Event().wait()
        return "never"

    runs.write.give = held
    runs.work.play([call()], "Done.")
    id = await runs.background()
    ann, root = [{"authorization": f"Bearer {who}-key"} for who in ("ann", "root")]
    async with AsyncExitStack() as stack:
        for _ in range(MOST_FOLLOWED):
            followed = runs.client.stream("GET", f"/v1/runs/{id}?stream=true", headers=ann)
            assert (await stack.enter_async_context(followed)).status_code == 200
        refused = await runs.client.get(f"/v1/runs/{id}?stream=true", headers=ann)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        async with runs.client.stream("GET", f"/v1/runs/{id}?stream=true", headers=root) as other:
            assert other.status_code == 200
    await runs.post(f"/v1/runs/{id}/cancel", {})


async def test_a_server_that_shuts_down_ends_the_streams_of_followers(runs: Runs) -> None:
    release = asyncio.Event()

    async def held(arguments: object) -> str:
        await release.wait()
        return "written"

    runs.write.give = held
    runs.work.play([call()], "Done.")
    id = await runs.background()
    headers = {"authorization": "Bearer ann-key"}
    async with asyncio.timeout(60), runs.client.stream("GET", f"/v1/runs/{id}?stream=true", headers=headers) as stream:
        runs.work.gate.drain()
        text = "".join([line async for line in stream.aiter_lines()])
    assert "event: error" in text
    assert '"code":"overloaded"' in text
    release.set()
    await runs.until(id, "completed")


def test_a_timeline_shows_a_bounded_number_of_characters() -> None:
    calls = [TimelineCallEntry(1, f"call_{number}", "read", 1.0) for number in range(2000)]
    texts = {one.call: "x" * MOST_TEXT for one in calls}
    shown = timeline_object(RUN, calls, RunTextsByStep(texts, texts))
    assert sum(len(one["arguments"]) + len(one["result"]) for one in shown) <= MOST_CONTENT
    assert {one["result_length"] for one in shown} == {MOST_TEXT}
    few = timeline_object(RUN, calls[:50], RunTextsByStep({}, dict(list(texts.items())[:50])))
    assert {one["result"] for one in few} == {"x" * MOST_TEXT}
