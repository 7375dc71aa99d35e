"""Request tokens, and check them before they are used. Stores nothing."""

import time
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from toolgate.conversation.errors import ToolgateError
from toolgate.mcp.oauth.addresses import covers
from toolgate.mcp.oauth.fetch import OAuthFetcher, OAuthResponse, TokenUnavailable
from toolgate.mcp.oauth.login_storage import AccessToken, OAuthClient
from toolgate.mcp.protocol.line_reader import printable
from toolgate.wire.jsontext import decode_event

_MAX_TOKEN_CHARS = 16 * 1024


async def request_token(
    fetch: OAuthFetcher,
    endpoint: str,
    client: OAuthClient,
    methods: Sequence[str],
    fields: Mapping[str, str],
    audience: str | None = None,
) -> AccessToken:
    """Post the fields of a grant and return the token; TokenUnavailable if there is none that we may use."""
    credentials: dict[str, str] = {}
    headers: dict[str, str] = {}
    if client.secret is None:
        credentials = {"client_id": client.id}
    elif "client_secret_post" in methods and "client_secret_basic" not in methods:
        credentials = {"client_id": client.id, "client_secret": client.secret}
    else:  # what servers that name no method understand
        # RFC 6749 2.3.1 demands the encoding of forms before base64.
        pair = f"{quote(client.id, safe='')}:{quote(client.secret, safe='')}"
        headers = {"authorization": f"Basic {b64encode(pair.encode()).decode()}"}
    token = _decode_token(await fetch.post_form(endpoint, {**fields, **credentials}, headers))
    # A token for another audience must not be sent to the server, which could use it there.
    audiences = _audiences(token.access)
    if audiences and not any(one in (fields["resource"], audience) or covers(one, fetch.server) for one in audiences):
        raise TokenUnavailable(f"got a token for another audience: {printable(', '.join(audiences), 200)}")
    return token


def _decode_token(response: OAuthResponse) -> AccessToken:
    fields = response.fields
    access = fields.get("access_token")
    if response.status != 200 or type(access) is not str:
        reason = fields.get("error_description") or fields.get("error") or f"HTTP {response.status}"
        raise TokenUnavailable(f"its authorization server gave no token: {printable(str(reason), 200)}")
    fits_header = (
        0 < len(access) <= _MAX_TOKEN_CHARS and access.isascii() and access.isprintable() and " " not in access
    )
    if str(fields.get("token_type", "bearer")).lower() != "bearer" or not fits_header:
        raise TokenUnavailable("its authorization server gave a token that cannot be sent")
    seconds, refresh, scope = fields.get("expires_in"), fields.get("refresh_token"), fields.get("scope")
    return AccessToken(
        access,
        time.time() + seconds if isinstance(seconds, int | float) and 0 < seconds < 1e10 else None,
        refresh if type(refresh) is str else None,
        scope if type(scope) is str else None,
    )


def _audiences(token: str) -> list[str]:
    """Return the audiences of a token that is a JWT. The signature is not checked: a wrong audience gains nothing."""
    parts = token.split(".")
    if len(parts) != 3:
        return []
    try:
        claims: Any = decode_event(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, ToolgateError):
        return []
    found = claims.get("aud") if type(claims) is dict else None
    return [name for name in (found if type(found) is list else [found]) if type(name) is str]
