"""One question to a peer, from its frame to the last one of its answer: what has come and is not yet read, and until when.

One connection carries many exchanges, so a slow reader cannot make the peer wait: what he leaves unread is bounded, and
beyond the bound his answer ends.
"""

import asyncio
from collections.abc import Callable
from math import inf

from toolgate.conversation.errors import Garbled, Rejected, TimedOut, Unavailable, UpstreamFault
from toolgate.upstreams.peers.frames import ConversationCreated, Delta, Done, Failed, Heard
from toolgate.upstreams.transport.limits import Timeouts, size

MAX_RETRY_AFTER = 3600.0
_LONGEST_REASON = 1000
_FRAGMENT_COST = 64  # what keeping a fragment takes beside its letters


class Forgotten(Rejected):
    """The peer does not know the conversation, or no longer."""

    code = "unknown_conversation"


class Exchange:
    """One id under way; it has one reader."""

    def __init__(
        self,
        id: str,
        peer: str,
        timeouts: Timeouts,
        unread: int,
        most: int,
        leave: Callable[["Exchange"], None],
    ) -> None:
        """`unread` and `most` bound what may wait here and the whole answer, in letters; `leave` tells the peer."""
        self.id = id
        self.conversation: str | None = None
        self.ending: Done | None = None
        self.begun = False
        self._peer = peer
        self._timeouts = timeouts
        self._unread = unread
        self._most = most
        self._leave = leave
        self._loop = asyncio.get_running_loop()
        self._total_at = self._loop.time() + timeouts.total
        self._fragments: list[str] = []
        self._waiting = self._size = 0
        self._fault: UpstreamFault | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more can come."""
        return self.ending is not None or self._fault is not None

    async def begin(self) -> None:
        """Wait for the first word of the answer, its end, or the conversation that was asked for."""
        while not (self._fragments or self.conversation or self.over):
            await self._arrival(self._timeouts.first_byte, "sent nothing for {:g} s (limit: first_byte)")
        if self._fault is not None and not self._fragments:
            raise self._fault

    async def more(self) -> list[str]:
        """The next pieces of the answer; none once it is complete."""
        while not (self._fragments or self.over):
            await self._arrival(self._timeouts.idle, "fell silent for {:g} s in mid-answer (limit: idle)")
        fragments, self._fragments, self._waiting = self._fragments, [], 0
        if not fragments and self._fault is not None:
            raise self._fault
        return fragments

    def hear(self, frame: Heard) -> None:
        """Take what the peer said under this id."""
        match frame:
            case Delta(text=text):
                self._keep(text)
            case ConversationCreated(conversation=conversation):
                self.conversation = conversation
            case Done():
                self.ending = frame
            case Failed():
                self._fault = told_fault(frame, self._peer)
        self._wake()

    def lose(self, how: str) -> None:
        """The connection is gone."""
        if self.over:
            return
        told = f"{self._peer} {how}"
        if self.begun:
            self._fault = Garbled(f"{told} in mid-answer")
        else:  # it may have answered, at somebody's cost, so nobody should simply ask again
            self._fault = Unavailable(f"{told} without an answer", code="upstream_closed")
        self._wake()

    def cancel(self) -> None:
        """Stop listening, and let the peer know."""
        if not self.over:
            self._end(Garbled(f"the answer of {self._peer} was given up before its end"))

    def _keep(self, text: str) -> None:
        if not text:
            return
        self.begun = True
        self._fragments.append(text)
        self._waiting += len(text) + _FRAGMENT_COST
        self._size += len(text)
        if self._size > self._most:
            self._end(Garbled(f"{self._peer} said more than {size(self._most)} in one answer"))
        elif self._waiting > self._unread:
            self._end(Garbled(f"the answer of {self._peer} was given up: nobody read {size(self._unread)} of it"))

    def _end(self, fault: UpstreamFault) -> None:
        self._fault = fault
        self._leave(self)
        self._wake()

    async def _arrival(self, limit: float, words: str) -> None:
        stall_at = self._loop.time() + limit
        self._waiter = self._loop.create_future()
        until = min(stall_at, self._total_at)
        try:
            async with asyncio.timeout_at(until if until < inf else None):
                await self._waiter
        except TimeoutError:
            if stall_at > self._total_at:
                words, limit = "did not finish within {:g} s (limit: total)", self._timeouts.total
            self._end(TimedOut(f"{self._peer} {words.format(limit)}"))
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def told_fault(frame: Failed, peer: str) -> UpstreamFault:
    """The failure that an error frame tells of; a code we do not know means that the peer is unwell."""
    said = frame.message[:_LONGEST_REASON] or f"{peer} gave no reason ({frame.code[:64]})."
    wait = frame.retry_after if frame.retry_after is not None and frame.retry_after >= 0 else None
    wait = min(wait, MAX_RETRY_AFTER) if wait is not None else None
    match frame.code:
        case "unknown_conversation":
            return Forgotten(said)
        case "rejected" | "too_long" | "unknown_model":
            return Rejected(said, code={"too_long": "context_length_exceeded"}.get(frame.code, frame.code))
        case "rate_limited":
            return Unavailable(said, code="rate_limit_exceeded", status=429, retry_after=wait)
        case "busy":
            return Unavailable(said, status=503, retry_after=wait)
        case "unauthorized":
            return Unavailable(f"{peer} refused our credentials: {said}", code="upstream_auth")
    return Unavailable(said, retry_after=wait)
