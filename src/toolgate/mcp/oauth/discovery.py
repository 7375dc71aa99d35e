"""Find the authorization server of an MCP server (RFC 9728, RFC 8414). What the server names is checked, not trusted."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from toolgate.mcp.oauth.addresses import check_address, covers
from toolgate.mcp.oauth.fetch import OAuthFetcher, TokenUnavailable
from toolgate.mcp.protocol.line_reader import printable


class AuthorizationServer(Struct, frozen=True):
    """The metadata of an authorization server that we use; `resource` is the audience to request tokens for."""

    issuer: str
    token_endpoint: str
    resource: str
    authorization_endpoint: str | None = None
    registration_endpoint: str | None = None
    scopes: tuple[str, ...] = ()
    code_challenge_methods: tuple[str, ...] = ()
    auth_methods: tuple[str, ...] = ()
    names_issuer: bool = False


def challenge_parameter(header: str, name: str) -> str | None:
    """Return a parameter of a WWW-Authenticate header."""
    # Bearer resource_metadata="https://example.org/.well-known/oauth-protected-resource", scope="tools"
    found = re.search(rf'(?:^|[\s,]){name}\s*+=\s*+(?:"([^"]*+)"|([^\s,"]+))', header[:8192])
    return (found.group(1) or found.group(2)) if found else None


async def discover(fetch: OAuthFetcher, challenge: str) -> AuthorizationServer:
    """Find the authorization server of `fetch.server`; TokenUnavailable or UnsafeOAuthAddress if none can be used."""
    resource, issuer, scopes = await _protected_resource(fetch, challenge)
    check_address(issuer, fetch.server)
    requested = challenge_parameter(challenge, "scope")
    parts = urlsplit(issuer)
    root, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    oauth, openid = f"{root}/.well-known/oauth-authorization-server", f"{root}/.well-known/openid-configuration"
    # RFC 8414 puts the issuer's path behind the well-known one, OpenID Connect puts it in front.
    urls = [oauth + path, openid + path, f"{root}{path}/.well-known/openid-configuration"] if path else [oauth, openid]
    for url in urls:
        metadata = await fetch.get(url)
        if metadata.status == 200 and "token_endpoint" in metadata.fields:
            scopes = tuple(requested.split()) if requested else scopes
            return await _authorization_server(fetch, issuer, resource, scopes, metadata.fields)
    raise TokenUnavailable("its authorization server does not describe itself")


async def _protected_resource(fetch: OAuthFetcher, challenge: str) -> tuple[str, str, tuple[str, ...]]:
    """Return the resource, the issuer and the scopes that the server's metadata names."""
    parts = urlsplit(fetch.server)
    root, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    named = challenge_parameter(challenge, "resource_metadata")
    well_known = f"{root}/.well-known/oauth-protected-resource"
    for url in dict.fromkeys([*([named] if named else []), well_known + path, well_known]):
        metadata = await fetch.get(url)
        if metadata.status != 200 or not metadata.fields:
            continue
        resource, issuers = metadata.fields.get("resource"), _texts(metadata.fields.get("authorization_servers"))
        # Else a server could have us request tokens for another one, and use them there.
        if type(resource) is not str or not covers(resource, fetch.server):
            raise TokenUnavailable("describes itself as another server: its tokens would be for another server")
        if not issuers:
            raise TokenUnavailable("names no authorization server")
        return resource, issuers[0], _texts(metadata.fields.get("scopes_supported"))
    return root, root, ()  # servers older than RFC 9728 are their own authorization servers


async def _authorization_server(
    fetch: OAuthFetcher, issuer: str, resource: str, scopes: tuple[str, ...], fields: Mapping[str, Any]
) -> AuthorizationServer:
    # Metadata of another issuer would be a mix-up attack: a code of one server, sent to the endpoint of another.
    if str(fields.get("issuer")).rstrip("/") != issuer.rstrip("/"):
        raise TokenUnavailable(f"is guarded by {printable(issuer, 100)}, whose metadata names another issuer")
    server = AuthorizationServer(
        issuer=issuer,
        token_endpoint=str(fields["token_endpoint"]),
        resource=resource,
        authorization_endpoint=_text(fields.get("authorization_endpoint")),
        registration_endpoint=_text(fields.get("registration_endpoint")),
        scopes=scopes,
        code_challenge_methods=_texts(fields.get("code_challenge_methods_supported")),
        auth_methods=_texts(fields.get("token_endpoint_auth_methods_supported")),
        names_issuer=fields.get("authorization_response_iss_parameter_supported") is True,
    )
    for url in (server.token_endpoint, server.authorization_endpoint, server.registration_endpoint):
        if url is not None:
            await fetch.check(url)
    return server


def _text(value: Any) -> str | None:
    return value if type(value) is str and value else None


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(item for item in value[:100] if type(item) is str) if type(value) is list else ()
