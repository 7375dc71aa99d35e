"""The token for the next request to a remote server: kept, renewed before it ends, asked for where no person is needed."""

import asyncio
import time

from msgspec.structs import replace

from toolgate.tools.sources.mcp.line import CheckUrl, Http, Trouble
from toolgate.tools.sources.mcp.oauth.discovery import discover
from toolgate.tools.sources.mcp.oauth.fetch import Fetch
from toolgate.tools.sources.mcp.oauth.grants import ask_for_token
from toolgate.tools.sources.mcp.oauth.registration import check_issuer
from toolgate.tools.sources.mcp.oauth.tokens import Client, Kept, Tokens
from toolgate.tools.sources.mcp.servers import Remote

_EARLY_SECONDS = 30.0


class Bearer:
    """Knows the token of one server; many requests may ask, one at a time renews it."""

    def __init__(self, name: str, server: Remote, http: Http, tokens: Tokens, check_url: CheckUrl | None) -> None:
        self.failure: str | None = None
        self._name = name
        self._server = server
        self._tokens = tokens
        self._fetch = Fetch(http, server.url, check_url)
        self._kept: Kept | None = None
        self._loaded = False
        self._turn = asyncio.Lock()

    async def token(self) -> str | None:
        """The token to send, renewed if it is about to end; None if there is none to be had without a person."""
        kept = await self._load()
        if kept is not None and kept.token.expires is not None and kept.token.expires < time.time() + _EARLY_SECONDS:
            await self._renewed(kept, "")
            kept = self._kept
        return None if kept is None else kept.token.access

    async def renew(self, challenge: str) -> bool:
        """Get another token after a refusal; false if that takes a person."""
        return await self._renewed(await self._load(), challenge)

    def forget(self) -> None:
        """Look again at what is kept when next asked: a person may have logged in meanwhile."""
        self._kept, self._loaded = None, False

    async def _renewed(self, old: Kept | None, challenge: str) -> bool:
        async with self._turn:
            if self._kept is not old:  # somebody else was faster
                return self._kept is not None
            try:
                self._kept = await self._another(old, challenge)
            except Trouble as reason:
                self.failure, self._kept = str(reason), None
                return False
            if self._kept is None:
                return False
            await self._tokens.save(self._name, self._kept)
            self.failure = None
            return True

    async def _another(self, old: Kept | None, challenge: str) -> Kept | None:
        wishes = self._server.oauth
        if wishes.grant == "client_credentials":
            return await self._for_a_machine(challenge)
        if old is None or old.token.refresh is None:
            return None
        check_issuer(wishes, old.client.issuer, old)
        fields = {"grant_type": "refresh_token", "refresh_token": old.token.refresh, "resource": old.resource}
        token = await ask_for_token(
            self._fetch, old.token_endpoint, old.client, old.auth_methods, fields, wishes.audience
        )
        return replace(old, token=replace(token, refresh=token.refresh or old.token.refresh))

    async def _for_a_machine(self, challenge: str) -> Kept | None:
        wishes = self._server.oauth
        if wishes.client_id is None or wishes.client_secret is None:
            self.failure = "wants oauth.client_id and oauth.client_secret for client_credentials"
            return None
        authority = await discover(self._fetch, challenge)
        check_issuer(wishes, authority.issuer, await self._tokens.load(self._name))
        client = Client(authority.issuer, wishes.client_id, wishes.client_secret)
        scope = wishes.scope or " ".join(authority.scopes)
        fields = {"grant_type": "client_credentials", "resource": authority.resource}
        token = await ask_for_token(
            self._fetch,
            authority.token_endpoint,
            client,
            authority.auth_methods,
            fields | ({"scope": scope} if scope else {}),
            wishes.audience,
        )
        return Kept(
            self._server.url, authority.resource, authority.token_endpoint, client, token, authority.auth_methods
        )

    async def _load(self) -> Kept | None:
        if not self._loaded:
            kept = await self._tokens.load(self._name)
            # A token is for one address: after the configuration has changed it is somebody else's.
            self._kept = kept if kept is not None and kept.server == self._server.url else None
            self._loaded = True
        return self._kept
