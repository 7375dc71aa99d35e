"""Conversations in which a response is being made: one at a time, in this process and on all nodes.

Two answers at once would mix up their items: each would be made without knowing the other. Within the process a set says
who is there; between nodes a row of the database does, which is renewed as long as the response is being made.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from toolgate.conversation.errors import Conflict, Overloaded
from toolgate.storage.locks import ConversationLocks

BEAT = 5.0
_LOOK = 0.5


class Occupied:
    """The conversations that this process has."""

    def __init__(self, locks: ConversationLocks, *, beat: float = BEAT) -> None:
        self._locks = locks
        self._beat_seconds = beat
        self._mine: set[str] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._beating: asyncio.Task[None] | None = None

    async def take(self, conversation: str) -> Callable[[], None]:
        """Take a conversation for one response, which gives it back by calling what is returned; Conflict if it is taken."""
        if conversation in self._mine:
            raise _taken(conversation)
        self._mine.add(conversation)
        try:
            holder = await self._locks.take(conversation)
            if holder is None:
                raise _taken(conversation)
        except BaseException:
            self._mine.discard(conversation)
            raise
        if self._beating is None:
            self._beating = asyncio.get_running_loop().create_task(self._beat())
        mine = [holder]  # given back once, lest it be taken from whoever has it next
        return lambda: self._leave(conversation, mine.pop()) if mine else None

    async def wait(self, conversation: str) -> Callable[[], None]:
        """The same, after whoever has it: for a response that was accepted before."""
        while True:
            try:
                return await self.take(conversation)
            except Conflict:
                await asyncio.sleep(_LOOK)

    async def aclose(self) -> None:
        """Wait for what is being given back; what is not given back runs out."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait({self._beating})
        if self._leaving:
            await asyncio.wait(self._leaving)

    def _leave(self, conversation: str, holder: str) -> None:
        """It is free here at once, and elsewhere as soon as the database knows: what was said there has told it."""
        self._mine.discard(conversation)
        self._locks.forget(conversation, holder)
        task = asyncio.get_running_loop().create_task(self._left(conversation, holder))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _left(self, conversation: str, holder: str) -> None:
        with suppress(Overloaded):  # it runs out by itself
            await self._locks.leave(conversation, holder)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._beat_seconds)
            if self._mine:
                with suppress(Overloaded):  # there is time for a few more attempts
                    await self._locks.renew(tuple(self._mine))


def _taken(conversation: str) -> Conflict:
    return Conflict(
        f"Another response is being made in the conversation {conversation!r}; try again when it has ended.",
        param="conversation",
        code="conversation_locked",
        retry_after=1,
    )
