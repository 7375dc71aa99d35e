"""A background response whose server is killed in its middle, as the official client sees it."""

import asyncio
from pathlib import Path
from typing import Any

from tests.runs.processes import WANTS, calling, server, until
from toolgate.storage.database import Database
from toolgate.storage.streams import StreamStore


def test_a_killed_server_goes_on_with_a_response_and_the_client_resumes_it(tmp_path: Path, storage_url: str) -> None:
    """spec: D3; fault: K-A, K-D"""
    with server(tmp_path, storage_url) as killed:
        script = killed.play(calling("look_up", "book"))
        killed.start()
        seen: list[Any] = []
        with (
            killed.client() as client,
            client.responses.create(model="m", input="Go.", background=True, stream=True, extra_body=WANTS) as stream,
        ):
            for event in stream:
                seen.append(event)
                if event.type == "response.output_text.done" and event.text == "Step 2.":
                    break
        id, asked = seen[0].response.id, killed.pending()
        killed.kill()
        killed.start()
        assert killed.pending() == asked
        killed.cli("approvals", "approve", asked)
        with (
            killed.client() as client,
            client.responses.retrieve(id, stream=True, starting_after=seen[-1].sequence_number) as rest,
        ):
            seen += list(rest)
        with killed.client() as client, client.responses.stream(response_id=id, starting_after=-1) as whole:
            accumulated = whole.get_final_response()
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    final = seen[-1].response
    assert seen[-1].type == "response.completed"
    assert [item.type for item in final.output] == ["message", "mcp_call", "message", "mcp_call", "message"]
    assert final.output_text == "Step 1.Step 2.So: Paris is sunny; Paris is booked"
    assert accumulated.output_text == final.output_text
    assert killed.ran == ["look_up", "book"]
    assert len(script.requests) == 3
    ends = [event.output_index for event in seen if event.type == "response.output_item.done"]
    assert ends == [0, 1, 2, 3, 4]


def test_what_was_sent_of_a_cut_answer_is_withdrawn_and_sent_anew(tmp_path: Path, storage_url: str) -> None:
    """fault: K-E"""
    with server(tmp_path, storage_url) as killed:
        frozen = [True]

        async def in_the_middle() -> None:
            if frozen and len(script.requests) == 2 and len(script.answers[1].read_events) == 3:
                await asyncio.Event().wait()

        script = killed.play(calling("look_up"), pace=in_the_middle)
        killed.start()
        with killed.client() as client:
            stream = client.responses.create(model="m", input="Go.", background=True, stream=True, extra_body=WANTS)
            first: Any = next(iter(stream))
            id = first.response.id
            until(lambda: any(b'"delta":"So:"' in frame for frame in kept_frames(storage_url, id)))
            killed.kill()
            frozen.clear()
            killed.start()
            final = killed.ended(id)
        with killed.client() as client, client.responses.stream(response_id=id, starting_after=-1) as whole:
            accumulated = whole.get_final_response()
    assert final.output_text == accumulated.output_text == "Step 1.So: Paris is sunny"
    assert [item.status for item in final.output] == ["completed", "completed", "incomplete", "completed"]
    assert killed.ran == ["look_up"]
    assert final.usage == accumulated.usage is not None


def kept_frames(storage_url: str, id: str) -> list[bytes]:
    """The frames of a response that would survive a crash now."""

    async def read() -> list[bytes]:
        database = Database(storage_url)
        frames = await StreamStore(database).all(id)
        await database.aclose()
        return frames

    return asyncio.run(read())
