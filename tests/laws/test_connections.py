"""The fairness law for connections: a client that fills all of them, however it does so, keeps no other client out.

The connections are filled by one client and held. Then others come on new ones and must be answered. No time passes:
clients may first keep the server waiting for as long as they like, and then not at all.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.api.http_client import PATHS, body
from tests.laws.test_fairness import Shared, shared, until
from toolgate.http import evictions
from toolgate.http.request_limits import RequestLimits
from toolgate.http.request_reader import BODY, HEAD, IDLE

CONNECTIONS = 32
LIMITS = RequestLimits(connections=CONNECTIONS)
ORDINARY = CONNECTIONS - LIMITS.reserved
OTHERS = 6

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
CHAT = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer flood-key\r\nContent-Length: 100\r\n\r\n"
)
UNREAD = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 20
FILLINGS = {
    "nothing": (b"", IDLE),
    "half a head": (CHAT[:50], HEAD),
    "a request that was answered": (HEALTH, IDLE),
    "a request and half a head": (HEALTH + HEALTH[:20], HEAD),
    "half a body": (CHAT + b"{", BODY),
    "a request that was refused": (b"nonsense\r\n\r\n", None),
    "requests whose responses are not read": (UNREAD, None),
}


def let_clients_wait(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set for how long a client may keep the server waiting while others find no place."""
    for name in ("IDLE_SECONDS", "LAST_PLACE_SECONDS", "BODY_SECONDS", "UNREAD_SECONDS"):
        monkeypatch.setattr(evictions, name, seconds)


async def connected(gateway: Shared) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection whose client takes few bytes that it does not read."""
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    opened.setblocking(False)
    await asyncio.get_running_loop().sock_connect(opened, ("127.0.0.1", gateway.listener.port))
    return await asyncio.open_connection(sock=opened, limit=1024)


@contextlib.asynccontextmanager
async def filled(filling: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shared]:
    """A gateway whose connections are all taken by clients that have kept it waiting for longer than they may."""
    sent, phase = FILLINGS[filling]
    let_clients_wait(float("inf"), monkeypatch)
    async with shared(limits=LIMITS) as gateway, contextlib.AsyncExitStack() as clients:
        for _ in range(CONNECTIONS):
            reader, writer = await connected(gateway)
            clients.callback(writer.transport.abort)
            writer.write(sent)
            if HEALTH in sent or phase is None:
                await reader.readuntil(b"\r\n\r\n")

        def as_filled() -> bool:
            opened = gateway.listener.connections()
            if sent == UNREAD and sum(one.flow.write_paused for one in opened) < ORDINARY:
                return False
            return len(opened) >= ORDINARY and all(phase in (None, one._reader.phase) for one in opened)

        await until(as_filled)
        let_clients_wait(0.0, monkeypatch)
        yield gateway


@pytest.mark.parametrize("filling", FILLINGS)
async def test_connections_that_keep_the_server_waiting_make_room(
    filling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(filling, monkeypatch) as gateway:
        payload = body("openai_chat", "echo", False)
        for _ in range(OTHERS):
            assert (await gateway.send("other", "GET", "/healthz", connection="close")).status_code == 200
        asked = [
            gateway.send("other", "POST", PATHS["openai_chat"], payload, connection="close") for _ in range(OTHERS)
        ]
        assert [one.status_code for one in await asyncio.gather(*asked)] == [200] * OTHERS


async def test_a_caller_that_holds_all_connections_with_requests_leaves_the_last_to_others() -> None:
    def ask(who: str, text: str) -> "asyncio.Task[Any]":
        payload = body("openai_chat", "m", False, text)
        return asyncio.ensure_future(gateway.send(who, "POST", PATHS["openai_chat"], payload))

    async with shared(slots=2 * CONNECTIONS, limits=LIMITS) as gateway:
        flood = [ask("flood", "from flood") for _ in range(ORDINARY)]
        await gateway.upstream.has(ORDINARY)
        for _ in range(3 * CONNECTIONS):
            refused = await ask("flood", "from flood")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert (await gateway.send("", "GET", "/healthz", connection="close")).status_code == 200
        other = ask("other", "Hi")
        await gateway.upstream.has(ORDINARY + 1)
        assert gateway.upstream.arrived == ["flood"] * ORDINARY + ["other"]
        for _ in range(ORDINARY + 1):
            gateway.upstream.go.release()
        assert {(await one).status_code for one in (*flood, other)} == {200}


async def test_clients_without_a_key_leave_the_last_connections_to_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They held all, by requests for public files whose responses they did not read."""
    async with filled("requests whose responses are not read", monkeypatch) as gateway:
        let_clients_wait(float("inf"), monkeypatch)
        assert (await gateway.send("", "GET", "/console/app.js", connection="close")).status_code == 503
        assert (await gateway.send("", "GET", "/readyz", connection="close")).status_code == 200
        for _ in range(OTHERS):
            assert (await gateway.send("other", "GET", "/v1/models", connection="close")).status_code == 200


async def test_connections_run_short_for_clients_without_a_key_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """They kept theirs with a request a second, which made them busy for ever, however many they had."""
    models = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer other-key\r\n\r\n"
    let_clients_wait(float("inf"), monkeypatch)
    async with shared(limits=LIMITS) as gateway, contextlib.AsyncExitStack() as clients:
        opened = [await asyncio.open_connection("127.0.0.1", gateway.listener.port) for _ in range(ORDINARY + 1)]
        for _, writer in opened:
            clients.callback(writer.transport.abort)
        await until(lambda: len(gateway.listener.connections()) == ORDINARY + 1)
        (caller, sending), (stranger, asking), (probe, probing), *_ = opened
        for _ in range(2):
            sending.write(models)
            assert (await caller.readuntil(b"]}")).startswith(b"HTTP/1.1 200 ")
        asking.write(models.replace(b"other-key", b"wrong-key"))
        assert (await stranger.read()).startswith(b"HTTP/1.1 401 ")
        for _ in range(2):  # one connection was closed, and there is room again
            probing.write(HEALTH)
            assert (await probe.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
