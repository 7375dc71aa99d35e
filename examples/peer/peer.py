"""A stateful chat peer in one file: it keeps conversations in memory and answers by repeating what it is told.

    python examples/peer/peer.py --port 8765 --token secret

It shows all that a peer has to do; put your own chat platform where `reply` is. A message whose last line is one of these
makes it misbehave, for trying out what the other side does then:

    /forget   forget every conversation                   /silent   say nothing at all
    /crash    drop the connection after the first word    /stall    say one word and no more
    /deaf     answer nothing more, not even a ping        /endless  talk until cancelled
    /garble   send something that is not JSON             /empty    answer with nothing
    /huge N   send a delta of N bytes                     /error C  fail with the code C
"""

import argparse
import asyncio
import contextlib
import json
import logging
import re
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

PROTOCOL = 1
MAX_FRAME = 1 << 20
MOST_CONVERSATIONS = 10_000


class Misbehaviour(Exception):
    """What a message told us to do instead of answering: a word and what follows it."""


class EchoPeer:
    """Conversations in memory; `conversations` maps an id to what was said, `open` counts the answers under way."""

    def __init__(self, token: str | None = None, max_frame: int = MAX_FRAME) -> None:
        self.conversations: dict[str, list[tuple[str, str]]] = {}
        self.cancelled: list[str] = []
        self.open = 0
        self.deaf = False
        self._token = token
        self._max_frame = max_frame
        self._created = 0

    async def listen(self, host: str, port: int) -> Server:
        """Serve until the returned server is closed."""
        return await serve(self._serve, host, port, process_request=self._admit, max_size=self._max_frame)

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Refuse the upgrade to whoever does not know the token."""
        if self._token is None or request.headers.get("Authorization") == f"Bearer {self._token}":
            return None
        return connection.respond(HTTPStatus.UNAUTHORIZED, "A Bearer token is needed.\n")

    async def _serve(self, connection: ServerConnection) -> None:
        """One connection; every answer is a task of its own, so that many conversations share it."""
        answers: dict[str, asyncio.Task[None]] = {}
        try:
            async for text in connection:
                await self._hear(connection, json.loads(text), answers)
        except ConnectionClosed:
            pass
        finally:
            for task in answers.values():
                task.cancel()
            await asyncio.gather(*answers.values(), return_exceptions=True)

    async def _hear(
        self, connection: ServerConnection, frame: dict[str, Any], answers: dict[str, asyncio.Task[None]]
    ) -> None:
        if self.deaf:
            return
        match frame:
            case {"type": "hello", "protocol": int(protocol)}:
                if protocol != PROTOCOL:
                    await connection.close(4426, "another protocol")
                await say(connection, type="welcome", protocol=PROTOCOL, peer="echo/1", max_frame=self._max_frame)
            case {"type": "ping"}:
                await say(connection, type="pong")
            case {"type": "create_conversation", "id": str(id)}:
                await say(connection, type="conversation_created", id=id, conversation=self._create())
            case {"type": "send_message", "id": str(id)} if "attachments" in frame:
                await say(connection, type="error", id=id, code="rejected", message="Attachments are not taken.")
            case {"type": "send_message", "id": str(id), "conversation": str(conversation), "text": str(text)}:
                answers[id] = task = asyncio.create_task(self._answer(connection, id, conversation, text))
                task.add_done_callback(lambda _: answers.pop(id, None))
            case {"type": "cancel", "id": str(id)} if id in answers:
                self.cancelled.append(id)
                answers[id].cancel()
            case _:
                pass  # a frame of another time; whoever sent it does not count on an answer

    def _create(self) -> str:
        self._created += 1
        if len(self.conversations) >= MOST_CONVERSATIONS:
            del self.conversations[next(iter(self.conversations))]
        name = f"conversation-{self._created}"
        self.conversations[name] = []
        return name

    async def _answer(self, connection: ServerConnection, id: str, conversation: str, text: str) -> None:
        said = self.conversations.get(conversation)
        if said is None:
            explanation = "There is no such conversation, or no longer."
            await say(connection, type="error", id=id, code="unknown_conversation", message=explanation)
            return
        self.open += 1
        said.append(("user", text))
        words: list[str] = []
        try:
            async for word in reply(said):
                words.append(word)
                await say(connection, type="delta", id=id, text=word)
            said.append(("assistant", "".join(words)))
            usage = {"input": sum(len(one.split()) for _, one in said), "output": len(words)}
            await say(connection, type="done", id=id, usage=usage)
        except Misbehaviour as order:
            await self._misbehave(connection, id, *order.args)
        except ConnectionClosed:
            pass
        finally:
            self.open -= 1

    async def _misbehave(self, connection: ServerConnection, id: str, order: str, detail: str) -> None:
        match order:
            case "forget":
                self.conversations.clear()
                await say(connection, type="done", id=id)
            case "deaf":
                self.deaf = True
            case "crash":
                connection.transport.abort()
            case "stall" | "silent":
                await asyncio.Event().wait()
            case "garble":
                await connection.send("this is no JSON")
            case "huge":
                await say(connection, type="delta", id=id, text="x" * int(detail))
            case "empty":
                await say(connection, type="done", id=id)
            case "error":
                await say(connection, type="error", id=id, code=detail, message=f"As you wish: {detail}.")


async def reply(said: list[tuple[str, str]]) -> AsyncIterator[str]:
    """The words of the answer to what was said last: here stands the platform."""
    text = said[-1][1]
    order = re.fullmatch(r"/(\w+) ?(.*)", text.splitlines()[-1] if text else "")
    if order and order[1] == "endless":
        while True:
            yield "and "
            await asyncio.sleep(0)
    if order and order[1] in ("stall", "crash"):
        yield "Well, "
    if order:
        raise Misbehaviour(order[1], order[2])
    number = len(said) // 2 + 1
    for word in re.findall(r"\S+\s*", f"You said ({number}): {text.strip()}"):
        yield word
        await asyncio.sleep(0)


async def say(connection: ServerConnection, **frame: object) -> None:
    """Send one frame."""
    await connection.send(json.dumps(frame))


async def main() -> None:
    """Serve until interrupted."""
    options = argparse.ArgumentParser(description="A stateful chat peer that repeats what it is told.")
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, default=8765)
    options.add_argument("--token", default=None, help="the Bearer token that callers must present")
    chosen = options.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("websockets").setLevel(logging.WARNING)
    server = await EchoPeer(chosen.token).listen(chosen.host, chosen.port)
    logging.info("listening on ws://%s:%d", chosen.host, server.sockets[0].getsockname()[1])
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
