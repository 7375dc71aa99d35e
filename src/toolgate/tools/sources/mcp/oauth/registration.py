"""Who we are to an authorization server: what the configuration says, or what it tells us when we introduce ourselves."""

from toolgate.tools.sources.mcp.oauth.discovery import Authority
from toolgate.tools.sources.mcp.oauth.fetch import Fetch, NotGranted
from toolgate.tools.sources.mcp.oauth.tokens import Client, Kept
from toolgate.tools.sources.mcp.pieces import printable
from toolgate.tools.sources.mcp.servers import OAuth


def check_issuer(wishes: OAuth, issuer: str, kept: Kept | None) -> None:
    """NotGranted if our client is known to another authorization server: the MCP server chooses whom it names.

    The issuer is configured, or else the one of the first login. Where we register ourselves there is nothing to protect.
    """
    pinned = kept.client.issuer if kept is not None and kept.client.id == wishes.client_id else None
    expected = wishes.issuer or pinned
    if expected is None or (wishes.issuer is None and wishes.client_secret is None):
        return
    if issuer.rstrip("/") != expected.rstrip("/"):
        raise NotGranted(
            f"names the authorization server {printable(issuer, 200)}, "
            f"and our client belongs to {printable(expected, 200)}: "
            "nothing was sent there; set oauth.issuer if that is meant"
        )


async def introduce(fetch: Fetch, authority: Authority, wishes: OAuth, redirect: str) -> Client:
    """Our identity with this authorization server; NotGranted if it wants one and gives none."""
    if wishes.client_id is not None:
        return Client(authority.issuer, wishes.client_id, wishes.client_secret)
    if authority.registration_endpoint is None:
        raise NotGranted("wants a client id: set oauth.client_id, for its authorization server registers nobody")
    told = await fetch.post(
        authority.registration_endpoint,
        {
            "client_name": "Toolgate",
            "redirect_uris": [redirect],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
            "application_type": "native",
        },
    )
    id, secret = told.fields.get("client_id"), told.fields.get("client_secret")
    if told.status not in (200, 201) or type(id) is not str:
        raise NotGranted(f"could not register with its authorization server (HTTP {told.status}): set oauth.client_id")
    return Client(authority.issuer, id, secret if type(secret) is str and secret else None)
