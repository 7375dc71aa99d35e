"""From a server's refusal to the authorization server that guards it (RFC 9728, RFC 8414). Asks, and trusts little."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from toolgate.tools.sources.mcp.oauth.addresses import check_address, same_place
from toolgate.tools.sources.mcp.oauth.fetch import Fetch, NotGranted
from toolgate.tools.sources.mcp.pieces import printable


class Authority(Struct, frozen=True):
    """An authorization server, as far as we need it; `resource` is who its tokens are to be made out to."""

    issuer: str
    token_endpoint: str
    resource: str
    authorization_endpoint: str | None = None
    registration_endpoint: str | None = None
    scopes: tuple[str, ...] = ()
    challenges: tuple[str, ...] = ()
    auth_methods: tuple[str, ...] = ()
    names_issuer: bool = False


def challenged(header: str, field: str) -> str | None:
    """A parameter of a WWW-Authenticate header."""
    found = re.search(rf'(?:^|[\s,]){field}\s*+=\s*+(?:"([^"]*+)"|([^\s,"]+))', header[:8192])
    return (found.group(1) or found.group(2)) if found else None


async def discover(fetch: Fetch, challenge: str) -> Authority:
    """The authorization server of `fetch.server`; NotGranted or Unsafe says why there is none that we would use."""
    resource, issuer, scopes = await _guarded_resource(fetch, challenge)
    check_address(issuer, fetch.server)
    asked = challenged(challenge, "scope")
    for url in _metadata_urls(issuer):
        told = await fetch.get(url)
        if told.status == 200 and "token_endpoint" in told.fields:
            return await _authority(fetch, issuer, resource, tuple(asked.split()) if asked else scopes, told.fields)
    raise NotGranted("its authorization server does not describe itself")


async def _guarded_resource(fetch: Fetch, challenge: str) -> tuple[str, str, tuple[str, ...]]:
    place = urlsplit(fetch.server)
    root = f"{place.scheme}://{place.netloc}"
    named = challenged(challenge, "resource_metadata")
    path = place.path.rstrip("/")
    well_known = f"{root}/.well-known/oauth-protected-resource"
    for url in dict.fromkeys([named, well_known + path, well_known] if named else [well_known + path, well_known]):
        told = await fetch.get(url)
        if told.status == 200 and told.fields:
            return _resource(fetch.server, told.fields)
    return root, root, ()  # servers older than RFC 9728 guard themselves


def _resource(server: str, fields: Mapping[str, Any]) -> tuple[str, str, tuple[str, ...]]:
    resource, issuers = fields.get("resource"), _texts(fields.get("authorization_servers"))
    if type(resource) is not str or not same_place(resource, server):
        raise NotGranted("describes itself as another server: its tokens would be made out to somebody else")
    if not issuers:
        raise NotGranted("names no authorization server")
    return resource, issuers[0], _texts(fields.get("scopes_supported"))


def _metadata_urls(issuer: str) -> list[str]:
    try:
        place = urlsplit(issuer)
    except ValueError:
        raise NotGranted(
            f"names an authorization server by an address that is none: {printable(issuer, 100)}"
        ) from None
    root, path = f"{place.scheme}://{place.netloc}", place.path.rstrip("/")
    oauth, openid = f"{root}/.well-known/oauth-authorization-server", f"{root}/.well-known/openid-configuration"
    return [oauth + path, openid + path, f"{root}{path}/.well-known/openid-configuration"] if path else [oauth, openid]


async def _authority(
    fetch: Fetch, issuer: str, resource: str, scopes: tuple[str, ...], fields: Mapping[str, Any]
) -> Authority:
    if str(fields.get("issuer")).rstrip("/") != issuer.rstrip("/"):
        raise NotGranted(f"is guarded by {printable(issuer, 100)}, which calls itself something else")
    authority = Authority(
        issuer=issuer,
        token_endpoint=str(fields["token_endpoint"]),
        resource=resource,
        authorization_endpoint=_text(fields.get("authorization_endpoint")),
        registration_endpoint=_text(fields.get("registration_endpoint")),
        scopes=scopes,
        challenges=_texts(fields.get("code_challenge_methods_supported")),
        auth_methods=_texts(fields.get("token_endpoint_auth_methods_supported")),
        names_issuer=fields.get("authorization_response_iss_parameter_supported") is True,
    )
    for url in (authority.token_endpoint, authority.authorization_endpoint, authority.registration_endpoint):
        if url is not None:
            await fetch.check(url)
    return authority


def _text(value: Any) -> str | None:
    return value if type(value) is str and value else None


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(item for item in value[:100] if type(item) is str) if type(value) is list else ()
