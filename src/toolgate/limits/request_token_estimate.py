"""Estimate how many tokens a request may use, from its size and its own limits, before it is decoded."""

from contextlib import suppress

import msgspec
from msgspec import Struct

from toolgate.conversation.events import Usage
from toolgate.http.exchange import HttpExchange

_BYTES_PER_TOKEN = 4
_MOST_INPUT = 100_000  # a larger body is mostly images, whose tokens are many bytes each
_OUTPUT = 1_000
"""Output tokens of a request without a limit of its own."""


class RequestTokenEstimate(Struct, frozen=True):
    """The model that a request names, empty if it was not read, and the tokens that it may use."""

    model: str
    estimate: Usage


class _Options(Struct):
    num_predict: int | None = None


class _OutputLimits(Struct):
    """The fields of all dialects that limit the output."""

    model: str = ""
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n: int | None = None
    options: _Options | None = None

    @property
    def output(self) -> int:
        limits = [self.max_tokens, self.max_completion_tokens, self.max_output_tokens]
        limits += [self.options.num_predict] if self.options else []
        most = max([one for one in limits if one is not None and one > 0], default=_OUTPUT)
        return most * max(1, self.n or 1)


_DECODER = msgspec.json.Decoder(_OutputLimits)


async def estimate_cost(exchange: HttpExchange, *, whole: bool) -> RequestTokenEstimate:
    """Estimate a request by the length of its body, and if it is read `whole`, by its own limits."""
    length = exchange.named.get(b"content-length", b"")
    size = int(length) if length.isdigit() else 0
    limits = _OutputLimits()
    if whole:
        body = await exchange.peek()
        size = len(body)
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # decoding reports what is wrong
            limits = _DECODER.decode(body)
    return RequestTokenEstimate(
        limits.model, Usage(min(size // _BYTES_PER_TOKEN, _MOST_INPUT), limits.output, estimated=True)
    )
