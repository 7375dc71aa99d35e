"""A Redis that replies what no script returns is paused like one that is unavailable: no request waits or gets a 500."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.app.nodes import nodes
from toolgate.change_notifications.notifier import CHANNEL, RedisChangeNotifier
from toolgate.config import KeySettings, Secret

pytest.importorskip("redis", reason="the tests of several nodes need `pip install redis`")

ASKED = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
LIMITED = KeySettings(
    name="ann", key=Secret("ann-key"), requests_per_minute=1000, tokens_per_minute=10**6, concurrency=9
)
HELLO = b"%1\r\n+proto\r\n:3\r\n"
ANSWERS = (
    b"+OK\r\n",
    b":7\r\n",
    b":abc\r\n",
    b"*-1\r\n",
    b"*x\r\n",
    b"_\r\n",
    b"%1\r\n+a\r\n+b\r\n",
    b"*3\r\n:1\r\n:2\r\n:3\r\n",
    b"*8\r\n" + b"$1\r\nx\r\n" * 8,
    b"*8\r\n" + b":9\r\n" * 8,
    b"*8\r\n:2\r\n" + b":1000000000000000\r\n" * 7,
    b"*8\r\n:0\r\n" + b":4611686018427387904\r\n" * 7,
    b"*8\r\n:0\r\n" + b":-4611686018427387904\r\n" * 7,
    b"*1\r\n" * 3000,
    b"\xff\xfe\r\n",
)


class GarbledRedis:
    """Answers scripts with `answer`; who subscribes is sent each of `pushed`, one on a connection."""

    def __init__(self) -> None:
        self.answer = b""
        self.asked = 0
        self.pushed: list[bytes] = []

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Its URL, while it listens."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                words = []
                for _ in range(int(line[1:])):
                    size = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(size + 2))[:-2])
                writer.write(self._reply(words))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _reply(self, words: list[bytes]) -> bytes:
        match words[0].upper():
            case b"HELLO":
                return HELLO
            case b"SCRIPT":
                return b"*%d\r\n" % (len(words) - 2) + b":1\r\n" * (len(words) - 2)
            case b"EVALSHA":
                self.asked += 1
                return self.answer
            case b"SUBSCRIBE":
                subscribed = push(b"subscribe", b":1\r\n")
                return subscribed + (self.pushed.pop(0) if self.pushed else b"")
            case _:
                return b"+OK\r\n"


def push(kind: bytes, last: bytes) -> bytes:
    channel = CHANNEL.encode()
    return b">3\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n%s" % (len(kind), kind, len(channel), channel, last)


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: repr(answer[:12]))
async def test_requests_are_counted_by_the_node_alone(tmp_path: Path, answer: bytes) -> None:
    redis = GarbledRedis()
    redis.answer = answer
    async with redis.listening() as url, nodes(1, f"sqlite:///{tmp_path}/t.db", url, keys=(LIMITED,)) as [node]:
        node.play("Hello.", "Hello.")
        async with asyncio.timeout(60):
            responses = [
                await node.request("POST", "/v1/messages", {"max_tokens": 9, **ASKED}),
                await node.request("POST", "/v1/chat/completions", ASKED),
            ]
    assert [response.status for response in responses] == [200, 200], responses
    assert redis.asked


async def test_garbage_on_the_channel_does_not_end_the_listening() -> None:
    redis = GarbledRedis()
    news = push(b"message", b"$10\r\nother name\r\n")
    redis.pushed = [push(b"message", b"$2\r\n\xff\xfe\r\n") + b":abc\r\n", news]
    async with redis.listening() as url:
        notifier = RedisChangeNotifier(url)
        try:
            async with asyncio.timeout(60), notifier.subscribe("name") as event:
                await event.wait()
        finally:
            await notifier.aclose()
