"""Fetch small JSON from an authorization server. Every URL is checked before it is opened; redirects are not followed."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from toolgate.conversation.errors import InvalidRequest, ToolgateError
from toolgate.mcp.oauth.addresses import UnsafeOAuthAddress, check_address
from toolgate.mcp.protocol.transport import CheckUrl, HttpRequestSender, McpError, McpHttpResponse
from toolgate.tools.tool import ToolCallFailed
from toolgate.wire.jsontext import check_depth, encode

_SECONDS = 10.0
_MAX_BYTES = 256 * 1024


class TokenUnavailable(McpError):
    """No token could be got; the message is the reason."""


class OAuthResponse(Struct, frozen=True):
    """A response: its status and its JSON object, empty if the body is none."""

    status: int
    fields: Mapping[str, Any]


class OAuthFetcher:
    """Sends requests to the URLs that one MCP server names, which is not trusted to name them."""

    def __init__(self, http: HttpRequestSender, server: str, check_url: CheckUrl | None) -> None:
        self.server = server
        self._http = http
        self._check_url = check_url

    async def get(self, url: str) -> OAuthResponse:
        """Send a GET request."""
        return await self._send("GET", url, {}, b"")

    async def post(self, url: str, value: Mapping[str, Any]) -> OAuthResponse:
        """Post a JSON object."""
        return await self._send("POST", url, {"content-type": "application/json"}, encode(value))

    async def post_form(self, url: str, fields: Mapping[str, str], headers: Mapping[str, str]) -> OAuthResponse:
        """Post a form."""
        kind = {"content-type": "application/x-www-form-urlencoded"}
        return await self._send("POST", url, {**kind, **headers}, urlencode(fields).encode())

    async def check(self, url: str) -> None:
        """Raise UnsafeOAuthAddress unless the URL may be opened, or shown to a person."""
        check_address(url, self.server)
        try:
            if self._check_url is not None:
                await self._check_url(url)
        except ToolCallFailed as refusal:  # the egress check, whose messages are written for models
            raise UnsafeOAuthAddress(f"names an address that may not be opened: {refusal}") from None

    async def _send(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> OAuthResponse:
        headers = {"accept": "application/json", **headers}
        try:
            async with asyncio.timeout(_SECONDS):
                await self.check(url)  # which looks up the host
                # A code or a refresh token may be accepted once, so that a POST is not repeated.
                response = await self._http.send(method, url, headers, body, once=method == "POST")
                try:
                    return OAuthResponse(response.status, await _read_object(response))
                finally:
                    await response.aclose()
        except TimeoutError:
            raise TokenUnavailable(f"its authorization server did not answer within {_SECONDS:g} s") from None
        except (ToolgateError, ToolCallFailed) as error:
            raise TokenUnavailable(f"its authorization server cannot be used: {error}") from None


async def _read_object(response: McpHttpResponse) -> Mapping[str, Any]:
    pieces: list[bytes] = []
    size = 0
    async for piece in response:
        size += len(piece)
        if size > _MAX_BYTES:
            raise TokenUnavailable("its authorization server answered with too much")
        pieces.append(piece)
    body = b"".join(pieces)
    try:
        check_depth(body)
        value = msgspec.json.decode(body) if body else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InvalidRequest):
        return {}  # an HTML page, say: callers look at the status first
    return value if type(value) is dict else {}
