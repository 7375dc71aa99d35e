"""An MCP server behind an address: streamable HTTP, one POST for each message, with a session or without.

A redirect is never followed, since our headers and tokens would go with it. Whoever asks sets the time limit.
"""

import asyncio
import re
from base64 import b64encode
from collections.abc import Coroutine, Mapping
from contextlib import aclosing, suppress
from typing import Any, NoReturn, cast
from urllib.parse import urlsplit

from toolgate.conversation.errors import ToolgateError, Unavailable
from toolgate.tools.sources.mcp.answers import STREAM, failure, media_type, messages
from toolgate.tools.sources.mcp.backoff import Backoff
from toolgate.tools.sources.mcp.line import (
    Broken,
    CheckUrl,
    Forgotten,
    Hear,
    Http,
    HttpAnswer,
    LoginNeeded,
    Lost,
    Refused,
    Trouble,
)
from toolgate.tools.sources.mcp.messages import INTERNAL_ERROR, Failure, Notice, Request, Success
from toolgate.tools.sources.mcp.oauth.bearer import Bearer
from toolgate.tools.sources.mcp.pieces import printable
from toolgate.tools.sources.mcp.servers import Remote
from toolgate.tools.sources.mcp.session import STATELESS
from toolgate.tools.tool import ToolFailure

_SESSION = "mcp-session-id"
_SESSION_ID = re.compile(r"[\x21-\x7e]{1,1024}")
_PLAIN = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_COURTESY_SECONDS = 2.0


