"""Serve keys at /v1/keys to administrators: create, list, change, rotate and revoke them.

A key is returned once, when it is created; its digest is stored. Keys of the configuration are listed here and changed
there. A name stays taken when its key is revoked, so that its records never pass to a new key of the same name.
"""

import math
import re
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict, replace

from toolgate.auth.authenticator import ANONYMOUS
from toolgate.auth.key_registry import KeyRegistry, to_settings
from toolgate.auth.key_update_request import KeyRights, KeyRightsReplacement, read_change, reject_unknown
from toolgate.auth.stored_key_cache import is_former_valid, is_valid
from toolgate.config import Config, KeySettings, Secret
from toolgate.conversation.errors import Conflict, InvalidRequest, NotFound
from toolgate.conversation.random_ids import random_suffix
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.http.application import AdmittedHttpRequest, HttpRoute
from toolgate.http.exchange import Header
from toolgate.limits import Budgets
from toolgate.storage.keys import StoredKey
from toolgate.telemetry.log_writer import Logger
from toolgate.wire.fields import Fields
from toolgate.wire.jsontext import encode

PREFIX = "tg-"
ENTROPY = 32  # random bytes of a key

# Keys that a database may hold, the revoked ones included: every process has all of them in memory.
MOST = 20_000

# Seconds for which the former secret of a rotated key may stay valid.
LONGEST_GRACE = 7 * 86400

_ID = "key_"
_NAME = re.compile(r"[\w.@-]{1,64}", re.ASCII)
# Names of callers that have no key: those that the server admits without one, and the MCP client on stdio.
_RESERVED = frozenset((ANONYMOUS.name, "stdio"))
_NO_SECRET = Secret("")
_NO_STORE: tuple[Header, ...] = ((b"cache-control", b"no-store"),)


