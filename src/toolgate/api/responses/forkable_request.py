"""Define what is stored of a request so that its run can be forked later: all but its input, and the headers that matter."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

# Fields that a fork has of its own, or that are stored with the response.
_LEFT_OUT = frozenset(("input", "previous_response_id", "conversation", "background", "stream", "store"))


class ForkableRequest(Struct, frozen=True):
    """The request of a run, without its input, of which the last items may be `copied` from another run."""

    body: dict[str, Any]
    headers: tuple[tuple[str, str], ...] = ()
    copied: int = 0


class ForkOrigin(Struct, frozen=True):
    """The run and the step from which a response is forked, the copied entries of its timeline, and its headers.

    `items` is how many items at the end of the input are copied.
    """

    run: str
    step: int
    entries: Sequence[str]
    headers: tuple[tuple[str, str], ...] = ()
    items: int = 0


def encode_fork_request(body: Mapping[str, Any], headers: tuple[tuple[str, str], ...], copied: int = 0) -> bytes:
    """Return the request as it is stored."""
    kept = {name: value for name, value in body.items() if name not in _LEFT_OUT}
    return msgspec.json.encode(ForkableRequest(kept, headers, copied))


def decode_fork_request(stored: bytes) -> ForkableRequest:
    """Return a stored request."""
    return msgspec.json.decode(stored, type=ForkableRequest)
