"""Background responses over real sockets: polled, followed, resumed, cancelled, abandoned (spec: C3, D3)."""

import asyncio
import itertools
import re
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.api.http_client import HttpConnection
from tests.api.responses.stateful import Stateful, stateful, until
from toolgate.api.responses import BackgroundResponseOptions
from toolgate.conversation.errors import UpstreamUnavailable
from toolgate.conversation.message import Text, ToolCall
from toolgate.dialects.openai_responses import items_sent_before_crash
from toolgate.storage.responses import ResponseStore
from toolgate.storage.sql_engine import unavailable
from toolgate.storage.streams import StreamStore
from toolgate.testing import FakeSource, FakeTool
from toolgate.wire.jsontext import decode

ASKED: dict[str, Any] = {"model": "m", "input": "Hi", "background": True}
STREAMED = {**ASKED, "stream": True}
FORMS: dict[str, dict[str, bool]] = {"whole": {}, "streamed": {"stream": True}, "background": {"background": True}}
LONG = "One two three four five six seven eight nine ten."


@pytest.fixture
async def server() -> AsyncIterator[Stateful]:
    async with stateful() as server:
        yield server


def events(body: bytes) -> list[dict[str, Any]]:
    """The events of a stream that must have ended as streams do."""
    frames = [frame for frame in body.split(b"\n\n") if frame and not frame.startswith(b":")]
    assert frames.pop() == b"data: [DONE]"
    return [msgspec.json.decode(frame.partition(b"\ndata: ")[2]) for frame in frames]


async def read_events(caller: HttpConnection, count: int) -> list[dict[str, Any]]:
    """So many events of a stream that goes on."""
    response = b""
    await caller.head()
    while response.count(b"\n\n") < count:
        response += await caller.chunk()
    return events(b"".join([frame + b"\n\n" for frame in response.split(b"\n\n")[:count]]) + b"data: [DONE]\n\n")


async def test_a_background_response_is_queued_runs_and_completes(server: Stateful) -> None:
    """field: D14"""
    steps: asyncio.Queue[None] = asyncio.Queue()
    asked, go = asyncio.Event(), asyncio.Event()

    async def wait(_: Any) -> str:
        asked.set()
        await go.wait()
        return "Hello."

    server.play(wait, pace=steps.get)
    queued = (await server.request("POST", "/v1/responses", ASKED)).json
    assert (queued["status"], queued["background"], queued["output"]) == ("queued", True, [])
    await asked.wait()
    path = f"/v1/responses/{queued['id']}"
    assert (await server.request("GET", path)).json == queued
    go.set()

    async def runs() -> bool:
        return await server.status(queued["id"]) != "queued"

    await until(runs)
    assert (await server.request("GET", path)).json == {**queued, "status": "in_progress"}
    for _ in range(20):
        steps.put_nowait(None)
    kept = await server.ended(queued["id"])
    assert (kept["status"], kept["id"], kept["created_at"]) == ("completed", queued["id"], queued["created_at"])
    assert kept["output"][0]["content"][0]["text"] == "Hello."


async def test_a_background_response_must_be_stored(server: Stateful) -> None:
    response = await server.request("POST", "/v1/responses", {**ASKED, "store": False})
    assert (response.status, response.json["error"]["param"]) == (400, "background")


async def test_a_wrong_request_is_refused_at_once(server: Stateful) -> None:
    response = await server.request("POST", "/v1/responses", {**ASKED, "model": "absent"})
    assert (response.status, response.json["error"]["code"]) == (404, "model_not_found")
    for name in ("stream", "background"):
        response = await server.request("POST", "/v1/responses", {**ASKED, name: "yes"})
        assert (response.status, response.json["error"]["param"]) == (400, name)