class KeyEndpoints:
    """The endpoints over the keys of one configuration and the database."""

    def __init__(self, config: Config, keys: KeyRegistry, budgets: Budgets, log: Logger) -> None:
        self._configured = config.keys
        self._models: Collection[str] = config.by_name().keys()
        self._stored_keys = keys.stored
        self._active_requests = keys.active_requests
        self._budgets = budgets
        self._log = log

    def endpoints(self) -> Sequence[HttpRoute]:
        """Return the endpoints."""
        errors = OPENAI_CHAT.server
        return [
            HttpRoute("GET", "/v1/keys", self.list, errors, scope="admin"),
            HttpRoute("POST", "/v1/keys", self.create, errors, scope="admin"),
            HttpRoute("POST", "/v1/keys/{}/rotate", self.rotate, errors, scope="admin"),
            HttpRoute("GET", "/v1/keys/{}", self.show, errors, scope="admin"),
            HttpRoute("POST", "/v1/keys/{}", self.change, errors, scope="admin"),
            HttpRoute("DELETE", "/v1/keys/{}", self.revoke, errors, scope="admin"),
        ]

    async def list(self, call: AdmittedHttpRequest) -> None:
        """List the keys: what they may do, their limits and, of limited ones, what they have spent."""
        await self._refresh(call)
        await self._budgets.refresh()
        data = [self._key_object(key) for key in self._configured]
        data += [self._stored_key_object(key) for key in self._stored_keys.all.values()]
        await call.exchange.respond(200, encode({"object": "list", "data": data}))

    async def show(self, call: AdmittedHttpRequest) -> None:
        """Return one key, by id or name."""
        await self._refresh(call)
        name = call.arguments[0]
        configured = next((key for key in self._configured if key.name == name), None)
        await self._budgets.refresh()
        body = self._key_object(configured) if configured else self._stored_key_object(self._find(name))
        await call.exchange.respond(200, encode(body))

    async def create(self, call: AdmittedHttpRequest) -> None:
        """Create a key, which is returned in this response and never again."""
        fields, now = Fields(await call.exchange.json()), time.time()
        if not any("admin" in key.scopes for key in self._configured):
            raise Conflict(
                "Keys can be made once the configuration holds one with the scope admin: "
                "without one, keys could not be managed. "
                "`toolgate keys new NAME --scopes chat,tools,admin` makes it.",
                code="no_admin_key",
            )
        name = fields.required_text("name")
        # A name that looks like an id could be taken for another key in the path.
        if not _NAME.fullmatch(name) or name.startswith(_ID) or name in _RESERVED:
            raise InvalidRequest(
                f"name may hold letters, digits and . _ @ - only, 64 at most, and not begin with {_ID}.", param="name"
            )
        if any(key.name == name for key in self._configured):
            raise _taken(name)
        if len(self._stored_keys.all) >= MOST:
            raise Conflict(f"There are {MOST} keys already.", code="too_many_keys")
        change = read_change(fields, KeyRights(), self._models, now)
        secret, digest, shown = new_secret()
        stored = StoredKey(_ID + random_suffix(), name, "", digest, shown, _encode_rights(change.rights), int(now))
        with self._active_requests.sparing(call.record.request_id):
            if not await self._stored_keys.store.create(_changed(stored, change)):
                raise _taken(name)
            await self._apply(call, stored.id, "key created", secret)

    async def change(self, call: AdmittedHttpRequest) -> None:
        """Change what a key may do; fields that the body does not name stay."""
        stored, now = await self._stored(call), time.time()
        body = await call.exchange.json()

        def edit(key: StoredKey) -> StoredKey:
            key = _unrevoked(key)
            try:
                rights = msgspec.json.decode(key.rights, type=KeyRights)
            except (msgspec.DecodeError, RecursionError):
                raise Conflict(
                    f"The rights of {key.name!r} were written by another version.", code="key_unreadable"
                ) from None
            return _changed(key, read_change(Fields(body), rights, self._models, now))

        edit(stored)  # refuses a wrong body before a transaction is opened
        await self._edit(call, stored, edit, "key changed")

    async def rotate(self, call: AdmittedHttpRequest) -> None:
        """Give a key a new secret, returned in this response; the old one is invalid at once or after `grace_seconds`."""
        fields = Fields(await call.exchange.optional_json())
        grace = fields.integer("grace_seconds", least=0, most=LONGEST_GRACE)
        reject_unknown(fields, ("grace_seconds",))
        until = math.ceil(time.time()) + grace if grace else None
        stored, (secret, digest, shown) = await self._stored(call), new_secret()

        def edit(key: StoredKey) -> StoredKey:
            former = key.digest if until else None  # of former secrets only the last can stay valid
            return replace(_unrevoked(key), digest=digest, shown=shown, former=former, former_until=until)

        await self._edit(call, stored, edit, "key rotated", secret)

    async def revoke(self, call: AdmittedHttpRequest) -> None:
        """Revoke a key for ever, and end its requests and runs."""
        stored, now = await self._stored(call), int(time.time())

        def edit(key: StoredKey) -> StoredKey:
            return key if key.revoked else replace(key, revoked=now, former=None, former_until=None)

        await self._edit(call, stored, edit, "key revoked")

    async def _edit(
        self,
        call: AdmittedHttpRequest,
        stored: StoredKey,
        edit: Callable[[StoredKey], StoredKey],
        event: str,
        secret: str | None = None,
    ) -> None:
        # This request is not ended, even if it has revoked or rotated its own key: the client should get its answer.
        # From before the change, because others read the keys again, too.
        with self._active_requests.sparing(call.record.request_id):
            if await self._stored_keys.store.change(stored.id, edit) is None:
                raise _unknown(stored.name)
            await self._apply(call, stored.id, event, secret)

    async def _apply(self, call: AdmittedHttpRequest, id: str, event: str, secret: str | None = None) -> None:
        """Put a stored change into force in this process, log it, and respond with the key."""
        await self._stored_keys.refresh()
        key = self._stored_keys.all[id]
        self._log.info(event, name=key.name, id=id, by=call.caller.name)
        await self._budgets.open()
        body = self._stored_key_object(key) | ({"key": secret} if secret else {})
        await call.exchange.respond(200, encode(body), _NO_STORE)

    async def _refresh(self, call: AdmittedHttpRequest) -> None:
        """Read the keys again, without ending the request that needs them."""
        with self._active_requests.sparing(call.record.request_id):
            await self._stored_keys.refresh()

    async def _stored(self, call: AdmittedHttpRequest) -> StoredKey:
        """Return the key in the path, which must be in the database; another process may have created it a moment ago."""
        name = call.arguments[0]
        if any(key.name == name for key in self._configured):
            raise Conflict(f"The key {name[:80]!r} is in the configuration; change it there.", code="configured_key")
        await self._refresh(call)
        return self._find(name)

    def _find(self, name: str) -> StoredKey:
        keys = self._stored_keys.all
        found = keys.get(name) or next((key for key in keys.values() if key.name == name), None)
        if found is None:
            raise _unknown(name)
        return found

    def _key_object(self, key: KeySettings) -> dict[str, Any]:
        """Return a key of the configuration, or the fields that one of the database has in common with it."""
        rights = {name: getattr(key, name) for name in KeyRights.__struct_fields__}
        rights["budget"] = asdict(key.budget) if key.budget else None
        spent = {period: round(self._budgets.spent(key.name, period), 6) for period in ("day", "month", "total")}
        return {"object": "key", "id": key.name, "name": key.name, "source": "configuration", **rights, "spent": spent}

    def _stored_key_object(self, stored: StoredKey) -> dict[str, Any]:
        # Rights that another version has written cannot be read: the key is shown without any.
        settings = to_settings(stored) or KeySettings(name=stored.name, key=_NO_SECRET, scopes=())
        state = "active" if is_valid(stored, time.time()) else "expired"
        # The configuration was given a key of the same name later: only that one is valid.
        if any(key.name == stored.name for key in self._configured):
            state = "shadowed"
        return self._key_object(settings) | {
            "id": stored.id,
            "source": "database",
            "state": "revoked" if stored.revoked is not None else state,
            "owner": stored.owner,
            "shown": stored.shown,
            "created_at": stored.created,
            "expires_at": stored.expires,
            "revoked_at": stored.revoked,
            "last_used_at": stored.last_used,
            "former_expires_at": stored.former_until if is_former_valid(stored, time.time()) else None,
        }


def new_secret() -> tuple[str, str, str]:
    """Return a new secret, its digest, and its beginning and end, which may be shown."""
    secret = PREFIX + secrets.token_urlsafe(ENTROPY)
    return secret, sha256(secret.encode()).hexdigest(), f"{secret[:6]}…{secret[-4:]}"


def _changed(key: StoredKey, change: KeyRightsReplacement) -> StoredKey:
    owner = key.owner if change.owner is UNSET else change.owner
    expires = key.expires if change.expires is UNSET else change.expires
    return replace(key, owner=owner, expires=expires, rights=_encode_rights(change.rights))


def _unrevoked(key: StoredKey) -> StoredKey:
    if key.revoked is not None:
        raise Conflict(f"The key {key.name!r} was revoked, which cannot be undone; make another.", code="key_revoked")
    return key


def _encode_rights(rights: KeyRights) -> str:
    return msgspec.json.encode(rights).decode()


def _taken(name: str) -> Conflict:
    return Conflict(f"There is, or was, a key {name!r}; take another name.", param="name", code="name_taken")


def _unknown(name: str) -> NotFound:
    return NotFound(f"There is no key {name[:80]!r}.", code="key_not_found")
