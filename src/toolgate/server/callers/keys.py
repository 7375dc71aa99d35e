"""The keys at /v1/keys, for whoever looks after them: made, listed, changed, rotated and revoked.

A key is told once, in the answer that makes it; kept is its digest. Keys of the configuration are listed here and changed
there. A name stays taken when its key is revoked: what its holder owns must not pass to the next of that name.
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

from toolgate.config import Config, Key, Secret
from toolgate.conversation.errors import Conflict, InvalidRequest, NotFound
from toolgate.conversation.ids import mint
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.limits import Budgets
from toolgate.server.app import Call, Endpoint
from toolgate.server.callers.access import Access, as_configured
from toolgate.server.callers.auth import ANONYMOUS
from toolgate.server.callers.keyrights import KeyChange, KeyRights, no_more, read_change
from toolgate.server.callers.keyring import is_former_good, is_in_force
from toolgate.server.exchange import Header
from toolgate.storage.keys import StoredKey
from toolgate.telemetry.logs import Log
from toolgate.wire.fields import Fields
from toolgate.wire.jsontext import encode

PREFIX = "tg-"
ENTROPY = 32
"""Random bytes of a key."""

MOST = 20_000
"""Keys that a database may hold, the revoked ones included."""

LONGEST_GRACE = 7 * 86400
"""Seconds for which the former secret of a rotated key may stay good."""

_ID = "key_"
_NAME = re.compile(r"[\w.@-]{1,64}", re.ASCII)
_RESERVED = frozenset((ANONYMOUS.name, "stdio"))
_NOT_TOLD = Secret("")
_UNKEPT: tuple[Header, ...] = ((b"cache-control", b"no-store"),)


class KeyTable:
    """The endpoints over the keys of one configuration and the database."""

    def __init__(self, config: Config, access: Access, purse: Budgets, log: Log) -> None:
        self._configured = config.keys
        self._models: Collection[str] = config.by_name().keys()
        self._access = access
        self._ring = access.ring
        self._purse = purse
        self._log = log

    def endpoints(self) -> Sequence[Endpoint]:
        """What is served."""
        words = OPENAI_CHAT.server
        return [
            Endpoint("GET", "/v1/keys", self.list, words, scope="admin"),
            Endpoint("POST", "/v1/keys", self.create, words, scope="admin"),
            Endpoint("POST", "/v1/keys/{}/rotate", self.rotate, words, scope="admin"),
            Endpoint("GET", "/v1/keys/{}", self.show, words, scope="admin"),
            Endpoint("POST", "/v1/keys/{}", self.change, words, scope="admin"),
            Endpoint("DELETE", "/v1/keys/{}", self.revoke, words, scope="admin"),
        ]

    async def list(self, call: Call) -> None:
        """List the keys: what they may do, their limits and, of limited ones, what they have spent."""
        await self._ring.refresh(call.record.request_id)
        await self._purse.open()
        data = [self._shown(key) for key in self._configured]
        data += [self._shown_stored(key) for key in self._ring.all.values()]
        await call.exchange.respond(200, encode({"object": "list", "data": data}))

    async def show(self, call: Call) -> None:
        """Tell about one key, by id or name."""
        await self._ring.refresh(call.record.request_id)
        name = call.arguments[0]
        configured = next((key for key in self._configured if key.name == name), None)
        await self._purse.open()
        said = self._shown(configured) if configured else self._shown_stored(self._find(name))
        await call.exchange.respond(200, encode(said))

    async def create(self, call: Call) -> None:
        """Make a key, which is told in this answer and never again."""
        fields, now = Fields(await call.exchange.json()), time.time()
        name = self._new_name(fields)
        change = read_change(fields, KeyRights(), self._models, now)
        secret, made = _minted()
        stored = StoredKey(_ID + mint(), name, "", *made, _text(change.rights), int(now))
        if not await self._ring.store.create(_changed(stored, change)):
            raise _taken(name)
        await self._done(call, stored.id, "key created", secret)

    async def change(self, call: Call) -> None:
        """Change what a key may do; what the body does not name stays."""
        stored, now = await self._stored(call), time.time()
        body = await call.exchange.json()

        def edit(key: StoredKey) -> StoredKey:
            return _changed(_living(key), read_change(Fields(body), _rights(key), self._models, now))

        edit(stored)  # what is wrong with the body is said before anything is opened
        await self._edit(call, stored, edit, "key changed")

    async def rotate(self, call: Call) -> None:
        """Give a key a new secret, told in this answer; the old one is dead at once, or after `grace_seconds`."""
        until = _grace_ends(Fields(await call.exchange.optional_json()))
        stored, (secret, made) = await self._stored(call), _minted()
        await self._edit(call, stored, lambda key: _rotated(_living(key), made, until), "key rotated", secret)

    async def revoke(self, call: Call) -> None:
        """Revoke a key for ever; what runs with it is ended."""
        stored, now = await self._stored(call), int(time.time())
        await self._edit(call, stored, lambda key: key if key.revoked else _revoked(key, now), "key revoked")

    async def _edit(
        self,
        call: Call,
        stored: StoredKey,
        edit: Callable[[StoredKey], StoredKey],
        event: str,
        secret: str | None = None,
    ) -> None:
        if await self._ring.store.change(stored.id, edit) is None:
            raise _unknown(stored.name)
        await self._done(call, stored.id, event, secret)

    async def _done(self, call: Call, id: str, event: str, secret: str | None = None) -> None:
        """The change is kept: put it into force here, note who did it, and tell."""
        await self._ring.refresh(sparing=call.record.request_id)
        key = self._ring.all[id]
        self._log.info(event, name=key.name, id=id, by=call.caller.name)
        await self._purse.open()
        said = self._shown_stored(key) | ({"key": secret} if secret else {})
        await call.exchange.respond(200, encode(said), _UNKEPT)

    async def _stored(self, call: Call) -> StoredKey:
        """The key that the path names, if it is the database's; another process may have made it this moment."""
        name = call.arguments[0]
        if any(key.name == name for key in self._configured):
            raise Conflict(f"The key {name[:80]!r} is in the configuration; change it there.", code="configured_key")
        await self._ring.refresh(call.record.request_id)
        return self._find(name)

    def _find(self, name: str) -> StoredKey:
        keys = self._ring.all
        found = keys.get(name) or next((key for key in keys.values() if key.name == name), None)
        if found is None:
            raise _unknown(name)
        return found

    def _new_name(self, fields: Fields) -> str:
        if not any("admin" in key.scopes for key in self._configured):
            raise Conflict(
                "Keys can be made once the configuration holds one with the scope admin: "
                "without it, nobody could look after them.",
                code="no_admin_key",
            )
        name = fields.required_text("name")
        if not _NAME.fullmatch(name) or name.startswith(_ID) or name in _RESERVED:
            raise InvalidRequest(
                f"name may hold letters, digits and . _ @ - only, 64 at most, and not begin with {_ID}.", param="name"
            )
        if any(key.name == name for key in self._configured):
            raise _taken(name)
        if len(self._ring.all) >= MOST:
            raise Conflict(f"There are {MOST} keys already.", code="too_many_keys")
        return name

    def _shown(self, key: Key) -> dict[str, Any]:
        """A key of the configuration, or what one of the database has in common with it."""
        rights = {name: getattr(key, name) for name in KeyRights.__struct_fields__}
        rights["budget"] = asdict(key.budget) if key.budget else None
        spent = {period: round(self._purse.spent(key.name, period), 6) for period in ("day", "month", "total")}
        return {"object": "key", "id": key.name, "name": key.name, "source": "configuration", **rights, "spent": spent}

    def _shown_stored(self, stored: StoredKey) -> dict[str, Any]:
        said = self._shown(as_configured(stored) or Key(name=stored.name, key=_NOT_TOLD, scopes=()))
        return said | {
            "id": stored.id,
            "source": "database",
            "state": self._state(stored),
            "owner": stored.owner,
            "shown": stored.shown,
            "created_at": stored.created,
            "expires_at": stored.expires,
            "revoked_at": stored.revoked,
            "last_used_at": stored.last_used,
            "former_expires_at": stored.former_until if is_former_good(stored, time.time()) else None,
        }

    def _state(self, stored: StoredKey) -> str:
        if stored.revoked is not None:
            return "revoked"
        if any(key.name == stored.name for key in self._configured):
            return "shadowed"
        return "active" if is_in_force(stored, time.time()) else "expired"


