"""Who we are to an authorization server: what the configuration says, or what it tells us when we introduce ourselves."""

from toolgate.tools.sources.mcp.oauth.discovery import Authority
from toolgate.tools.sources.mcp.oauth.fetch import Fetch, NotGranted
from toolgate.tools.sources.mcp.oauth.tokens import Client
from toolgate.tools.sources.mcp.servers import OAuth


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
