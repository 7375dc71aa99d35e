"""A stateful chat peer for the editor's tests: the reference peer, with an answer that a test sets."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.upstreams.stateful_chat.peer_server import reference

TOKEN = "secret"


class ScriptedPeer(reference.EchoPeer):  # type: ignore[misc]  # loaded from a file of examples, which has no types here
    """Answers a message with what `answer` makes of its text, word by word."""

    def __init__(self) -> None:
        super().__init__(TOKEN, max_frame=16 * 1024 * 1024)
        self.answer: Callable[[str], str] = lambda text: "Hello from the peer."

    async def _answer(self, connection: Any, id: str, conversation: str, text: str) -> None:
        self.conversations[conversation].append(("user", text))
        for word in re.findall(r"\S+\s*", self.answer(text)):
            await reference.say(connection, type="delta", id=id, text=word)
        await reference.say(connection, type="done", id=id)


@asynccontextmanager
async def listening_peer(peer: ScriptedPeer) -> AsyncIterator[str]:
    """Serve the peer; its URL."""
    server = await peer.listen("127.0.0.1", 0)
    try:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
