"""One request to an editor, from its frame to the last one of the answer: what is received and not yet read, and deadlines.

One connection carries many exchanges, so that a slow reader may not stop the others: his answer is paused at the editor,
and ends if that goes on sending nevertheless.
"""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Literal, TypeAlias

from msgspec import Struct

from toolgate.bridge.faults import fault_of
from toolgate.bridge.frames import (
    AnswerPiece,
    BridgeDataPart,
    BridgeDeltaFrame,
    BridgeDoneFrame,
    BridgeErrorFrame,
    BridgeModelAskedFrame,
    BridgeThinkingPart,
    BridgeToolCall,
    BridgeToolResult,
    BridgeWaitingFrame,
    ExchangeFrame,
)
from toolgate.conversation.errors import (
    InvalidUpstreamAnswer,
    ToolgateError,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnavailable,
)

# Characters of an answer that may wait for their reader; only an editor that ignores a pause gets there.
MAX_UNREAD = 4 * 1024 * 1024
MAX_ANSWER = 64 * 1024 * 1024
_PAUSE_AT = 256 * 1024
_PIECE_COST = 64  # what keeping a piece takes beside its characters

Signal: TypeAlias = Literal["cancel", "pause", "resume"]


class EditorExchangeTimeouts(Struct, frozen=True):
    """Seconds that an editor may take: to start, for a person's consent, to the first piece, between pieces, altogether."""

    start: float = 10.0
    consent: float = 120.0
    first_byte: float = 120.0
    idle: float = 60.0
    total: float = 600.0


