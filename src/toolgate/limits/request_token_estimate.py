"""Estimate how many tokens a request may use, from its size and its own limits, before it is decoded."""

from typing import Any

import msgspec
from msgspec import Struct

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.events import Usage
from toolgate.engine.json_thread import LARGE_BODY, run_in_thread
from toolgate.http.exchange import HttpExchange
from toolgate.wire.fields import MAX_TOKENS
from toolgate.wire.jsontext import decode_body

_BYTES_PER_TOKEN = 4
_MOST_INPUT = 100_000  # a larger body is mostly images, whose tokens are many bytes each
_OUTPUT = 1_000  # output tokens of a request without a limit of its own


class RequestTokenEstimate(Struct, frozen=True):
    """The model that a request names, empty if it was not read, and the tokens that it may use."""

    model: str
    estimate: Usage


class _OutputLimits(Struct):
    """The fields of all dialects that limit the output, of any type.

    A dialect ignores the fields of the others, whatever they hold, so that a wrong one must not hide those that count.
    """

    model: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    n: Any = None
    options: Any = None

    @property
    def output(self) -> int:
        limits = [self.max_tokens, self.max_completion_tokens, self.max_output_tokens]
        limits += [self.options.get("num_predict")] if type(self.options) is dict else []
        # The highest, if a request has several: which of them its upstream obeys is not known here.
        most = max([count for one in limits if (count := _count(one))], default=_OUTPUT)
        return min(most * max(1, _count(self.n)), MAX_TOKENS)


_DECODER = msgspec.json.Decoder(_OutputLimits)


async def estimate_cost(exchange: HttpExchange, *, whole: bool) -> RequestTokenEstimate:
    """Estimate a request by the length of its body, and if it is read `whole`, by its own limits."""
    length = exchange.named.get(b"content-length", b"")
    size = int(length) if length.isdigit() else 0
    limits = _OutputLimits()
    if whole:
        body = await exchange.peek()
        size = len(body)
        limits = _read_limits(body) if size <= LARGE_BODY else await run_in_thread(_read_limits, body)
    model = limits.model if type(limits.model) is str else ""
    return RequestTokenEstimate(model, Usage(min(size // _BYTES_PER_TOKEN, _MOST_INPUT), limits.output, estimated=True))


def _read_limits(body: bytes) -> _OutputLimits:
    try:
        return _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    # What is repaired before it is served, such as a lone surrogate, must not hide the limits either.
    try:
        value = decode_body(body)
    except InvalidRequest:
        return _OutputLimits()  # the handler refuses it
    fields = _OutputLimits.__struct_fields__
    return _OutputLimits(**{name: value.get(name) for name in fields}) if type(value) is dict else _OutputLimits()


def _count(value: Any) -> int:
    """Read a count as the dialects do, which take 5.0 for 5; 0 for anything else."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return min(value, MAX_TOKENS) if type(value) is int and value > 0 else 0
