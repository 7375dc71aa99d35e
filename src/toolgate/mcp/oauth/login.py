"""Log in to a remote MCP server in a browser: authorization code grant with PKCE."""

import asyncio
import hashlib
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import Protocol
from urllib.parse import urlencode, urlsplit

from toolgate.conversation.errors import ToolgateError
from toolgate.mcp.oauth.discovery import AuthorizationServer, discover
from toolgate.mcp.oauth.fetch import OAuthFetcher, TokenUnavailable
from toolgate.mcp.oauth.grants import request_token
from toolgate.mcp.oauth.login_storage import LoginStoreProtocol, StoredLogin
from toolgate.mcp.oauth.registration import check_issuer, client_for
from toolgate.mcp.protocol.line_reader import printable
from toolgate.mcp.protocol.server_config import RemoteServerConfig
from toolgate.mcp.protocol.transport import CheckUrl, HttpRequestSender
from toolgate.tools.tool import ToolCallFailed

_SECONDS = 10.0
# What browsers and servers accept in an address.
_MAX_URL_CHARS = 8 * 1024


class RedirectListener(Protocol):
    """The page to which the browser returns."""

    uri: str

    async def wait(self, state: str) -> Mapping[str, str]:
        """Wait for the browser with this state and return the query of its request."""


async def login(
    name: str,
    server: RemoteServerConfig,
    http: HttpRequestSender,
    logins: LoginStoreProtocol,
    *,
    open_browser: Callable[[str], object],
    redirect: RedirectListener,
    check_url: CheckUrl | None = None,
) -> None:
    """Get a token for a server and store it, or raise McpError.

    `open_browser` gets a checked URL: http or https, without characters that are special in a shell beyond those of any
    query. It must not pass it to a shell all the same.
    """
    fetch = OAuthFetcher(http, server.url, check_url)
    authority = await discover(fetch, await _challenge(fetch, http, server))
    check_issuer(server.oauth, authority.issuer, await logins.load(name))
    client = await client_for(fetch, authority, server.oauth, redirect.uri)
    verifier, state = secrets.token_urlsafe(64), secrets.token_urlsafe(32)
    query = {
        "response_type": "code",
        "client_id": client.id,
        "redirect_uri": redirect.uri,
        "state": state,
        "code_challenge": urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("="),
        "code_challenge_method": "S256",
        "resource": authority.resource,
    }
    scope = server.oauth.scope or " ".join(authority.scopes)
    open_browser(_authorization_url(authority, query | ({"scope": scope} if scope else {})))
    code = _code(await redirect.wait(state), state, authority)
    fields = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": redirect.uri,
        "code_verifier": verifier,
        "resource": authority.resource,
    }
    endpoint, methods = authority.token_endpoint, authority.auth_methods
    token = await request_token(fetch, endpoint, client, methods, fields, server.oauth.audience)
    try:
        await logins.save(name, StoredLogin(server.url, authority.resource, endpoint, client, token, methods))
    except OSError as error:
        raise TokenUnavailable(f"has granted access, and the login cannot be stored: {error.strerror}") from None


async def _challenge(fetch: OAuthFetcher, http: HttpRequestSender, server: RemoteServerConfig) -> str:
    """Return the challenge of a request without a token and without the configured headers."""
    try:
        async with asyncio.timeout(_SECONDS):
            await fetch.check(server.url)
            response = await http.send("GET", server.url, {"accept": "text/event-stream"}, b"", once=False)
            await response.aclose()
    except TimeoutError:
        raise TokenUnavailable(f"did not answer within {_SECONDS:g} s") from None
    except (ToolgateError, ToolCallFailed) as error:
        raise TokenUnavailable(f"cannot be reached: {error}") from None
    return response.headers.get("www-authenticate", "") if response.status == 401 else ""


def _authorization_url(authority: AuthorizationServer, fields: Mapping[str, str]) -> str:
    if authority.authorization_endpoint is None:
        raise TokenUnavailable("is guarded by an authorization server that no person can log in to")
    if "S256" not in authority.code_challenge_methods:
        raise TokenUnavailable("is guarded by an authorization server without PKCE, which is not safe to log in to")
    separator = "&" if urlsplit(authority.authorization_endpoint).query else "?"
    url = f"{authority.authorization_endpoint}{separator}{urlencode(fields)}"
    if len(url) > _MAX_URL_CHARS:
        raise TokenUnavailable(
            f"names scopes for which the address of the login has more than {_MAX_URL_CHARS} characters"
        )
    return url


def _code(query: Mapping[str, str], state: str, authority: AuthorizationServer) -> str:
    # Else a page could log us in with an account of its own choice (CSRF).
    if not secrets.compare_digest(query.get("state", "").encode(), state.encode()):
        raise TokenUnavailable("got a browser's response to another login: nothing was granted")
    # RFC 9207: a code of another authorization server must not be sent to this one's token endpoint.
    issuer = query.get("iss")
    if (issuer is not None and issuer != authority.issuer) or (issuer is None and authority.names_issuer):
        raise TokenUnavailable("got a response that is not of its authorization server: nothing was granted")
    if "code" not in query:
        reason = query.get("error_description") or query.get("error") or "no reason was given"
        raise TokenUnavailable(f"was not granted: {printable(reason, 200)}")
    return query["code"]
