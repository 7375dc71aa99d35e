"""Get our client id at an authorization server: the configured one, or one from dynamic client registration."""

import re

from toolgate.mcp.oauth.discovery import AuthorizationServer
from toolgate.mcp.oauth.fetch import OAuthFetcher, TokenUnavailable
from toolgate.mcp.oauth.login_storage import OAuthClient, StoredLogin
from toolgate.mcp.protocol.line_reader import printable
from toolgate.mcp.protocol.server_config import OAuthConfig

_CLIENT_ID = re.compile(r"[\x20-\x7e]{1,1024}")


def check_issuer(oauth: OAuthConfig, issuer: str, login: StoredLogin | None) -> None:
    """Raise TokenUnavailable if our client belongs to another authorization server than the MCP server names.

    The issuer is configured, or else the one of the first login. A client that we registered has no secret to protect.
    """
    # Else an MCP server could name an authorization server of its own and so get the secret.
    first = login.client.issuer if login is not None and login.client.id == oauth.client_id else None
    expected = oauth.issuer or first
    if expected is None or (oauth.issuer is None and oauth.client_secret is None):
        return
    if issuer.rstrip("/") != expected.rstrip("/"):
        raise TokenUnavailable(
            f"names the authorization server {printable(issuer, 200)}, "
            f"and our client belongs to {printable(expected, 200)}: "
            "nothing was sent there; set oauth.issuer if that is meant"
        )


async def client_for(
    fetch: OAuthFetcher, authority: AuthorizationServer, oauth: OAuthConfig, redirect: str
) -> OAuthClient:
    """Return the configured client, or register one; TokenUnavailable if neither is possible."""
    if oauth.client_id is not None:
        return OAuthClient(authority.issuer, oauth.client_id, oauth.client_secret)
    if authority.registration_endpoint is None:
        raise TokenUnavailable(
            "wants a client id: set oauth.client_id, because clients cannot register at its authorization server"
        )
    response = await fetch.post(
        authority.registration_endpoint,
        {
            "client_name": "Toolgate",
            "redirect_uris": [redirect],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",  # a public client: PKCE proves who asked for the code
            "application_type": "native",
        },
    )
    id, secret = response.fields.get("client_id"), response.fields.get("client_secret")
    if response.status not in (200, 201) or type(id) is not str or not _CLIENT_ID.fullmatch(id):
        raise TokenUnavailable(
            f"could not register with its authorization server (HTTP {response.status}): set oauth.client_id"
        )
    return OAuthClient(authority.issuer, id, secret if type(secret) is str and secret else None)
