"""Tells a URL of every new question, so that people can be asked wherever they are.

What is sent is signed and dated as the Standard Webhooks scheme has it, so that its libraries can check it. No call waits
for a delivery, their number is bounded, and a question that cannot be delivered waits in the inbox as ever.
Answers come back through the API, with a key; the webhook's own answer says only that it was received.
"""

import asyncio
import base64
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Protocol

from toolgate.conversation.errors import ToolgateError
from toolgate.conversation.ids import mint
from toolgate.tools.approvals.record import Approval
from toolgate.tools.approvals.shown import shown
from toolgate.wire.jsontext import encode

PAUSES = (1.0, 5.0, 25.0, 60.0)
"""Seconds before each further attempt."""

MOST_WAITING = 256
MOST_AT_ONCE = 4
_SECRET_PREFIX = "whsec_"  # noqa: S105 - how such secrets begin


class Post(Protocol):
    """Sends one HTTP request and follows no redirect."""

    async def __call__(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        """The status of the answer; OSError or ToolgateError if there was none."""


Complain = Callable[[str], None]
Sleep = Callable[[float], Awaitable[object]]


class Webhook:
    """Delivers questions to one URL."""

    def __init__(
        self,
        url: str,
        secret: str,
        post: Post,
        *,
        complain: Complain = lambda _: None,
        now: Callable[[], float] = time.time,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`complain` hears, in words for the log, of what could not be delivered."""
        self._url = url
        self._key = _key(secret)
        self._post = post
        self._complain = complain
        self._now = now
        self._sleep = sleep
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)
        self._deliveries: set[asyncio.Task[None]] = set()

    def announce(self, approval: Approval) -> None:
        """Have it told soon; returns at once."""
        if len(self._deliveries) >= MOST_WAITING:
            self._complain(f"the webhook is too slow: approval {approval.id} was not announced")
            return
        delivery = asyncio.create_task(self._deliver(approval), name="approval-webhook")
        self._deliveries.add(delivery)
        delivery.add_done_callback(self._deliveries.discard)

    async def idle(self) -> None:
        """Return when everything announced so far was delivered or given up."""
        await asyncio.gather(*self._deliveries)

    async def aclose(self) -> None:
        """Stop; what was not delivered yet waits in the inbox."""
        deliveries = tuple(self._deliveries)
        for delivery in deliveries:
            delivery.cancel()
        await asyncio.gather(*deliveries, return_exceptions=True)

    async def _deliver(self, approval: Approval) -> None:
        id, body = "msg_" + mint(), encode({"type": "approval.pending", "data": shown(approval)})
        said = ""
        for pause in (0.0, *PAUSES):
            if pause:
                await self._sleep(pause)
            if self._now() >= approval.expires:
                said = "it expired"
                break
            said = await self._attempt(id, body)
            if not said:
                return
        self._complain(f"the webhook did not take approval {approval.id}: {said}")

    async def _attempt(self, id: str, body: bytes) -> str:
        """What went wrong, if anything did."""
        try:
            async with self._turns:
                status = await self._post(self._url, signed(self._key, id, int(self._now()), body), body)
        except (OSError, ToolgateError) as error:
            return str(error) or type(error).__name__
        return "" if 200 <= status < 300 else f"it answered {status}"


def signed(key: bytes, id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of a delivery; the signature covers id, time and body."""
    mac = hmac.digest(key, b"%b.%d.%b" % (id.encode(), timestamp, body), sha256)
    return {
        "content-type": "application/json",
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": "v1," + base64.b64encode(mac).decode(),
    }


def _key(secret: str) -> bytes:
    """The bytes to sign with: what follows `whsec_` is Base64, any other secret is taken as it is written."""
    if not secret.startswith(_SECRET_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except ValueError:
        raise ValueError(f"what follows {_SECRET_PREFIX} in a webhook's secret must be Base64") from None