async def test_the_stream_survives_its_client_and_resumes_exactly_after_any_number(server: Stateful) -> None:
    """field: D14"""
    steps: asyncio.Queue[None] = asyncio.Queue()
    server.play(LONG, pace=steps.get)
    for _ in range(4):
        steps.put_nowait(None)
    async with server.asking("POST", "/v1/responses", STREAMED) as caller:
        seen = await read_events(caller, 5)
        caller.abort()
    id = seen[0]["response"]["id"]
    for _ in range(30):
        steps.put_nowait(None)
    resumed = await server.request(
        "GET", f"/v1/responses/{id}?stream=true&starting_after={seen[-1]['sequence_number']}"
    )
    emitted = [*seen, *events(resumed.body)]
    assert [event["sequence_number"] for event in emitted] == list(range(len(emitted)))
    assert emitted[-1]["response"] == await server.ended(id)
    assert "".join(event["delta"] for event in emitted if event["type"] == "response.output_text.delta") == LONG
    for number in range(-1, len(emitted)):
        query = f"starting_after={number}" if number >= 0 else ""
        again = await server.request("GET", f"/v1/responses/{id}?stream=true&{query}")
        assert events(again.body) == emitted[number + 1 :]


async def test_many_readers_of_a_running_response_get_the_same_events(server: Stateful) -> None:
    go = asyncio.Event()
    server.play(LONG, pace=go.wait)
    id = ""
    async with server.asking("POST", "/v1/responses", STREAMED) as first:
        id = (await read_events(first, 2))[0]["response"]["id"]
        path = f"/v1/responses/{id}?stream=true"
        readers = [asyncio.create_task(server.request("GET", path)) for _ in range(5)]
        await asyncio.sleep(0)
        go.set()
        emitted = [events((await reader).body) for reader in readers]
    assert all(one == emitted[0] for one in emitted)
    assert emitted[0][-1]["type"] == "response.completed"


async def test_events_reach_the_disk_while_the_model_is_silent() -> None:
    hold = asyncio.Event()
    async with stateful(terms=BackgroundResponseOptions(flush_seconds=0.01)) as server:
        server.play(LONG, pace=hold.wait)
        async with server.asking("POST", "/v1/responses", STREAMED) as caller:
            seen = await read_events(caller, 2)
            id = seen[0]["response"]["id"]
            await server.on_disk(id, 2)


async def test_a_failure_before_the_first_word_is_kept_and_reported(server: Stateful) -> None:
    server.play(UpstreamUnavailable("The model is out of order."))
    response = await server.request("POST", "/v1/responses", STREAMED)
    emitted = events(response.body)
    assert [event["type"] for event in emitted] == [
        "response.created",
        "response.in_progress",
        "error",
        "response.failed",
    ]
    kept = await server.ended(emitted[0]["response"]["id"])
    assert (kept["status"], kept["error"]["message"]) == ("failed", "The model is out of order.")


async def test_a_failure_amid_the_answer_is_kept_and_reported(server: Stateful) -> None:
    server.play([Text("Half an"), UpstreamUnavailable("The model is out of order.")])
    response = await server.request("POST", "/v1/responses", STREAMED)
    last = events(response.body)[-1]
    assert last["type"] == "response.failed"
    assert await server.ended(last["response"]["id"]) == last["response"]


async def test_a_defect_fails_the_response_and_nothing_else(server: Stateful) -> None:
    server.play(RuntimeError("a defect"), "Hello.")
    id = (await server.request("POST", "/v1/responses", ASKED)).json["id"]
    kept = await server.ended(id)
    assert (kept["status"], kept["error"]["code"]) == ("failed", "server_error")
    id = (await server.request("POST", "/v1/responses", ASKED)).json["id"]
    assert (await server.ended(id))["status"] == "completed"


async def test_a_cancelled_response_stops_its_model_and_has_the_status_cancelled(server: Stateful) -> None:
    hold = asyncio.Event()
    scripted = server.play(LONG, pace=hold.wait)
    async with server.asking("POST", "/v1/responses", STREAMED) as caller:
        id = (await read_events(caller, 2))[0]["response"]["id"]
        cancelled = await server.request("POST", f"/v1/responses/{id}/cancel")
        assert (cancelled.status, cancelled.json["status"]) == (200, "cancelled")
    assert scripted.answers[0].closed
    assert (await server.request("POST", f"/v1/responses/{id}/cancel")).json == cancelled.json
    again = events((await server.request("GET", f"/v1/responses/{id}?stream=true")).body)
    assert again[-1]["type"] == "response.cancelled"
    assert [event["sequence_number"] for event in again] == list(range(len(again)))


