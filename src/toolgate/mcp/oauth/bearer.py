"""Keep the token for requests to one remote server: loaded, renewed before it expires, requested for a machine."""

import asyncio
import time

from msgspec.structs import replace

from toolgate.mcp.oauth.discovery import discover
from toolgate.mcp.oauth.fetch import OAuthFetcher
from toolgate.mcp.oauth.grants import request_token
from toolgate.mcp.oauth.login_storage import LoginStoreProtocol, OAuthClient, StoredLogin
from toolgate.mcp.oauth.registration import check_issuer
from toolgate.mcp.protocol.server_config import RemoteServerConfig
from toolgate.mcp.protocol.transport import CheckUrl, HttpRequestSender, McpError

# A token must not expire on its way, nor by clocks that differ a little.
_EARLY_SECONDS = 30.0


class BearerTokenRefresher:
    """The token of one server, used by many requests and renewed by one at a time.

    `failure` is why the last renewal failed.
    A token that cannot be stored, on a disk that is full or read-only, is used until this process ends.
    """

    def __init__(
        self,
        name: str,
        server: RemoteServerConfig,
        http: HttpRequestSender,
        logins: LoginStoreProtocol,
        check_url: CheckUrl | None,
    ) -> None:
        self.failure: str | None = None
        self._name = name
        self._server = server
        self._logins = logins
        self._fetch = OAuthFetcher(http, server.url, check_url)
        self._login: StoredLogin | None = None
        self._loaded = False
        # What is stored, and the login that should have replaced it.
        self._unsaved: tuple[StoredLogin | None, StoredLogin] | None = None
        self._renewal: asyncio.Task[bool] | None = None

    async def token(self) -> str | None:
        """Return the token, renewed if it is about to expire; None if only a person could get one."""
        login = await self._cached()
        if login is not None and login.token.expires is not None and login.token.expires < time.time() + _EARLY_SECONDS:
            await self._start_renewal(login, "")
            login = self._login
        return None if login is None else login.token.access

    async def renew(self, challenge: str) -> bool:
        """Get another token after the server refused ours; False if only a person could get one."""
        return await self._start_renewal(await self._cached(), challenge)

    def forget(self) -> None:
        """Load the login again at the next request: a person may have logged in meanwhile."""
        self._login, self._loaded = None, False

    async def aclose(self) -> None:
        """Wait for a renewal that uses a refresh token, which is limited in time; cancel any other."""
        if self._renewal is None:
            return
        if self._server.oauth.grant == "client_credentials":  # good for another token at any time
            self._renewal.cancel()
        await asyncio.wait({self._renewal})

    async def _start_renewal(self, old: StoredLogin | None, challenge: str) -> bool:
        # A renewal is finished even if the request that started it is cancelled: the authorization server may have
        # revoked the former refresh token by then, and the new one would be lost. Requests share the one that is under
        # way: behind an authorization server that is slow, more would wait with every attempt to connect.
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.ensure_future(self._renew(old, challenge))
            self._renewal.add_done_callback(self._on_renewed)
        return await asyncio.shield(self._renewal)

    def _on_renewed(self, renewal: asyncio.Task[bool]) -> None:
        if not renewal.cancelled() and (error := renewal.exception()) is not None:
            self.failure = f"could not keep its token: {error}"

    async def _renew(self, old: StoredLogin | None, challenge: str) -> bool:
        # Many authorization servers accept a refresh token once, and other processes have it, too.
        async with self._logins.renewing(self._name):
            if self._loaded and self._login != old:  # another request was faster
                return self._login is not None
            stored = await self._stored()
            if stored is not None and (old is None or stored.token.access != old.token.access):
                self._login, self.failure = stored, None  # another process was faster, or a person has logged in
                return True
            try:
                self._login = await self._request(old, challenge)
            except McpError as reason:
                self.failure, self._login = str(reason), None
                return False
            if self._login is None:
                return False
            self.failure = None
            try:
                await self._logins.save(self._name, self._login)
                self._unsaved = None
            except OSError:
                self._unsaved = await self._logins.load(self._name), self._login
            return True

    async def _request(self, old: StoredLogin | None, challenge: str) -> StoredLogin | None:
        """Request a token with the client's credentials or the old refresh token; None if there is neither."""
        oauth = self._server.oauth
        if oauth.grant != "client_credentials":
            if old is None or old.token.refresh is None:
                return None
            check_issuer(oauth, old.client.issuer, old)
            fields = {"grant_type": "refresh_token", "refresh_token": old.token.refresh, "resource": old.resource}
            endpoint, methods = old.token_endpoint, old.auth_methods
            token = await request_token(self._fetch, endpoint, old.client, methods, fields, oauth.audience)
            # A server that does not replace the refresh token leaves it out of its response.
            return replace(old, token=replace(token, refresh=token.refresh or old.token.refresh))
        if oauth.client_id is None or oauth.client_secret is None:
            self.failure = "wants oauth.client_id and oauth.client_secret for client_credentials"
            return None
        authority = await discover(self._fetch, challenge)
        # Also a login for a former URL of the server binds our secret to its authorization server.
        check_issuer(oauth, authority.issuer, await self._latest())
        client = OAuthClient(authority.issuer, oauth.client_id, oauth.client_secret)
        scope = oauth.scope or " ".join(authority.scopes)
        fields = {"grant_type": "client_credentials", "resource": authority.resource}
        fields |= {"scope": scope} if scope else {}
        endpoint, methods = authority.token_endpoint, authority.auth_methods
        token = await request_token(self._fetch, endpoint, client, methods, fields, oauth.audience)
        return StoredLogin(self._server.url, authority.resource, endpoint, client, token, methods)

    async def _cached(self) -> StoredLogin | None:
        if not self._loaded:
            self._login = await self._stored()
            self._loaded = True
        return self._login

    async def _stored(self) -> StoredLogin | None:
        """Load the latest login; one for another URL is ignored, as the configuration has changed since."""
        login = await self._latest()
        return login if login is not None and login.server == self._server.url else None

    async def _latest(self) -> StoredLogin | None:
        """Return the stored login, or the one that could not be stored in its place."""
        login = await self._logins.load(self._name)
        return self._unsaved[1] if self._unsaved is not None and self._unsaved[0] == login else login
