"""A process that slept through its lease while a model was thinking, and wakes to a tool call (spec: D3; fault: M6)."""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.databases import Postgres
from tests.runs.processes import WANTS, calling, server, until
from toolgate.conversation.message import Part
from toolgate.conversation.request import ModelRequest


def settings(**runs: float) -> dict[str, Any]:
    return {"runs": runs, "tools": {"approvals": {"default": "allow"}, "python": ["tools"]}}


def test_a_node_that_wakes_up_late_does_not_run_its_pending_call(tmp_path: Path, postgres: Postgres) -> None:
    """fault: M6: the other is in the middle of that very call, and has written the same steps.

    The late node does not look at its leases in time, so that nothing but its steps can tell it what it has lost.
    """
    places = [tmp_path / name for name in ("frozen", "other")]
    for place in places:
        place.mkdir()
    thinks = tmp_path / "thinks"
    thinks.touch()

    async def slowly(request: ModelRequest) -> Sequence[Part | Exception] | str:
        while thinks.exists():  # noqa: ASYNC110 - it is looked at from another loop
            await asyncio.sleep(0.01)
        return calling("book" if len(asked.requests) == 1 else "put")(request)

    with (
        postgres.database() as storage,
        server(places[0], storage, **settings(lease_seconds=120, look_seconds=60)) as frozen,
        server(places[1], storage, **settings(lease_seconds=5, look_seconds=0.2)) as other,
    ):
        asked = frozen.play(slowly)
        other.play(calling("book"))
        other.hold("book")
        frozen.start()
        with frozen.client() as client:
            id = client.responses.create(model="m", input="Go.", background=True, extra_body=WANTS).id
        until(lambda: asked.requests)
        frozen.signal(signal.SIGSTOP)
        other.start()
        until(lambda: other.ran)
        thinks.unlink()
        until(lambda: asked.answers and asked.answers[0].complete)
        frozen.signal(signal.SIGCONT)
        with frozen.client() as client:  # it heard its model before it hears this
            output = [{"role": "user", "content": "Go."}]
            client.chat.completions.create(model="m", messages=output, extra_body=WANTS)  # type: ignore[arg-type]  # a plain message
        frozen.stop()
        other.let_go("book")
        response = other.ended(id)
    assert [line.partition(":")[0] for line in frozen.ran] == ["put"]
    assert other.ran == ["book"]
    assert response.output_text == "Step 1.So: Paris is booked"
    assert len(asked.requests) == 3