async def test_a_queued_response_can_be_cancelled(server: Stateful) -> None:
    asked = asyncio.Event()

    async def hang(_: Any) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    server.play(hang)
    id = (await server.request("POST", "/v1/responses", ASKED)).json["id"]
    await asked.wait()
    assert (await server.request("POST", f"/v1/responses/{id}/cancel")).json["status"] == "cancelled"


async def test_only_a_background_response_can_be_cancelled(server: Stateful) -> None:
    server.play("Hello.")
    id = (await server.request("POST", "/v1/responses", {"model": "m", "input": "Hi"})).json["id"]
    assert (await server.request("POST", f"/v1/responses/{id}/cancel")).status == 400
    assert (await server.request("GET", f"/v1/responses/{id}?stream=true")).status == 400


async def test_a_response_that_continued_a_deleted_one_is_readable_and_refuses_continuations(server: Stateful) -> None:
    server.play("One.", "Two.")
    first = (await server.request("POST", "/v1/responses", {"model": "m", "input": "Hi"})).json["id"]
    second = (await server.request("POST", "/v1/responses", _after(first))).json["id"]
    assert (await server.request("DELETE", f"/v1/responses/{first}")).status == 200
    assert (await server.request("GET", f"/v1/responses/{second}")).status == 200
    refused = await server.request("POST", "/v1/responses", _after(second))
    assert (refused.status, refused.json["error"]["code"]) == (400, "previous_response_not_found")
    assert "one that it continues was deleted" in refused.json["error"]["message"]


def _after(id: str) -> dict[str, str]:
    return {"model": "m", "input": "And?", "previous_response_id": id}


async def test_a_deleted_response_is_gone_with_its_stream_and_its_run(server: Stateful) -> None:
    """field: D16"""
    scripted = server.play(LONG, pace=asyncio.Event().wait)
    async with server.asking("POST", "/v1/responses", STREAMED) as caller:
        id = (await read_events(caller, 2))[0]["response"]["id"]
        assert (await server.request("DELETE", f"/v1/responses/{id}")).json["deleted"] is True
    assert scripted.answers[0].closed
    assert (await server.request("GET", f"/v1/responses/{id}")).status == 404
    assert await server.state.background.streams.load(id) is None
    assert await server.state.background.streams.after(id, -1) == []