class EditorExchange:
    """One exchange under its id; it has one reader."""

    def __init__(
        self, id: str, editor: str, timeouts: EditorExchangeTimeouts, signal: Callable[["EditorExchange", Signal], None]
    ) -> None:
        """`editor` names the window in errors; `signal` sends the editor what concerns this exchange."""
        self.id = id
        self.ending: BridgeDoneFrame | None = None
        self.started = self.begun = False
        self.waiting_for: str | None = None
        self._editor = editor
        self._timeouts = timeouts
        self._signal = signal
        self._loop = asyncio.get_running_loop()
        self._total_at = self._loop.time() + timeouts.total
        self._pieces: list[AnswerPiece] = []
        self._unread = self._size = 0
        self._paused = False
        self._fault: ToolgateError | None = None
        self._waiter: asyncio.Future[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wait_until = inf

    @property
    def over(self) -> bool:
        """Whether nothing more can be received."""
        return self.ending is not None or self._fault is not None

    async def begin(self) -> None:
        """Wait for the first piece of the answer or its end."""
        # Each phase has a limit of its own, which counts from the frame that began the phase.
        clock = self._loop.time
        asked_at = clock()
        waited_at = started_at = 0.0
        while not (self._pieces or self.over):
            if self.started:
                started_at = started_at or clock()
                limit, text = self._timeouts.first_byte, "sent nothing for {:g} s (limit: first_byte)"
                until = started_at + limit
            elif self.waiting_for is not None:
                waited_at = waited_at or clock()
                limit, text = self._timeouts.consent, "waited {:g} s for its person's consent: allow it there"
                until = waited_at + limit
            else:
                limit, text = self._timeouts.start, "did not take the request within {:g} s"
                until = asked_at + limit
            await self._arrival(until, limit, text)
        if self._fault is not None and not self._pieces:  # pieces that came before it are read first
            raise self._fault

    async def more(self) -> list[AnswerPiece]:
        """Return the next pieces of the answer; none once it is complete."""
        while not (self._pieces or self.over):
            limit = self._timeouts.idle
            await self._arrival(self._loop.time() + limit, limit, "sent nothing for {:g} s in mid-answer (limit: idle)")
        pieces, self._pieces, self._unread = self._pieces, [], 0
        if self._paused:
            self._paused = False
            if not self.over:
                self._signal(self, "resume")
        if not pieces and self._fault is not None:
            raise self._fault
        return pieces

    def receive(self, frame: ExchangeFrame) -> None:
        """Take a frame of this id."""
        match frame:
            case BridgeDeltaFrame(parts=parts):
                self.started = True
                self._keep(parts)
            case BridgeModelAskedFrame():
                self.started = True
            case BridgeWaitingFrame(what=what):
                self.waiting_for = what
            case BridgeDoneFrame(parts=parts):
                self._keep(parts)
                self.ending = frame
            case BridgeErrorFrame():
                self._fault = fault_of(frame, self._editor)
        self._wake()

    def lose(self, how: str) -> None:
        """Fail: the connection is lost."""
        if self.over:
            return
        text = f"{self._editor} {how}"
        if self.begun:
            self._fault = InvalidUpstreamAnswer(f"{text} in mid-answer")
        else:  # it may have answered, at its person's cost, so it should not simply be asked again
            self._fault = UpstreamUnavailable(f"{text} without an answer", code="upstream_closed")
        self._wake()

    def fail(self, error: ToolgateError) -> None:
        """Fail for another reason than a lost connection; the editor was not asked."""
        if not self.over:
            self._fault = error
            self._wake()

    def cancel(self) -> None:
        """Stop reading, and cancel at the editor."""
        if not self.over:
            self._end(InvalidUpstreamAnswer(f"the answer of {self._editor} was given up before its end"))

    def _keep(self, parts: tuple[AnswerPiece, ...]) -> None:
        if not parts or self.over:
            return
        self.begun = True
        for piece in parts:
            size = _size(piece)
            self._unread += size + _PIECE_COST
            self._size += size
        self._pieces += parts
        if self._size > MAX_ANSWER:
            self._end(InvalidUpstreamAnswer(f"{self._editor} sent more than {MAX_ANSWER >> 20} MiB in one answer"))
        elif self._unread > MAX_UNREAD:
            self._end(
                InvalidUpstreamAnswer(
                    f"the answer of {self._editor} was cancelled: the client did not read {MAX_UNREAD >> 20} MiB of it"
                )
            )
        elif self._unread > _PAUSE_AT and not self._paused:
            self._paused = True
            self._signal(self, "pause")

    def _end(self, fault: UpstreamError) -> None:
        self._fault = fault
        self._signal(self, "cancel")
        self._wake()

    async def _arrival(self, until: float, limit: float, text: str) -> None:
        waiter = self._waiter = self._loop.create_future()
        self._wait_until = min(until, self._total_at)
        # The timer outlives the wait: setting one for every piece would cost more than decoding the piece.
        if self._wait_until < inf and (self._timer is None or self._timer.when() > self._wait_until):
            self._set_timer()
        try:
            is_late = await waiter
        finally:
            self._waiter = None
        if is_late:
            if until > self._total_at:
                text, limit = "did not finish within {:g} s (limit: total)", self._timeouts.total
            if self.waiting_for is not None and not self.started:
                fault: UpstreamError = UpstreamUnavailable(
                    f"{self._editor} {text.format(limit)}", code="editor_consent_pending", status=403
                )
            else:
                fault = UpstreamTimeout(f"{self._editor} {text.format(limit)}")
            self._end(fault)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._wait_until, self._check_time)

    def _check_time(self) -> None:
        """Wake the reader if it has waited too long; else look again later."""
        self._timer = None
        if self._waiter is None or self._waiter.done() or self.over:
            return
        if self._loop.time() >= self._wait_until:
            self._waiter.set_result(True)
        else:
            self._set_timer()

    def _wake(self) -> None:
        if self.over and self._timer is not None:  # else the loop would keep the exchange until the timer is due
            self._timer.cancel()
            self._timer = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(False)


def _size(piece: AnswerPiece) -> int:
    match piece:
        case BridgeDataPart(mime=mime, data=data):
            return len(mime) + len(data)
        case BridgeToolCall(call_id=id, name=name, input=raw):
            return len(id) + len(name) + len(bytes(raw))
        case BridgeToolResult(call_id=id, parts=parts):
            return len(id) + sum(map(_size, parts))
        case BridgeThinkingPart(text=text, id=id):
            return len(text) + len(id or "")
        case _:
            return len(piece.text)
