"""The reference peer on a real socket, a model that asks it, and histories in one line each."""

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from toolgate.conversation.events import PartDelta, PartEnd, StepEnd, StepEvent
from toolgate.conversation.message import Message, Text
from toolgate.conversation.request import ModelRequest, RequestSettings
from toolgate.engine.ports import ModelStream
from toolgate.storage.database import Database
from toolgate.storage.peer_conversations import PeerConversationStore
from toolgate.upstreams.stateful_chat import ReconnectingStatefulChat, StatefulChatLimits, StatefulChatModel
from toolgate.upstreams.transport import UpstreamTimeouts

_SOURCE = Path(__file__).parents[3] / "examples" / "peer" / "peer.py"
_spec = importlib.util.spec_from_file_location("reference_peer", _SOURCE)
assert _spec is not None
assert _spec.loader is not None
reference: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)

QUICK = StatefulChatLimits(UpstreamTimeouts(2.0, 5.0, 5.0, 20.0))


def history(*texts: str) -> tuple[Message, ...]:
    """Return messages of user and assistant in turns, the user first."""
    return tuple([Message("assistant" if turn % 2 else "user", (Text(text),)) for turn, text in enumerate(texts)])


def request(*texts: str, user: str | None = None) -> ModelRequest:
    return ModelRequest("bot", history(*texts), settings=RequestSettings(user=user), stream=True)


async def emitted(answer: ModelStream) -> list[StepEvent]:
    """Return all events of an answer."""
    async with aclosing(answer.events()) as batches:
        events = [event async for batch in batches for event in batch]
    await answer.aclose()
    return events


def answer_text(events: list[StepEvent]) -> str:
    """Return the text of a complete answer; its deltas must add up to its parts."""
    output = "".join([event.text for event in events if isinstance(event, PartDelta)])
    parts = [event.part for event in events if isinstance(event, PartEnd)]
    assert parts == ([Text(output)] if output else [])
    assert isinstance(events[-1], StepEnd)
    return output


class Stage:
    """The reference peer, and a model that asks it."""

    def __init__(
        self, echo: Any, url: str, peer: ReconnectingStatefulChat, store: PeerConversationStore, **options: Any
    ) -> None:
        self.echo = echo
        self.url = url
        self.peer = peer
        self.store = store
        self.notes: list[tuple[str, str]] = []
        self.model = StatefulChatModel(peer, "bot", store, note=lambda *note: self.notes.append(note), **options)

    async def ask(self, *texts: str, user: str | None = None) -> str:
        """Return the answer of the model to a history."""
        return answer_text(await emitted(await self.model.ask(request(*texts, user=user))))

    @property
    def conversations(self) -> list[list[tuple[str, str]]]:
        """The conversations that the peer stores, oldest first."""
        return list(self.echo.conversations.values())


@asynccontextmanager
async def staged(
    limits: StatefulChatLimits = QUICK, max_frame: int = 1 << 20, token: str | None = "secret", **options: Any
) -> AsyncIterator["Stage"]:
    """Serve the reference peer, and close everything afterwards."""
    echo = reference.EchoPeer(token, max_frame)
    server = await echo.listen("127.0.0.1", 0)
    url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/chat"
    database = Database(None)
    peer = ReconnectingStatefulChat("box", url, "secret", limits=limits, environment={})
    try:
        yield Stage(echo, url, peer, PeerConversationStore(database), **options)
    finally:
        await peer.aclose()
        server.close()
        await server.wait_closed()
        await database.aclose()


@asynccontextmanager
async def scripted_peer(
    handler: Callable[[Any], Any], limits: StatefulChatLimits = QUICK
) -> AsyncIterator[ReconnectingStatefulChat]:
    """Yield a peer that handles connections by `handler`."""
    from websockets.asyncio.server import serve

    async with serve(handler, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        peer = ReconnectingStatefulChat("box", f"ws://127.0.0.1:{port}", limits=limits, environment={})
        try:
            yield peer
        finally:
            await peer.aclose()


@asynccontextmanager
async def answering(
    handler: Callable[[Any], Any], limits: StatefulChatLimits = QUICK
) -> AsyncIterator[StatefulChatModel]:
    """Yield a model whose peer handles connections by `handler`."""
    database = Database(None)
    async with scripted_peer(handler, limits) as peer:
        try:
            yield StatefulChatModel(peer, "bot", PeerConversationStore(database))
        finally:
            await database.aclose()


async def until(condition: Callable[[], bool], patience: float = 30.0) -> None:
    """Let the other tasks run until the condition holds."""
    async with asyncio.timeout(patience):
        while not condition():  # noqa: ASYNC110  # what the peer has seen has no event of its own
            await asyncio.sleep(0.001)