async def test_a_reader_whose_response_is_deleted_as_it_ends_gets_an_error(
    server: Stateful, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted between its row and its stream, which are read one after the other."""
    server.play(LONG, pace=asyncio.Event().wait)
    async with server.asking("POST", "/v1/responses", STREAMED) as caller:
        id = (await read_events(caller, 1))[0]["response"]["id"]
        assert (await server.request("POST", f"/v1/responses/{id}/cancel")).json["status"] == "cancelled"
        while await caller.chunk():  # to its end: it reads the row, too
            pass
    load_row, load_stream, rows = ResponseStore.load, StreamStore.load, list[str]()

    async def load(self: ResponseStore, owner: str, id: str) -> Any:
        rows.append(id)
        return await load_row(self, owner, id)

    async def load_until_deleted(self: StreamStore, response: str) -> Any:
        return await load_stream(self, response) if len(rows) < 2 else None  # the second time is behind the last frame

    monkeypatch.setattr(ResponseStore, "load", load)
    monkeypatch.setattr(StreamStore, "load", load_until_deleted)
    last = events((await server.request("GET", f"/v1/responses/{id}?stream=true")).body)[-1]
    assert (last["type"], last["code"]) == ("error", "response_not_found")


async def test_a_caller_may_run_only_so_many_and_harms_no_other() -> None:
    async with stateful(terms=BackgroundResponseOptions(per_caller=2)) as server:
        server.play(*[LONG] * 3, pace=asyncio.Event().wait)
        ids = [(await server.request("POST", "/v1/responses", ASKED)).json["id"] for _ in range(2)]
        third = await server.request("POST", "/v1/responses", ASKED)
        assert (third.status, third.json["error"]["code"]) == (429, "too_many_background_responses")
        assert "retry-after" in third.headers
        assert (await server.request("POST", "/v1/responses", ASKED, who="bob")).status == 200
        await server.request("POST", f"/v1/responses/{ids[0]}/cancel")
        server.play(LONG, pace=asyncio.Event().wait)
        assert (await server.request("POST", "/v1/responses", ASKED)).status == 200


async def test_a_stream_that_grows_too_long_is_given_up_and_its_response_is_not() -> None:
    """field: D16"""
    go = asyncio.Event()
    async with stateful(terms=BackgroundResponseOptions(stream_bytes=100, flush_seconds=0.001)) as server:
        server.play(LONG, pace=go.wait)
        response = events((await server.request("POST", "/v1/responses", STREAMED)).body)
        assert (response[-1]["type"], response[-1]["code"]) == ("error", "stream_not_kept")
        id = response[0]["response"]["id"]
        late = await server.request("GET", f"/v1/responses/{id}?stream=true")
        assert (late.status, late.json["error"]["code"]) == (409, "stream_not_kept")
        go.set()
        assert (await server.ended(id))["output"][0]["content"][0]["text"] == LONG
        assert await server.state.background.streams.after(id, -1) == []


async def test_frames_count_once_towards_the_limit_of_a_stream_however_often_they_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An outage of the database made streams too long that were not."""
    append, refused, go = StreamStore.append, itertools.count(), asyncio.Event()

    async def refuse_at_first(store: StreamStore, *values: Any) -> None:
        if next(refused) < 50:
            raise unavailable("it is away")
        await append(store, *values)
        go.set()

    monkeypatch.setattr(StreamStore, "append", refuse_at_first)
    async with stateful(terms=BackgroundResponseOptions(stream_bytes=20_000, flush_seconds=0.001)) as server:
        server.play(LONG, pace=go.wait)
        sent = events((await server.request("POST", "/v1/responses", STREAMED)).body)
        assert sent[-1]["type"] == "response.completed"
        again = await server.request("GET", f"/v1/responses/{sent[0]['response']['id']}?stream=true")
        assert events(again.body) == sent


async def test_an_unfinished_response_cannot_be_continued_and_a_finished_one_can(server: Stateful) -> None:
    go = asyncio.Event()
    server.play(LONG, "More.", pace=go.wait)
    id = (await server.request("POST", "/v1/responses", ASKED)).json["id"]
    body = {"model": "m", "input": "And?", "previous_response_id": id}
    early = await server.request("POST", "/v1/responses", body)
    assert (early.status, early.json["error"]["code"]) == (400, "previous_response_not_completed")
    go.set()
    await server.ended(id)
    assert (await server.request("POST", "/v1/responses", body)).status == 200


async def test_a_response_that_ran_when_the_server_was_stopped_goes_on_with_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec: D3"""
    count = itertools.count()

    async def after_a_few_words() -> None:
        if next(count) >= 6:
            await asyncio.Event().wait()

    async with stateful(tmp_path / "t.db", terms=BackgroundResponseOptions(flush_seconds=0.001)) as server:
        server.play(LONG, pace=after_a_few_words)
        async with server.asking("POST", "/v1/responses", STREAMED) as caller:
            seen = await read_events(caller, 6)
            id = seen[0]["response"]["id"]
            await server.on_disk(id, 6)
    monkeypatch.setattr("toolgate.api.chat.time", SimpleNamespace(time=lambda: time.time() + 100))
    async with stateful(tmp_path / "t.db", played=["All of it."]) as server:
        emitted = events((await server.request("GET", f"/v1/responses/{id}?stream=true")).body)
        kept = (await server.request("GET", f"/v1/responses/{id}")).json
        beyond = await server.request("GET", f"/v1/responses/{id}?stream=true&starting_after=5000")
    assert emitted[:6] == seen
    assert [event["sequence_number"] for event in emitted] == list(range(len(emitted)))
    assert emitted[-1] == {"type": "response.completed", "sequence_number": len(emitted) - 1, "response": kept}
    withdrawn, answer = kept["output"]
    assert (withdrawn["status"], withdrawn["content"]) == ("incomplete", [])
    assert (answer["status"], answer["content"][0]["text"]) == ("completed", "All of it.")
    assert kept["completed_at"] >= kept["created_at"] + 100, "the time of the first attempt counts, too"
    assert events(beyond.body) == []


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_response_whose_stored_request_cannot_be_read_ends(tmp_path: Path, cancelled: bool) -> None:
    """It was resumed for ever, and could not be cancelled."""
    async with stateful(tmp_path / "t.db", terms=BackgroundResponseOptions(flush_seconds=0.001)) as server:
        server.play(LONG, pace=asyncio.Event().wait)
        async with server.asking("POST", "/v1/responses", STREAMED) as caller:
            id = (await read_events(caller, 1))[0]["response"]["id"]
            await server.on_disk(id, 1)
    with closing(sqlite3.connect(tmp_path / "t.db")) as db, db:
        db.execute("UPDATE runs SET asked = ?, cancel = ?", (b'{"id": null}', cancelled))
    async with stateful(tmp_path / "t.db", played=["All of it."]) as server, asyncio.timeout(60):
        await server.request("GET", f"/v1/responses/{id}?stream=true")  # which ends with the response
        kept = (await server.request("GET", f"/v1/responses/{id}")).json
        items = (await server.request("GET", f"/v1/responses/{id}/input_items")).json["data"]
    assert kept["status"] == ("cancelled" if cancelled else "failed")
    assert cancelled or "cannot be read" in kept["error"]["message"]
    assert len(items) == 1, "what the client sent is still there"


async def test_a_response_that_another_process_runs_is_followed_from_the_disk(tmp_path: Path) -> None:
    steps: asyncio.Queue[None] = asyncio.Queue()
    path, terms = tmp_path / "t.db", BackgroundResponseOptions(flush_seconds=0.001)
    async with stateful(path, terms=terms) as runs, stateful(path, terms=terms) as other:
        runs.play(LONG, pace=steps.get)
        async with runs.asking("POST", "/v1/responses", STREAMED) as caller:
            id = (await read_events(caller, 2))[0]["response"]["id"]
            await runs.on_disk(id, 2)
            async with other.asking("GET", f"/v1/responses/{id}?stream=true") as follower:
                seen = await read_events(follower, 2)
                assert await other.status(id) == "in_progress"
                for _ in range(30):
                    steps.put_nowait(None)
                response = b""
                while piece := await follower.chunk():
                    response += piece
        emitted = [*seen, *events(response)]
        assert emitted[-1]["type"] == "response.completed"
        assert [event["sequence_number"] for event in emitted] == list(range(len(emitted)))
        assert await other.status(id) == "completed"


async def test_stopping_waits_for_what_can_still_end() -> None:
    go = asyncio.Event()
    async with stateful() as server:
        server.play(LONG, pace=go.wait)
        id = (await server.request("POST", "/v1/responses", ASKED)).json["id"]
        closing = asyncio.create_task(server.state.aclose(10))
        await asyncio.sleep(0)
        late = await server.request("POST", "/v1/responses", ASKED)
        assert late.status == 503
        go.set()
        await closing
        assert (await server.ended(id))["status"] == "completed"


async def test_server_tools_run_in_the_background_too() -> None:
    """field: D12"""
    clock = FakeTool("get_time", lambda _: "noon")
    async with stateful(None, FakeSource(clock)) as server:
        server.play([ToolCall("call_" + "a" * 24, "get_time", "{}")], "It is noon.", "Still noon.")
        wish = {"tool_execution": "auto", "use_server_tools": True}
        response = await server.request("POST", "/v1/responses", {**STREAMED, **wish})
        emitted = events(response.body)
        kept = await server.ended(emitted[0]["response"]["id"])
        assert [item["type"] for item in kept["output"]] == ["mcp_call", "message"]
        assert len(clock.calls) == 1
        assert [event["sequence_number"] for event in emitted] == list(range(len(emitted)))
        body = {"model": "m", "input": "And now?", "previous_response_id": kept["id"], **wish}
        again = await server.request("POST", "/v1/responses", body)
        assert again.json["output"][0]["content"][0]["text"] == "Still noon."


async def test_strangers_find_no_background_response(server: Stateful) -> None:
    """fault: Z2"""
    server.play("Hello.")
    id = (await server.request("POST", "/v1/responses", ASKED)).json["id"]
    await server.ended(id)
    for method, path in (
        ("GET", f"/v1/responses/{id}"),
        ("GET", f"/v1/responses/{id}?stream=true"),
        ("GET", f"/v1/responses/{id}/input_items"),
        ("POST", f"/v1/responses/{id}/cancel"),
        ("DELETE", f"/v1/responses/{id}"),
    ):
        response = await server.request(method, path, who="bob")
        assert (response.status, response.json["error"]["code"]) == (404, "response_not_found")
    response = await server.request("POST", "/v1/responses", {**ASKED, "previous_response_id": id}, who="bob")
    assert response.status == 400
    assert (await server.request("GET", f"/v1/responses/{id}")).status == 200


async def test_the_frames_of_a_resumed_stream_are_decoded_off_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream may hold 16 MiB. What it told before is in the response at the end."""
    began = asyncio.Event()

    async def wait(_: Any) -> str:
        began.set()
        await asyncio.Event().wait()
        return ""

    path, terms = tmp_path / "t.db", BackgroundResponseOptions(flush_seconds=0.001)
    async with stateful(path, FakeSource(FakeTool("wait", wait)), terms=terms) as server:
        server.play([Text("Told before."), ToolCall("call_" + "a" * 24, "wait", "{}")])
        body = {**STREAMED, "tool_execution": "auto", "use_server_tools": True}
        async with server.asking("POST", "/v1/responses", body) as caller:
            id = (await read_events(caller, 1))[0]["response"]["id"]
            await asyncio.wait_for(began.wait(), 30)
    threads = set[str]()

    def noting(text: bytes) -> Any:
        if b"output_item.done" in text and b"Told before." in text:
            threads.add(threading.current_thread().name)
        return decode(text)

    monkeypatch.setattr(items_sent_before_crash, "decode", noting)
    source = FakeSource(FakeTool("wait", lambda _: "Waited."))
    async with stateful(path, source, played=["All of it."]) as server:
        kept = await server.ended(id)
    assert [item["type"] for item in kept["output"]] == ["message", "mcp_call", "message"]
    assert threads
    assert threading.current_thread().name not in threads


@pytest.mark.parametrize("how", ["whole", "streamed", "background"])
async def test_a_number_that_no_float_can_hold_is_stored_and_shown(server: Stateful, how: str) -> None:
    """The server encoded it and could not decode it: a whole response got 500, and the others failed at their end."""
    server.play("Hello.")
    body = {"model": "m", "input": "Hi", "service_tier": Decimal("1e400")}
    tools = [{"type": "function", "name": "f", "parameters": {"default": Decimal("-1e400")}}]
    received = await server.request("POST", "/v1/responses", {**body, "tools": tools, **FORMS[how]})
    assert (received.status, received.body.count(b"An internal error")) == (200, 0), received.body
    id = re.search(r"resp_\w+", received.body.decode())
    assert id is not None
    assert (await server.ended(id[0]))["status"] == "completed"