def _minted() -> tuple[str, tuple[str, str]]:
    """A new key, and what is kept of it: its digest, and as much as may be shown."""
    secret = PREFIX + secrets.token_urlsafe(ENTROPY)
    return secret, (sha256(secret.encode()).hexdigest(), f"{secret[:6]}…{secret[-4:]}")


def _changed(key: StoredKey, change: KeyChange) -> StoredKey:
    owner = key.owner if change.owner is UNSET else change.owner
    expires = key.expires if change.expires is UNSET else change.expires
    return replace(key, owner=owner, expires=expires, rights=_text(change.rights))


def _grace_ends(fields: Fields) -> int | None:
    """Until when the former secret is to stay good; None for no longer."""
    grace = fields.integer("grace_seconds", least=0, most=LONGEST_GRACE)
    no_more(fields, ("grace_seconds",))
    return math.ceil(time.time()) + grace if grace else None


def _rotated(key: StoredKey, made: tuple[str, str], until: int | None) -> StoredKey:
    """The key with another secret; of its former ones the last alone may stay good for a while."""
    digest, shown = made
    return replace(key, digest=digest, shown=shown, former=key.digest if until else None, former_until=until)


def _revoked(key: StoredKey, now: int) -> StoredKey:
    return replace(key, revoked=now, former=None, former_until=None)


def _living(key: StoredKey) -> StoredKey:
    if key.revoked is not None:
        raise Conflict(f"The key {key.name!r} was revoked, which is for ever; make another.", code="key_revoked")
    return key


def _rights(key: StoredKey) -> KeyRights:
    try:
        return msgspec.json.decode(key.rights, type=KeyRights)
    except (msgspec.DecodeError, RecursionError):
        raise Conflict(f"What {key.name!r} may do was written by another version.", code="key_unreadable") from None


def _text(rights: KeyRights) -> str:
    return msgspec.json.encode(rights).decode()


def _taken(name: str) -> Conflict:
    return Conflict(f"There is, or was, a key {name!r}; take another name.", param="name", code="name_taken")


def _unknown(name: str) -> NotFound:
    return NotFound(f"There is no key {name[:80]!r}.", code="key_not_found")