class RemoteLine:
    """Requests to one address; several may be under way at once and none harms another."""

    def __init__(self, server: Remote, http: Http, bearer: Bearer | None, check_url: CheckUrl | None) -> None:
        self._server = server
        self._http = http
        self._bearer = bearer
        self._check_url = check_url
        self._version: str | None = None
        self._session: str | None = None
        self._courtesies: set[asyncio.Task[None]] = set()

    async def open(self, hear: Hear) -> None:
        """Nothing is sent before somebody asks."""
        self.lost: asyncio.Future[Lost] = asyncio.get_running_loop().create_future()
        self._hear = hear

    def agree(self, version: str | None) -> None:
        """Name this revision in every request from now on."""
        self._version = version

    async def ask(self, request: Request, headers: Mapping[str, str] = {}) -> Mapping[str, Any]:
        """The result, or Trouble; in the new era closing the connection is how a request is cancelled."""
        try:
            answer = await self._send("POST", request.encode(), {**self._routing(request), **headers}, request.method)
            try:
                return await self._result(answer, request)
            finally:
                await answer.aclose()
        except asyncio.CancelledError:
            if self._version not in (None, STATELESS):
                self._in_passing(self.say(Notice("notifications/cancelled", {"requestId": request.id}).encode()))
            raise
        except ToolgateError as error:
            raise Broken(f"gave no answer: {error.message}") from None

    async def say(self, message: bytes) -> None:
        """Post what wants no answer, and wait no longer than is polite."""
        with suppress(Trouble, ToolgateError, TimeoutError):
            async with asyncio.timeout(_COURTESY_SECONDS):
                answer = await self._send("POST", message, {}, "")
                await answer.aclose()

    async def attend(self) -> None:
        """Hold a stream open for what the server says unasked, where it offers one; open it again when it ends."""
        backoff = Backoff(asyncio.get_running_loop().time, first=1.0)
        while True:
            backoff.start()
            with suppress(Refused, ToolgateError):
                answer = await self._send("GET", b"", {}, "")
                try:
                    if answer.status != 200 or media_type(answer) != STREAM:
                        break
                    await self._overhear(answer)
                finally:
                    await answer.aclose()
            await asyncio.sleep(backoff.seconds())
            self._hear(Notice("notifications/tools/list_changed"))  # nobody told us while nobody listened
        await asyncio.Future()

    async def aclose(self) -> None:
        """End the session, if there is one and the server is there to hear it."""
        for courtesy in self._courtesies:
            courtesy.cancel()
        if self._courtesies:
            await asyncio.wait(self._courtesies)
        if self._session is not None and not self.lost.done():
            with suppress(Trouble, ToolgateError, TimeoutError):
                async with asyncio.timeout(_COURTESY_SECONDS):
                    answer = await self._send("DELETE", b"", {}, "")
                    await answer.aclose()
        if not self.lost.done():
            self.lost.set_result(Lost("was closed"))

    async def _send(self, method: str, body: bytes, headers: Mapping[str, str], purpose: str) -> HttpAnswer:
        """Send it, with a new token if the old one is refused; a call of a tool is not sent again even then."""
        answer = await self._send_now(method, body, headers, purpose)
        if answer.status not in (401, 403):
            return answer
        challenge = answer.headers.get("www-authenticate", "")
        await answer.aclose()
        if purpose == "tools/call":
            raise self._lose(Forgotten(f"refused our token (HTTP {answer.status})"))
        if self._bearer is not None and await self._bearer.renew(challenge):
            answer = await self._send_now(method, body, headers, purpose)
            if answer.status not in (401, 403):
                return answer
            await answer.aclose()
        raise self._lose(LoginNeeded(f"wants a login (HTTP {answer.status})"))

    async def _send_now(self, method: str, body: bytes, headers: Mapping[str, str], purpose: str) -> HttpAnswer:
        url = self._server.url
        try:
            if self._check_url is not None:
                await self._check_url(url)
            whole = await self._headers(method, headers)
            return await self._http.send(method, url, whole, body, once=purpose == "tools/call")
        except ToolFailure as refusal:  # the egress check speaks to models
            raise Refused(f"may not be asked: {refusal}", INTERNAL_ERROR) from None
        except Unavailable as error:
            raise self._lose(Lost(f"cannot be reached: {error.message}")) from None

    async def _headers(self, method: str, headers: Mapping[str, str]) -> dict[str, str]:
        whole = {name.lower(): value for name, value in self._server.headers.items()}
        whole["accept"] = STREAM if method == "GET" else f"application/json, {STREAM}"
        if method == "POST":
            whole["content-type"] = "application/json"
        if self._version is not None:
            whole["mcp-protocol-version"] = self._version
        if self._session is not None:
            whole[_SESSION] = self._session
        if "authorization" not in whole and self._bearer is not None and (token := await self._bearer.token()):
            whole["authorization"] = f"Bearer {token}"
        return {**whole, **headers}

    def _routing(self, request: Request) -> dict[str, str]:
        if self._version != STATELESS:
            return {}
        params = cast(Mapping[str, Any], request.params)
        name = params.get("name") if request.method == "tools/call" else None
        return {"mcp-method": request.method} | ({"mcp-name": header_value(name)} if name is not None else {})

    async def _result(self, answer: HttpAnswer, request: Request) -> Mapping[str, Any]:
        if not 200 <= answer.status < 300:
            await self._refuse(answer)
        if request.method == "initialize":
            self._keep_session(answer.headers.get(_SESSION))
        async with aclosing(messages(answer)) as said:
            async for message in said:
                match message:
                    case Success(id, result) if id == request.id and type(id) is int:
                        return result
                    case Failure(id, code, words, details) if id is None or (id == request.id and type(id) is int):
                        raise Refused(words, code, details)
                    case Request() | Notice():
                        self._hear(message)
        raise Broken("ended its answer before it had given one")

    async def _overhear(self, answer: HttpAnswer) -> None:
        async with aclosing(messages(answer)) as said:
            async for message in said:
                if isinstance(message, Request | Notice):
                    self._hear(message)

    async def _refuse(self, answer: HttpAnswer) -> NoReturn:
        said = await failure(answer)
        # The standard says 404 for a session that is gone; servers made from a well-known example say 400 in words.
        gone = answer.status == 404 or (answer.status == 400 and said is not None and "session" in said.message.lower())
        if gone and self._session is not None:
            raise self._lose(Forgotten("no longer knows our session"))
        if said is not None:
            raise Refused(said.message, said.code, said.details)
        if 300 <= answer.status < 400:
            raise Refused(_redirection(answer), INTERNAL_ERROR)
        raise Refused(f"answered HTTP {answer.status}", INTERNAL_ERROR)

    def _keep_session(self, id: str | None) -> None:
        if id is not None and not _SESSION_ID.fullmatch(id):
            raise Refused("gave a session id that no header can carry", INTERNAL_ERROR)
        self._session = id

    def _lose(self, loss: Lost) -> Lost:
        if not self.lost.done():
            self.lost.set_result(loss)
        return loss

    def _in_passing(self, courtesy: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(courtesy)
        self._courtesies.add(task)
        task.add_done_callback(self._courtesies.discard)


def header_value(value: Any) -> str:
    """A value as the standard writes it into a header: as it is where that is possible, otherwise in base64."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if _PLAIN.fullmatch(text) and not text.startswith("=?base64?"):
        return text
    return f"=?base64?{b64encode(text.encode('utf-8', 'replace')).decode()}?="


def _redirection(answer: HttpAnswer) -> str:
    try:
        host = urlsplit(answer.headers.get("location", "")).hostname or "itself"
    except ValueError:
        host = "nowhere"
    return f"answers with a redirect to {printable(host, 100)}, which is not followed: configure the final address"
