"""Some upstreams write several JSON objects into one line of a stream; what follows holds for every client."""

import asyncio

import pytest

from tests.api.http_client import CLIENTS, PATHS, HttpConnection, body
from tests.laws.test_wrong_types import config_of
from tests.upstreams.transport.faulty import Faulty, Peer, head
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.http.listener import listening

FIRST = b'{"model":"m","message":{"role":"assistant","content":"Hello "},"done":false}\n'
LAST = b'{"model":"m","message":{"role":"assistant","content":"there."},"done":true,"done_reason":"stop"}'


async def received(client: str, line: bytes) -> bytes:
    """What a client receives of a stream in which this line comes after another one has reached the client."""
    reached = asyncio.Event()

    async def play(peer: Peer) -> None:
        await peer.request()
        await peer.send(head("content-type: application/x-ndjson", "connection: close"), FIRST)
        await reached.wait()
        await peer.send(line + b"\n")
        peer.half_close()

    async with (
        Faulty(play) as upstream,
        listening(Toolgate(config_of(upstream.port))) as url,
        HttpConnection(url) as caller,
    ):
        await caller.post(PATHS[client], body(client, "ollama", stream=True), "authorization: Bearer a-key")
        await caller.head()
        answer = b""
        while b"Hello " not in answer:
            answer += await caller.chunk()
        reached.set()
        while piece := await caller.chunk():
            answer += piece
        return answer


@pytest.mark.parametrize("client", CLIENTS)
async def test_objects_of_one_line_are_read_one_by_one(client: str) -> None:
    assert b"there." in await received(client, FIRST.strip() + LAST)


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_number_of_many_digits_between_objects_is_the_upstreams_fault(client: str) -> None:
    """Python converts 4,300 digits at most, and its error became one of this server."""
    answer = await received(client, b'{"n":' + b"1" * 5_000 + b"}" + LAST)
    assert b"The upstream sent an event that is not JSON" in answer
    assert b"internal error" not in answer
