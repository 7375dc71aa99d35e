"""The ASGI application: from a path to its handler, and from any failure to the words of the caller's dialect."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

from toolgate.conversation import ids
from toolgate.conversation.errors import (
    ClientFault,
    GatewayFault,
    NotFound,
    RateLimited,
    ToolgateError,
    Unauthenticated,
)
from toolgate.scheduling import CALLER
from toolgate.server.callers.auth import Caller, Keys, guess
from toolgate.server.callers.guesses import Guesses
from toolgate.server.callers.present import Present
from toolgate.server.exchange import ClientLeft, Exchange, Header, Receive, Scope, Send
from toolgate.server.origins import Origins
from toolgate.telemetry.traced import RequestRecord, Traced

_LASTING = frozenset({"invalid_api_key", "too_many_wrong_keys", "upstream_auth"})
"""Failures that are still so a second later, but that some clients retry for minutes unless told not to."""


class Call(Struct, frozen=True):
    """A request that was let in: who makes it, and what the path's placeholders stand for."""

    exchange: Exchange
    caller: Caller
    record: RequestRecord
    arguments: tuple[str, ...] = ()


class Words(Protocol):
    """The words in which an error is told."""

    def encode_error(self, error: ToolgateError, request_id: str = "") -> bytes:
        """The body of an error response."""


Handler: TypeAlias = Callable[[Call], Awaitable[None]]


class Endpoint(Struct, frozen=True):
    """What answers one method on one path; `{}` in the path stands for anything, `scope` None lets everybody in."""

    method: str
    path: str
    handler: Handler
    half: Words
    scope: str | None = "chat"


class App:
    """Routes requests, lets callers in, and turns every failure into an answer."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        halves: Mapping[str, Words],
        keys: Keys,
        origins: Origins,
        traced: Traced,
        present: Present | None = None,
    ) -> None:
        """`halves` says by the beginning of a path, longest first, which dialect's words an error there takes.

        `present` holds the requests under way, also those of an application that this one takes the place of.
        """
        self.endpoints = tuple(endpoints)
        self._exact = {(one.method, one.path): one for one in endpoints if "{}" not in one.path}
        self._patterns = [(_pattern(one.path), one) for one in endpoints if "{}" in one.path]
        self._paths = {one.path for one in endpoints}
        self._halves = sorted(halves.items(), key=lambda item: -len(item[0]))
        self._keys = keys
        self._origins = origins
        self._traced = traced
        self._guests = (present or Present()).guests
        self._guesses = Guesses()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        exchange = Exchange(scope, receive, send)
        record = RequestRecord(ids.mint(20), exchange.method, exchange.path)
        request_id = record.request_id.encode()
        exchange.extra_headers += (
            (b"x-request-id", request_id),
            (b"request-id", request_id),
        )  # OpenAI's and Anthropic's
        try:
            await self._admit(exchange, record)
        except Unauthenticated as error:
            await self._refuse(exchange, record, self._guessed(scope, exchange, error))
        except ToolgateError as error:
            await self._refuse(exchange, record, error)
        except ClientLeft:
            record.note_client_left()
        except asyncio.CancelledError:
            if exchange.client_left:
                record.note_client_left()
            else:
                await self._refuse(exchange, record, record.why_ended())
        except Exception as error:  # noqa: BLE001  # the HTTP edge: the client gets an answer, the log the whole story
            self._traced.crashed(record, error)
            await self._refuse(exchange, record, GatewayFault("An internal error occurred; the server's log has it."))
        finally:
            self._guests.pop(record.request_id, None)
            record.bytes_in, record.bytes_out = exchange.received, exchange.sent
            self._traced.finish(record)

    def _admit(self, exchange: Exchange, record: RequestRecord) -> Awaitable[None]:
        """What answers the request, once it is clear that it may be."""
        if exchange.method == "OPTIONS":
            return exchange.respond(204, b"", self._origins.preflight(exchange.headers))
        endpoint, arguments = self._find(exchange)
        record.endpoint = endpoint.path
        exchange.extra_headers += self._origins.check(exchange.headers)
        caller = self._keys.authenticate(exchange.headers) if endpoint.scope else self._keys.nobody
        if endpoint.scope:
            caller.require(endpoint.scope)
            self._guests[record.request_id] = exchange, caller, endpoint.scope, record
        record.caller = caller.name
        CALLER.set(caller.name)
        return endpoint.handler(Call(exchange, caller, record, arguments))

    def _guessed(self, scope: Scope, exchange: Exchange, error: Unauthenticated) -> ToolgateError:
        """What whoever came without a good key is told; many different ones are not looked at quietly."""
        wrong, address = guess(exchange.headers), (scope.get("client") or ("",))[0]
        try:
            if wrong and self._guesses.note(address, wrong):
                self._traced.log.warning("many wrong keys", address=address)
        except RateLimited as enough:
            return enough
        return error

    def _find(self, exchange: Exchange) -> tuple[Endpoint, tuple[str, ...]]:
        method = "GET" if exchange.method == "HEAD" else exchange.method
        endpoint = self._exact.get((method, exchange.path))
        if endpoint is not None:
            return endpoint, ()
        for pattern, candidate in self._patterns:
            if candidate.method == method and (found := pattern.fullmatch(exchange.path)):
                return candidate, found.groups()
        if exchange.path in self._paths or any(p.fullmatch(exchange.path) for p, _ in self._patterns):
            raise ClientFault(f"{exchange.path} does not take {method}.", status=405, code="method_not_allowed")
        raise NotFound(f"There is no {exchange.path[:200]!r} here.", code="unknown_url")

    def half_for(self, path: str) -> Words:
        """The dialect whose words an error on this path takes; what is no path, such as `*`, takes those of `/`."""
        return next((half for prefix, half in self._halves if path.startswith(prefix)), self._halves[-1][1])

    async def _refuse(self, exchange: Exchange, record: RequestRecord, error: ToolgateError) -> None:
        record.note_error(error)
        if exchange.started:
            return
        headers: list[Header] = []
        if error.retry_after is not None:
            headers.append((b"retry-after", b"%d" % max(1, round(error.retry_after))))
        if error.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if error.code in _LASTING:
            headers.append((b"x-should-retry", b"false"))
        await exchange.respond(
            error.status, self.half_for(exchange.path).encode_error(error, record.request_id), headers
        )


def _pattern(path: str) -> re.Pattern[str]:
    """A placeholder takes a path segment, and at the end of the path also slashes: models have them in their names."""
    escaped = re.escape(path).replace(r"\{\}", "([^/]+)")
    return re.compile(escaped.removesuffix("([^/]+)") + "(.+)" if path.endswith("{}") else escaped)
