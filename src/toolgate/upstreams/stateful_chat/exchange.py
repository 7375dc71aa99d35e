"""One request to a peer, from its frame to the last one of the answer: what is received and not yet read, and deadlines.

One connection carries many exchanges, so a slow reader cannot make the peer wait without delaying the others: what is
received and not yet read is bounded, and beyond the bound the answer ends.
"""

import asyncio
from collections.abc import Callable
from math import inf

from toolgate.conversation.errors import (
    InvalidUpstreamAnswer,
    UpstreamError,
    UpstreamRejected,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from toolgate.upstreams.stateful_chat.frames import (
    ReceivedFrame,
    StatefulChatAnswerDoneFrame,
    StatefulChatConversationCreated,
    StatefulChatErrorFrame,
    StatefulChatTextDeltaFrame,
)
from toolgate.upstreams.transport.limits import UpstreamTimeouts, size

# Seconds and characters of an error frame that are believed: it is the peer's and may hold anything.
MAX_RETRY_AFTER = 3600.0
_LONGEST_REASON = 1000
_FRAGMENT_COST = 64  # what a fragment takes in memory beside its letters: a peer may send single ones


class ConversationForgotten(UpstreamRejected):
    """The peer does not know the conversation, or not any more."""

    code = "unknown_conversation"


class StatefulChatExchange:
    """One exchange under its id; it has one reader."""

    def __init__(
        self,
        id: str,
        peer: str,
        timeouts: UpstreamTimeouts,
        unread: int,
        most: int,
        on_cancel: Callable[["StatefulChatExchange"], None],
    ) -> None:
        """`unread` and `most` bound what waits to be read and the whole answer, in characters.

        `on_cancel` is called when the reader cancels.
        """
        self.id = id
        self.conversation: str | None = None
        self.ending: StatefulChatAnswerDoneFrame | None = None
        self.begun = False
        self._peer = peer
        self._timeouts = timeouts
        self._unread = unread
        self._most = most
        self._on_cancel = on_cancel
        self._loop = asyncio.get_running_loop()
        self._total_at = self._loop.time() + timeouts.total
        self._fragments: list[str] = []
        self._waiting = self._size = 0
        self._fault: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more can be received."""
        return self.ending is not None or self._fault is not None

    async def begin(self) -> None:
        """Wait for the first text of the answer, its end, or the conversation that was requested."""
        while not (self._fragments or self.conversation or self.over):
            await self._arrival(self._timeouts.first_byte, "sent nothing for {:g} s (limit: first_byte)")
        if self._fault is not None and not self._fragments:
            raise self._fault

    async def more(self) -> list[str]:
        """Return the next pieces of the answer; none once it is complete."""
        while not (self._fragments or self.over):
            await self._arrival(self._timeouts.idle, "fell silent for {:g} s in mid-answer (limit: idle)")
        # What was received before a failure is returned first; the next call raises.
        fragments, self._fragments, self._waiting = self._fragments, [], 0
        if not fragments and self._fault is not None:
            raise self._fault
        return fragments

    def receive(self, frame: ReceivedFrame) -> None:
        """Take a frame of this id."""
        match frame:
            case StatefulChatTextDeltaFrame(text=text) if text:
                self.begun = True
                self._fragments.append(text)
                self._waiting += len(text) + _FRAGMENT_COST
                self._size += len(text)
                if self._size > self._most:
                    self._end(InvalidUpstreamAnswer(f"{self._peer} sent more than {size(self._most)} in one answer"))
                elif self._waiting > self._unread:
                    problem = f"the client did not read {size(self._unread)} of it"
                    self._end(InvalidUpstreamAnswer(f"the answer of {self._peer} was cancelled: {problem}"))
            case StatefulChatConversationCreated(conversation=conversation):
                self.conversation = conversation
            case StatefulChatAnswerDoneFrame():
                self.ending = frame
            case StatefulChatErrorFrame():
                self._fault = fault_of_frame(frame, self._peer)
        self._wake()

    def lose(self, how: str) -> None:
        """Fail: the connection is lost."""
        if self.over:
            return
        text = f"{self._peer} {how}"
        if self.begun:
            self._fault = InvalidUpstreamAnswer(f"{text} in mid-answer")
        else:  # the peer may have answered, at a cost, so that this code is not retried
            self._fault = UpstreamUnavailable(f"{text} without an answer", code="upstream_closed")
        self._wake()

    def cancel(self) -> None:
        """Stop reading, and cancel at the peer."""
        if not self.over:
            self._end(InvalidUpstreamAnswer(f"the answer of {self._peer} was given up before its end"))

    def _end(self, fault: UpstreamError) -> None:
        self._fault = fault
        self._on_cancel(self)
        self._wake()

    async def _arrival(self, limit: float, problem: str) -> None:
        stall_at = self._loop.time() + limit
        self._waiter = self._loop.create_future()
        until = min(stall_at, self._total_at)
        try:
            async with asyncio.timeout_at(until if until < inf else None):
                await self._waiter
        except TimeoutError:
            if stall_at > self._total_at:
                problem, limit = "did not finish within {:g} s (limit: total)", self._timeouts.total
            self._end(UpstreamTimeout(f"{self._peer} {problem.format(limit)}"))
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def fault_of_frame(frame: StatefulChatErrorFrame, peer: str) -> UpstreamError:
    """Return the fault of an error frame; an unknown code means that the peer is unavailable."""
    reason = frame.message[:_LONGEST_REASON] or f"{peer} gave no reason ({frame.code[:64]})."
    wait = frame.retry_after if frame.retry_after is not None and frame.retry_after >= 0 else None
    wait = min(wait, MAX_RETRY_AFTER) if wait is not None else None
    match frame.code:
        case "unknown_conversation":
            return ConversationForgotten(reason)
        case "rejected" | "too_long" | "unknown_model":
            return UpstreamRejected(reason, code={"too_long": "context_length_exceeded"}.get(frame.code, frame.code))
        case "rate_limited":
            return UpstreamUnavailable(reason, code="rate_limit_exceeded", status=429, retry_after=wait)
        case "busy":
            return UpstreamUnavailable(reason, status=503, retry_after=wait)
        case "unauthorized":
            return UpstreamUnavailable(f"{peer} refused our credentials: {reason}", code="upstream_auth")
    return UpstreamUnavailable(reason, retry_after=wait)
