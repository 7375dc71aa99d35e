"""The ASGI application: route a request to its handler, and encode every error in the dialect of its path."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Protocol, TypeAlias

from msgspec import Struct

from toolgate.auth.active_requests import ActiveRequests
from toolgate.auth.authenticator import PUBLIC, Authenticator, Caller, digest_of_credential, may_be_stored
from toolgate.auth.failed_logins import FailedLogins
from toolgate.conversation.errors import (
    ClientRequestError,
    GatewayOverloaded,
    InternalGatewayError,
    NotFound,
    RateLimited,
    ToolgateError,
    Unauthenticated,
)
from toolgate.conversation.request_ids import RequestIdGenerator
from toolgate.http.asgi_types import Receive, Scope, Send
from toolgate.http.exchange import ClientLeft, Header, HttpExchange
from toolgate.http.origins import OriginPolicy
from toolgate.scheduling import CALLER
from toolgate.telemetry.request_log import RequestRecord, Telemetry

# Errors that last, but that some clients retry for minutes without a header against it.
_NOT_RETRYABLE = frozenset({"invalid_api_key", "too_many_wrong_keys", "upstream_auth"})

# Asked by what restarts a server that does not answer: served on the last connections, too.
_PROBES = frozenset(("/healthz", "/readyz"))

# Characters of a path up to which the path that was probably meant is looked for: the search takes longer with each.
_MISTYPED = 80

_VSCODE_CHAT = b"GitHubCopilotChat/"

# Caches keep what `Authorization` has requested to themselves, but do not know that `x-api-key` is a key, too.
_NO_STORE = (b"cache-control", b"no-store")

# Sent by an editor with its own requests.
EDITOR_HEADER = b"x-toolgate-editor"


class AdmittedHttpRequest(Struct, frozen=True):
    """An admitted request with its caller; `arguments` are the values of the path's placeholders.

    `headers` are the first of each lower-case name.
    """

    exchange: HttpExchange
    caller: Caller
    record: RequestRecord
    headers: Mapping[bytes, bytes]
    arguments: tuple[str, ...] = ()

    @property
    def body_size(self) -> int:
        """Bytes of the body that were received so far."""
        return self.exchange.received


class ErrorEncoder(Protocol):
    """Encodes errors for one dialect."""

    def encode_error(self, error: ToolgateError, request_id: str = "") -> bytes:
        """Return the body of an error response."""


Handler: TypeAlias = Callable[[AdmittedHttpRequest], Awaitable[None]]


class HttpRoute(Struct, frozen=True):
    """A handler of one method on one path; `{}` in the path is a placeholder, `scope` None needs no key.

    With `proves_itself`, a request without a key is let in as well, and its handler demands another proof.
    """

    method: str
    path: str
    handler: Handler
    errors: ErrorEncoder
    scope: str | None = "chat"
    proves_itself: bool = False


async def _find_no_keys() -> None:
    """Know all keys already."""


class Application:
    """Routes requests, authenticates callers, and turns every failure into an error response."""

    def __init__(
        self,
        endpoints: Sequence[HttpRoute],
        error_encoders: Mapping[str, ErrorEncoder],
        authenticator: Authenticator,
        origins: OriginPolicy,
        telemetry: Telemetry,
        active: ActiveRequests | None = None,
        find_new_keys: Callable[[], Awaitable[None]] = _find_no_keys,
    ) -> None:
        """`error_encoders` are found by the longest matching beginning of a path.

        `active` has the running requests, also those of an application that this one replaces. `find_new_keys` reads the
        keys that other processes have made; it is called when a request has a key that is not known.
        """
        self.endpoints = tuple(endpoints)
        self._exact = {(one.method, one.path): one for one in endpoints if "{}" not in one.path}
        self._patterns: list[tuple[re.Pattern[str], HttpRoute]] = []
        for one in endpoints:
            if "{}" in one.path:
                # A placeholder matches a segment, and at the end also slashes, which model names contain.
                escaped = re.escape(one.path).replace(r"\{\}", "([^/]+)")
                if one.path.endswith("{}"):
                    escaped = escaped.removesuffix("([^/]+)") + "(.+)"
                self._patterns.append((re.compile(escaped), one))
        self._paths = {one.path for one in endpoints}
        self._known_paths = sorted({path for _, path in self._exact})
        self._error_encoders = sorted(error_encoders.items(), key=lambda item: -len(item[0]))
        self._authenticator = authenticator
        self._origins = origins
        self._telemetry = telemetry
        self._active = active or ActiveRequests()
        self._active_by_id = self._active.by_id
        self._find_new_keys = find_new_keys
        self._failed_logins = FailedLogins()
        self._ids = RequestIdGenerator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        exchange = HttpExchange(scope, receive, send)
        now = time.time()
        record = RequestRecord(self._ids.new_id(now), exchange.method, exchange.path, now)
        request_id = record.request_id.encode()
        # The SDKs of OpenAI and Anthropic show the id of a failed request by these names.
        exchange.extra_headers += ((b"x-request-id", request_id), (b"request-id", request_id))
        try:
            await self._admit(exchange, record)
        except Unauthenticated as error:
            await self._send_error(exchange, record, self._count_failure(scope, exchange, error))
        except ToolgateError as error:
            await self._send_error(exchange, record, error)
        except ClientLeft:
            record.note_client_left()
        except asyncio.CancelledError:
            # Cancelled because the client has left (`cancel_when_client_leaves`), or by the server for another reason.
            if exchange.client_left:
                record.note_client_left()
            else:
                await self._send_error(exchange, record, record.end_error())
                if not exchange.response.complete:  # it was cut off, and the connection must be closed
                    raise
        except Exception as error:  # noqa: BLE001  # the HTTP edge: the client gets an error, the log the traceback
            self._telemetry.crashed(record, error)
            await self._send_error(
                exchange, record, InternalGatewayError("An internal error occurred; the server's log has it.")
            )
        finally:
            self._active_by_id.pop(record.request_id, None)
            record.bytes_in, record.bytes_out = exchange.received, exchange.sent
            self._telemetry.finish(record)

    def _admit(self, exchange: HttpExchange, record: RequestRecord) -> Awaitable[None]:
        """Check whether the request may be made, and return its handler's work."""
        if exchange.method == "OPTIONS":
            return exchange.respond(204, b"", self._origins.preflight(exchange.headers))
        method = "GET" if exchange.method == "HEAD" else exchange.method
        arguments: tuple[str, ...] = ()
        endpoint = self._exact.get((method, exchange.path))
        if endpoint is None:
            endpoint, arguments = self._find(method, exchange.path)
        record.endpoint = endpoint.path
        # Before the key is checked, so that a web page that may call this server can read that error, too.
        if origin_headers := self._origins.check(exchange.headers, exchange.named):
            exchange.extra_headers += origin_headers
        scope = endpoint.scope
        if endpoint.proves_itself and not digest_of_credential(exchange.headers):
            scope = None
        if scope and method == "GET":  # other methods are not cached
            exchange.extra_headers.append(_NO_STORE)
        try:
            caller = self._authenticator.authenticate(exchange.headers, exchange.named) if scope else PUBLIC
        except Unauthenticated:
            if not may_be_stored(exchange.headers):
                raise
            return self._admit_new_key(exchange, record, endpoint, arguments)
        return self._serve(exchange, record, endpoint, arguments, caller, scope)

    async def _admit_new_key(
        self, exchange: HttpExchange, record: RequestRecord, endpoint: HttpRoute, arguments: tuple[str, ...]
    ) -> None:
        """Serve a request whose key another process may have made a moment ago."""
        await self._find_new_keys()
        caller = self._authenticator.authenticate(exchange.headers)
        await self._serve(exchange, record, endpoint, arguments, caller, endpoint.scope)

    def _serve(
        self,
        exchange: HttpExchange,
        record: RequestRecord,
        endpoint: HttpRoute,
        arguments: tuple[str, ...],
        caller: Caller,
        scope: str | None,
    ) -> Awaitable[None]:
        """Check the rights of the caller, and return the work of the handler."""
        if scope:
            caller.require(scope)
            caller = with_rights(caller, exchange.named)
            if shared := exchange.shared_connections:
                self._active.check_share(caller, shared)
            self._active_by_id[record.request_id] = exchange, caller, scope, record
            exchange.response.admitted = True
        elif exchange.shared_connections and endpoint.path not in _PROBES:
            raise GatewayOverloaded(
                "Too many connections for requests without a key; try again shortly.", retry_after=1
            )
        record.caller = caller.name
        if CALLER.get() != caller.name:  # a connection's requests share a context, and most have one caller
            CALLER.set(caller.name)
        return endpoint.handler(AdmittedHttpRequest(exchange, caller, record, exchange.named, arguments))

    def _count_failure(self, scope: Scope, exchange: HttpExchange, error: Unauthenticated) -> ToolgateError:
        """Count a wrong key and return the error to send; many different ones are logged and refused."""
        wrong, address = digest_of_credential(exchange.headers), (scope.get("client") or ("",))[0]
        try:
            if wrong and self._failed_logins.add(address, wrong):
                self._telemetry.log.warning("many wrong keys", address=address)
        except RateLimited as too_many:
            return too_many
        return error

    def _find(self, method: str, path: str) -> tuple[HttpRoute, tuple[str, ...]]:
        """Return the endpoint of a path with placeholders, and their values; raise what is wrong with the path."""
        for pattern, candidate in self._patterns:
            if candidate.method == method and (found := pattern.fullmatch(path)):
                return candidate, found.groups()
        if path in self._paths or any(pattern.fullmatch(path) for pattern, _ in self._patterns):
            raise ClientRequestError(f"{path} does not take {method}.", status=405, code="method_not_allowed")
        near = get_close_matches(path, self._known_paths, 1, 0.8) if len(path) <= _MISTYPED else []
        hint = f" Did you mean {near[0]}?" if near else ""
        raise NotFound(f"There is no {path[:200]!r} here.{hint}", code="unknown_url")

    def error_encoder(self, path: str) -> ErrorEncoder:
        """Return the encoder of errors at a path; for what is no path, such as `*`, the one of `/`."""
        encoders = self._error_encoders
        return next((encoder for prefix, encoder in encoders if path.startswith(prefix)), encoders[-1][1])

    async def _send_error(self, exchange: HttpExchange, record: RequestRecord, error: ToolgateError) -> None:
        record.note_error(error)
        # A stream that has started ends with an error event of its dialect, which its handler sends.
        if exchange.started:
            return
        headers: list[Header] = []
        if error.retry_after is not None:
            headers.append((b"retry-after", b"%d" % max(1, round(error.retry_after))))
        if error.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if error.code in _NOT_RETRYABLE:
            headers.append((b"x-should-retry", b"false"))
        status = 400 if error.status >= 500 and loses_errors(exchange.named) else error.status
        await exchange.respond(
            status, self.error_encoder(exchange.path).encode_error(error, record.request_id), headers
        )


def loses_errors(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether the client shows its user no message with a status of 500 or more, nor in the middle of a stream.

    VS Code's chat shows "Server error: 502" and "Response contained no choices." instead.
    """
    return headers.get(b"user-agent", b"").startswith(_VSCODE_CHAT)


def with_rights(caller: Caller, headers: Mapping[bytes, bytes]) -> Caller:
    """Return the caller with the rights of a request with these headers.

    A web page without a key may use nothing that editors lend, and an editor gets nothing of that back.
    """
    if EDITOR_HEADER in headers or (b"origin" in headers and not caller.credential):
        return caller.without_editor()
    return caller
