"""Small JSON from an authorization server. Every address is checked before it is asked; no redirect is followed."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from toolgate.conversation.errors import ToolgateError
from toolgate.tools.sources.mcp.line import CheckUrl, Http, HttpAnswer, Trouble
from toolgate.tools.sources.mcp.oauth.addresses import Unsafe, check_address
from toolgate.tools.tool import ToolFailure
from toolgate.wire.jsontext import encode

_SECONDS = 10.0
_LARGEST = 256 * 1024


class NotGranted(Trouble):
    """No token was to be had, and why."""


class Told(Struct, frozen=True):
    """An answer: its status and, where it is a JSON object, that."""

    status: int
    fields: Mapping[str, Any]


class Fetch:
    """Asks on behalf of one MCP server, which says whom to ask and is not trusted in that."""

    def __init__(self, http: Http, server: str, check_url: CheckUrl | None) -> None:
        self.server = server
        self._http = http
        self._check_url = check_url

    async def get(self, url: str) -> Told:
        """What stands at an address."""
        return await self._ask("GET", url, {}, b"")

    async def post(self, url: str, value: Mapping[str, Any]) -> Told:
        """The answer to a JSON object."""
        return await self._ask("POST", url, {"content-type": "application/json"}, encode(value))

    async def form(self, url: str, fields: Mapping[str, str], headers: Mapping[str, str]) -> Told:
        """The answer to a form."""
        kind = {"content-type": "application/x-www-form-urlencoded"}
        return await self._ask("POST", url, {**kind, **headers}, urlencode(fields).encode())

    async def check(self, url: str) -> None:
        """Raise Trouble unless the address may be asked, or shown to a person."""
        check_address(url, self.server)
        try:
            if self._check_url is not None:
                await self._check_url(url)
        except ToolFailure as refusal:  # the egress check speaks to models
            raise Unsafe(f"names an address that is not gone to: {refusal}") from None

    async def _ask(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Told:
        try:
            await self.check(url)
            async with asyncio.timeout(_SECONDS):
                answer = await self._http.send(
                    method, url, {"accept": "application/json", **headers}, body, once=method == "POST"
                )
                try:
                    return Told(answer.status, await _fields(answer))
                finally:
                    await answer.aclose()
        except TimeoutError:
            raise NotGranted(f"its authorization server did not answer within {_SECONDS:g} s") from None
        except (ToolgateError, ToolFailure) as error:
            raise NotGranted(f"its authorization server cannot be used: {error}") from None


async def _fields(answer: HttpAnswer) -> Mapping[str, Any]:
    pieces: list[bytes] = []
    size = 0
    async for piece in answer:
        size += len(piece)
        if size > _LARGEST:
            raise NotGranted("its authorization server answered with too much")
        pieces.append(piece)
    try:
        value = msgspec.json.decode(b"".join(pieces)) if pieces else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return value if type(value) is dict else {}
