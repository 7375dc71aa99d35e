"""Tokens: asked for in one of three ways, and looked at before they are used. Keeps nothing."""

import time
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from toolgate.conversation.errors import ToolgateError
from toolgate.tools.sources.mcp.oauth.addresses import same_place
from toolgate.tools.sources.mcp.oauth.fetch import Fetch, NotGranted, Told
from toolgate.tools.sources.mcp.oauth.tokens import Client, Token
from toolgate.tools.sources.mcp.pieces import printable
from toolgate.wire.jsontext import decode_event

_LONGEST = 16 * 1024


async def ask_for_token(
    fetch: Fetch,
    endpoint: str,
    client: Client,
    methods: Sequence[str],
    fields: Mapping[str, str],
    audience: str | None = None,
) -> Token:
    """The token that these fields of a grant give; NotGranted says why there is none that we would use."""
    proof, headers = _authentication(client, methods)
    told = await fetch.form(endpoint, {**fields, **proof}, headers)
    token = _token(told)
    _check_audience(token.access, fields["resource"], audience, fetch.server)
    return token


def _authentication(client: Client, methods: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """How we prove who we are: fields of the form, and headers; Basic is what servers understand that name no method."""
    if client.secret is None:
        return {"client_id": client.id}, {}
    if "client_secret_post" in methods and "client_secret_basic" not in methods:
        return {"client_id": client.id, "client_secret": client.secret}, {}
    pair = f"{quote(client.id, safe='')}:{quote(client.secret, safe='')}"
    return {}, {"authorization": f"Basic {b64encode(pair.encode()).decode()}"}


def _token(told: Told) -> Token:
    fields = told.fields
    access = fields.get("access_token")
    if told.status != 200 or type(access) is not str:
        reason = fields.get("error_description") or fields.get("error") or f"HTTP {told.status}"
        raise NotGranted(f"its authorization server gave no token: {printable(str(reason), 200)}")
    if str(fields.get("token_type", "bearer")).lower() != "bearer" or not _sendable(access):
        raise NotGranted("its authorization server gave a token that cannot be sent")
    seconds, refresh, scope = fields.get("expires_in"), fields.get("refresh_token"), fields.get("scope")
    return Token(
        access,
        time.time() + seconds if isinstance(seconds, int | float) and 0 < seconds < 1e10 else None,
        refresh if type(refresh) is str else None,
        scope if type(scope) is str else None,
    )


def _sendable(token: str) -> bool:
    return 0 < len(token) <= _LONGEST and token.isascii() and token.isprintable() and " " not in token


def _check_audience(token: str, resource: str, audience: str | None, server: str) -> None:
    """A token that says it is for somebody else must not be sent to the server, which could use it there."""
    named = _audiences(token)
    wanted = (resource, *([audience] if audience else ()))
    if named and not any(name in wanted or same_place(name, server) for name in named):
        raise NotGranted(f"got a token that is made out to somebody else: {printable(', '.join(named), 200)}")


def _audiences(token: str) -> list[str]:
    """Whom a token names, if it is one that can be read; what it says is not proven, but it has no reason to lie."""
    parts = token.split(".")
    if len(parts) != 3:
        return []
    try:
        claims: Any = decode_event(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, ToolgateError):
        return []
    found = claims.get("aud") if type(claims) is dict else None
    return [name for name in (found if type(found) is list else [found]) if type(name) is str]
