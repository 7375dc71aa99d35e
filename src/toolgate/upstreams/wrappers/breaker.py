"""Stop sending requests to an upstream that is down: a circuit breaker.

    closed ──failures──▶ open ──cooldown──▶ one probe ──first piece──▶ closed on trial ──whole answer──▶ closed
                           ▲                    │                             │
                           └──── twice as long ─┴─────────── any failure ─────┘

Failures count wherever they happen, also in mid-answer. A probe's first piece closes the circuit, for its whole answer
may take minutes; until one has been read to its end, a single failure opens it again.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from toolgate.conversation.errors import UpstreamError, UpstreamRejected, UpstreamUnavailable, UpstreamUnreachable
from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import Model, ModelStream
from toolgate.upstreams.wrapped_streams import StreamEnd, with_end_listener

CIRCUIT_OPEN = "circuit_open"


class CircuitBreaker:
    """A model that is not asked for `cooldown` seconds after `failures` in a row, or a share `rate` of the last `window`.

    The cooldown doubles up to `longest` until an answer is complete. What counts is the upstream's fault alone: neither
    a request that it rejects, nor a client that leaves, nor a limit of ours, nor status 429, which is about the caller's
    rate. With `unreachable_only`, failures to connect count and no others: where no other model could answer instead,
    refusing requests would only turn an upstream's occasional errors into an outage. `on_change` gets the fault that opens
    the circuit, and None when an answer is complete again; between the two, failing probes are not reported.
    """

    def __init__(
        self,
        model: Model,
        *,
        failures: int = 5,
        rate: float = 0.5,
        window: int = 20,
        cooldown: float = 10.0,
        longest: float = 120.0,
        unreachable_only: bool = False,
        on_change: Callable[[UpstreamError | None], None] = lambda fault: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._failures = failures
        self._rate = rate
        self._recent: deque[bool] = deque(maxlen=window)
        self._shortest = self._cooldown = cooldown
        self._longest = longest
        self._counted = UpstreamUnreachable if unreachable_only else UpstreamError
        self._on_change = on_change
        self._reported = False
        self._clock = clock
        self._in_a_row = 0
        self._open_until: float | None = None
        self._probing = False
        self._era = 0  # counts the openings, so that answers of an earlier era change nothing

    @property
    def state(self) -> Literal["closed", "open", "probing"]:
        """The state of the circuit, for status pages."""
        if self._open_until is None:
            return "closed"
        return "probing" if self._probing else "open"

    @property
    def ready(self) -> bool:
        """Whether a request would be sent now."""
        return self._open_until is None or (not self._probing and self._clock() >= self._open_until)

    async def ask(self, request: ModelRequest) -> ModelStream:
        """Ask the model, or raise UpstreamUnavailable at once while the circuit is open."""
        era, probe = self._era, self._open_until is not None
        if self._open_until is not None and not self.ready:
            wait = max(self._open_until - self._clock(), 1.0)
            text = f"The upstream has failed too often and is left alone for another {wait:.0f} s."
            raise UpstreamUnavailable(text, code=CIRCUIT_OPEN, status=503, retry_after=wait)
        self._probing = probe
        try:
            answer = await self._model.ask(request)
        except UpstreamError as fault:
            self._ended(era, fault)
            raise
        finally:
            if probe:  # also when its client has left, or no other request could ever probe
                self._probing = False
        if probe:
            self._close_on_trial(era)
        if answer.whole:
            self._ended(era, "read")
            return answer
        return with_end_listener(answer, lambda ending: self._ended(era, ending))

    def _close_on_trial(self, era: int) -> None:
        """Close an open circuit on trial: one more failure opens it again."""
        if era == self._era and self._open_until is not None:
            self._open_until = None
            self._in_a_row = self._failures - 1

    def _ended(self, era: int, ending: StreamEnd) -> None:
        """Count an outcome, unless the circuit has opened since the request was sent."""
        if era != self._era:
            return
        match ending:
            case "read":
                self._in_a_row = 0
                self._cooldown = self._shortest
                self._recent.append(False)
                if self._reported:
                    self._reported = False
                    self._on_change(None)
            case UpstreamError() if (
                isinstance(ending, UpstreamRejected) or ending.status == 429 or not isinstance(ending, self._counted)
            ):
                self._close_on_trial(era)  # an upstream that rejects a request works
            case UpstreamError():
                self._in_a_row += 1
                self._recent.append(True)
                # A share of few answers says little, so that the window must be full.
                recent = self._recent
                often = len(recent) == recent.maxlen and sum(recent) >= self._rate * len(recent)
                if self._open_until is not None or self._in_a_row >= self._failures or often:
                    self._open(ending)

    def _open(self, fault: UpstreamError) -> None:
        # The upstream's own Retry-After counts, but a wrong one must not switch it off for hours.
        asked = min(fault.retry_after or 0.0, self._longest)
        self._open_until = self._clock() + max(self._cooldown, asked)
        self._cooldown = min(self._cooldown * 2, self._longest)
        self._era += 1
        self._recent.clear()
        if not self._reported:
            self._reported = True
            self._on_change(fault)
