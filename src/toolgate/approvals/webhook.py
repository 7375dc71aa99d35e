"""Post every new approval to a URL, so that people learn of it outside of the API.

With a secret, a delivery is signed and dated by the Standard Webhooks scheme, whose libraries can verify it. No call waits
for a delivery, their number is bounded, callers take turns, and an approval that could not be delivered is still listed by
the API. Decisions come in through the API, with a key; the response to the webhook only confirms that it was received.
"""

import asyncio
import base64
import hmac
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Protocol

from toolgate.approvals.encode_for_people import approval_json
from toolgate.approvals.record import Approval
from toolgate.conversation.errors import ToolgateError
from toolgate.conversation.random_ids import random_suffix
from toolgate.engine.json_thread import run_in_thread
from toolgate.scheduling import FairSlots
from toolgate.wire.jsontext import encode

PAUSES = (1.0, 5.0, 25.0, 60.0)  # seconds before each further attempt

MAX_WAITING = 256
MAX_CONCURRENT = 4
_SECRET_PREFIX = "whsec_"  # noqa: S105 - how such secrets begin


class WebhookPostFunction(Protocol):
    """Sends one HTTP request and follows no redirect."""

    async def __call__(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        """Return the status of the response; OSError or ToolgateError if there was none."""


OnFailure = Callable[[str], None]
Sleep = Callable[[float], Awaitable[object]]


class NewApprovalWebhook:
    """Delivers every new approval to one URL."""

    def __init__(
        self,
        url: str,
        secret: str,
        post: WebhookPostFunction,
        *,
        on_failure: OnFailure = lambda _: None,
        now: Callable[[], float] = time.time,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """Deliveries are signed unless `secret` is empty; `on_failure` receives a text when an approval is not delivered."""
        self._url = url
        self._key = signing_key(secret)
        self._post = post
        self._on_failure = on_failure
        self._now = now
        self._sleep = sleep
        self._slots = FairSlots(MAX_CONCURRENT)
        self._deliveries: dict[asyncio.Task[None], Approval] = {}

    def announce(self, approval: Approval) -> None:
        """Start a delivery and return at once."""
        # When too many are under way, the last one of the caller with the most is dropped for one of a caller with fewer:
        # a model that asks without end must not hide the questions of others.
        if len(self._deliveries) >= MAX_WAITING:
            waiting = Counter([one.caller for one in self._deliveries.values()])
            [(busiest, most)] = waiting.most_common(1)
            if most < waiting[approval.caller] + 2:
                self._give_up(approval)
                return
            last = next(task for task, one in reversed(self._deliveries.items()) if one.caller == busiest)
            self._give_up(self._deliveries.pop(last))
            last.cancel()
        delivery = asyncio.create_task(self._deliver(approval), name="approval-webhook")
        self._deliveries[delivery] = approval
        delivery.add_done_callback(lambda ended: self._deliveries.pop(ended, None))

    async def idle(self) -> None:
        """Wait until everything announced so far was delivered or given up."""
        await asyncio.gather(*self._deliveries)

    async def aclose(self) -> None:
        """Stop; approvals that were not delivered yet are still listed by the API."""
        deliveries = tuple(self._deliveries)
        if deliveries:
            self._on_failure(f"the server stops: {len(deliveries)} approvals may not have been sent")
        for delivery in deliveries:
            delivery.cancel()
        await asyncio.gather(*deliveries, return_exceptions=True)

    def _give_up(self, approval: Approval) -> None:
        self._on_failure(f"the webhook is too slow: approval {approval.id} was not sent")

    async def _deliver(self, approval: Approval) -> None:
        # One id for all attempts: by it the receiver recognizes a delivery that it has got already.
        id, failure = "msg_" + random_suffix(), ""
        for pause in (0.0, *PAUSES):
            if pause:
                await self._sleep(pause)
            if self._now() >= approval.expires:
                failure = "it expired"
                break
            failure = await self._attempt(id, approval)
            if not failure:
                return
        self._on_failure(f"the webhook did not accept approval {approval.id}: {failure}")

    async def _attempt(self, id: str, approval: Approval) -> str:
        """Send one request; returns what went wrong, empty if nothing did."""
        if not self._slots.try_acquire():
            await self._slots.wait(approval.caller)
        try:
            # Encoded only now, so that few bodies exist at a time.
            body = await run_in_thread(lambda: encode({"type": "approval.pending", "data": approval_json(approval)}))
            status = await self._post(self._url, signed(self._key, id, int(self._now()), body), body)
        except (OSError, ToolgateError) as error:
            return str(error) or type(error).__name__
        finally:
            self._slots.release()
        return "" if 200 <= status < 300 else f"it answered {status}"


def signed(key: bytes, id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Make the headers of a delivery; the signature covers id, time and body."""
    headers = {"content-type": "application/json", "webhook-id": id, "webhook-timestamp": str(timestamp)}
    if not key:  # anyone could make that signature, yet a receiver may take it for one
        return headers
    mac = hmac.digest(key, b"%b.%d.%b" % (id.encode(), timestamp, body), sha256)
    return {**headers, "webhook-signature": "v1," + base64.b64encode(mac).decode()}


def signing_key(secret: str) -> bytes:
    """Return the bytes to sign with: what follows `whsec_` is Base64, any other secret is used as it is written.

    ValueError if that is no Base64, or empty.
    """
    if not secret.startswith(_SECRET_PREFIX):
        return secret.encode()
    try:
        key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except ValueError:
        key = b""
    if not key:
        raise ValueError(f"what follows {_SECRET_PREFIX} in a webhook's secret must be Base64")
    return key
