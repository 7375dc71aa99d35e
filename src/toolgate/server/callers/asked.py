"""How much a request may use at most, as far as it says so itself: looked at before anybody reads the rest of it."""

import msgspec
from msgspec import Struct

from toolgate.conversation.events import Usage
from toolgate.server.exchange import Exchange

_BYTES_PER_TOKEN = 4
_MOST_INPUT = 100_000  # beyond it a body is mostly images, of which a token is many bytes
_OUTPUT = 1_000
"""Tokens of an answer to a request that sets no bound."""


class Asked(Struct, frozen=True):
    """Which model a request names, if that is known yet, and what it may use."""

    model: str
    estimate: Usage


class _Options(Struct):
    num_predict: int | None = None


class _Bounds(Struct):
    """The words of all dialects for the longest answer."""

    model: str = ""
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n: int | None = None
    options: _Options | None = None

    @property
    def output(self) -> int:
        said = [self.max_tokens, self.max_completion_tokens, self.max_output_tokens]
        said += [self.options.num_predict] if self.options else []
        most = max([one for one in said if one is not None and one > 0], default=_OUTPUT)
        return most * max(1, self.n or 1)


_DECODER = msgspec.json.Decoder(_Bounds)


async def read_asked(exchange: Exchange, *, whole: bool) -> Asked:
    """What a request may use: by the length of its body, and if it is to be read `whole`, by its own bound."""
    length = exchange.named.get(b"content-length", b"")
    size = int(length) if length.isdigit() else 0
    bounds = _Bounds()
    if whole:
        body = await exchange.peek()
        size = len(body)
        bounds = _bounds(body)
    return Asked(bounds.model, Usage(min(size // _BYTES_PER_TOKEN, _MOST_INPUT), bounds.output, estimated=True))


def _bounds(body: bytes) -> _Bounds:
    try:
        return _DECODER.decode(body)
    except (
        msgspec.MsgspecError,
        UnicodeDecodeError,
        RecursionError,
    ):  # reading the request says what is wrong
        return _Bounds()
