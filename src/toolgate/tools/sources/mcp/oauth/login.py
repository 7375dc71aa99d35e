"""A person grants access to a remote MCP server in a browser: authorization code with PKCE."""

import asyncio
import hashlib
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import Protocol
from urllib.parse import urlencode, urlsplit

from toolgate.conversation.errors import ToolgateError
from toolgate.tools.sources.mcp.line import CheckUrl, Http
from toolgate.tools.sources.mcp.oauth.discovery import Authority, discover
from toolgate.tools.sources.mcp.oauth.fetch import Fetch, NotGranted
from toolgate.tools.sources.mcp.oauth.grants import ask_for_token
from toolgate.tools.sources.mcp.oauth.registration import check_issuer, introduce
from toolgate.tools.sources.mcp.oauth.tokens import Kept, Tokens
from toolgate.tools.sources.mcp.pieces import printable
from toolgate.tools.sources.mcp.servers import Remote
from toolgate.tools.tool import ToolFailure

_SECONDS = 10.0


class Redirect(Protocol):
    """Where the browser comes back to."""

    uri: str

    async def answer(self, state: str) -> Mapping[str, str]:
        """Wait for the browser that was given this state; what stands in the query of its address."""


async def login(
    name: str,
    server: Remote,
    http: Http,
    tokens: Tokens,
    *,
    open_browser: Callable[[str], object],
    redirect: Redirect,
    check_url: CheckUrl | None = None,
) -> None:
    """Get a token for a server and keep it; Trouble says why there is none.

    `open_browser` is given an address that was checked: plain http or https, no characters that a shell would heed
    beyond those of any query. It must not hand it to a shell all the same.
    """
    fetch = Fetch(http, server.url, check_url)
    authority = await discover(fetch, await _challenge(fetch, http, server))
    check_issuer(server.oauth, authority.issuer, await tokens.load(name))
    client = await introduce(fetch, authority, server.oauth, redirect.uri)
    verifier, state = secrets.token_urlsafe(64), secrets.token_urlsafe(32)
    asked = {
        "response_type": "code",
        "client_id": client.id,
        "redirect_uri": redirect.uri,
        "state": state,
        "code_challenge": urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("="),
        "code_challenge_method": "S256",
        "resource": authority.resource,
    }
    scope = server.oauth.scope or " ".join(authority.scopes)
    open_browser(_address(authority, asked | ({"scope": scope} if scope else {})))
    code = _code(await redirect.answer(state), state, authority)
    fields = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": redirect.uri,
        "code_verifier": verifier,
        "resource": authority.resource,
    }
    token = await ask_for_token(
        fetch, authority.token_endpoint, client, authority.auth_methods, fields, server.oauth.audience
    )
    kept = Kept(server.url, authority.resource, authority.token_endpoint, client, token, authority.auth_methods)
    await tokens.save(name, kept)


async def _challenge(fetch: Fetch, http: Http, server: Remote) -> str:
    """What the server says when it is asked without a token; our configured headers stay at home."""
    try:
        async with asyncio.timeout(_SECONDS):
            await fetch.check(server.url)
            answer = await http.send("GET", server.url, {"accept": "text/event-stream"}, b"", once=False)
            await answer.aclose()
    except TimeoutError:
        raise NotGranted(f"did not answer within {_SECONDS:g} s") from None
    except (ToolgateError, ToolFailure) as error:
        raise NotGranted(f"cannot be reached: {error}") from None
    return answer.headers.get("www-authenticate", "") if answer.status == 401 else ""


def _address(authority: Authority, fields: Mapping[str, str]) -> str:
    if authority.authorization_endpoint is None:
        raise NotGranted("is guarded by an authorization server that no person can log in to")
    if "S256" not in authority.challenges:
        raise NotGranted("is guarded by an authorization server without PKCE, which is not safe to log in to")
    joint = "&" if urlsplit(authority.authorization_endpoint).query else "?"
    return f"{authority.authorization_endpoint}{joint}{urlencode(fields)}"


def _code(answer: Mapping[str, str], state: str, authority: Authority) -> str:
    if not secrets.compare_digest(answer.get("state", "").encode(), state.encode()):
        raise NotGranted("got a browser's answer to another question: nothing was granted")
    issuer = answer.get("iss")
    if (issuer is not None and issuer != authority.issuer) or (issuer is None and authority.names_issuer):
        raise NotGranted("got an answer that is not of its authorization server: nothing was granted")
    if "code" not in answer:
        reason = answer.get("error_description") or answer.get("error") or "no reason was given"
        raise NotGranted(f"was not granted: {printable(reason, 200)}")
    return answer["code"]
