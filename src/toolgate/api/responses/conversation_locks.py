"""Lock conversations while a response is made in them: one at a time, in this process and on all nodes.

Two responses at once would mix up their items: each would be made without the other. Within the process a set holds the
locked conversations; between nodes a row of the database does, whose lease is renewed as long as the response is made.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from toolgate.conversation.errors import Conflict, GatewayOverloaded
from toolgate.storage.conversation_locks import ConversationLocks

RENEW_SECONDS = 5.0  # a lease lasts for a few of these, so that one failed renewal loses no lock
_POLL_SECONDS = 0.5


class ProcessConversationLocks:
    """The conversations that this process has locked."""

    def __init__(self, locks: ConversationLocks, *, renew_seconds: float = RENEW_SECONDS) -> None:
        self._locks = locks
        self._renew_seconds = renew_seconds
        self._locked: set[str] = set()
        self._releasing: set[asyncio.Task[None]] = set()
        self._renewing: asyncio.Task[None] | None = None

    async def lock(self, conversation: str) -> Callable[[], None]:
        """Lock a conversation for one response and return what unlocks it; Conflict if it is locked."""
        if conversation in self._locked:
            raise _conflict(conversation)
        self._locked.add(conversation)  # before the database is asked, so that no other task asks it meanwhile
        try:
            holder = await self._locks.acquire(conversation)
            if holder is None:
                raise _conflict(conversation)
        except BaseException:
            self._locked.discard(conversation)
            raise
        if self._renewing is None:
            self._renewing = asyncio.get_running_loop().create_task(self._renew())
        held = [holder]  # released once, so that a later lock of the conversation is not released with it
        return lambda: self._unlock(conversation, held.pop()) if held else None

    async def wait_for_lock(self, conversation: str) -> Callable[[], None]:
        """Lock a conversation as soon as it is free, for a response that was accepted before."""
        while True:
            try:
                return await self.lock(conversation)
            except Conflict:
                await asyncio.sleep(_POLL_SECONDS)

    async def aclose(self) -> None:
        """Wait for locks that are being released; the leases of others run out."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})
        if self._releasing:
            await asyncio.wait(self._releasing)

    def _unlock(self, conversation: str, holder: str) -> None:
        """Unlock it here at once; other nodes know by the items that were stored, or when the row is deleted."""
        self._locked.discard(conversation)
        self._locks.forget(conversation, holder)

        async def release() -> None:
            with suppress(GatewayOverloaded):  # the lease runs out
                await self._locks.release(conversation, holder)

        task = asyncio.get_running_loop().create_task(release())
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._renew_seconds)
            if self._locked:
                with suppress(GatewayOverloaded):  # a lease lasts for a few more tries
                    await self._locks.renew(tuple(self._locked))


def _conflict(conversation: str) -> Conflict:
    return Conflict(
        f"Another response is being made in the conversation {conversation!r}; try again when it has ended.",
        param="conversation",
        code="conversation_locked",
        retry_after=1,
    )
