"""Authenticate requests by the keys in their headers.

Keys are kept as digests only, so that a dump of this process shows none. A request costs one digest and one look-up; the
time that this takes reveals nothing about the keys, because a client cannot choose the digest of what it sends.
Knows headers and keys. It must not know routes, dialects or models beyond their names.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from hashlib import blake2s, sha256
from os import urandom

from msgspec import Struct
from msgspec.structs import replace

from toolgate.config import KeySettings, ModelConfig
from toolgate.conversation.errors import Forbidden, GatewayOverloaded, InvalidRequest, Unauthenticated
from toolgate.upstreams.router import LENT_PREFIX, no_such_model

# Bytes of the longest credential that is checked.
LONGEST = 4096

# The prefix of a WebSocket subprotocol that carries a key: a web page can send it in no other header.
KEY_OFFERED = b"openai-insecure-api-key."

_SUBPROTOCOLS = b"sec-websocket-protocol"
_OTHER_HEADERS = frozenset((b"x-api-key", b"api-key", b"x-goog-api-key", _SUBPROTOCOLS))
_HEADERS = _OTHER_HEADERS | {b"authorization"}
# Stands for any text that `*` in an alias matches: of the wildcards in a key's pattern only `*` matches it.
_ANY_TEXT = "\0\0"
_BEARER = b"Bearer "
# A key that a server makes: the prefix and 32 random bytes in base64.
_STORED = re.compile(rb"tg-[\w-]{43}")


class Caller(Struct, frozen=True):
    """The caller of a request; `models` has every model name that it may use, None for all; tools are patterns.

    `keep_chats` None leaves it to the configuration whether its chats are stored. `credential` is the digest of the key
    that was sent, `id` the id of that key if it is stored in the database. `lent` are patterns of the models of editors
    that it may use, which come and go, unless `models` is None; without `editor` it may use nothing of an editor.
    """

    name: str
    scopes: frozenset[str]
    models: frozenset[str] | None = None
    allow_tools: tuple[str, ...] = ()
    block_tools: tuple[str, ...] = ()
    keep_chats: bool | None = None
    credential: bytes = b""
    id: str = ""
    lent: tuple[str, ...] = ()
    editor: bool = True

    def require(self, scope: str) -> None:
        """Raise Forbidden unless the caller has the scope."""
        if scope not in self.scopes:
            raise Forbidden(f"This key lacks the scope {scope}.", code="missing_scope")

    def without_editor(self) -> "Caller":
        """Return the caller without the right to use what editors lend."""
        return replace(self, editor=False, block_tools=(*self.block_tools, f"{LENT_PREFIX}*"))

    def may_use(self, model: str) -> bool:
        """Return whether the caller may use the model of this name."""
        if self.models is None or model in self.models:
            return self.editor or not model.startswith(LENT_PREFIX)
        # The models of editors come and go, so they are not listed in `models`. A pattern must match the whole name: the
        # name of a family alone means none of them.
        return model.startswith(LENT_PREFIX) and self.editor and any(fnmatchcase(model, one) for one in self.lent)

    def require_model(self, model: str, asked: str | None = None) -> None:
        """Raise NotFound unless the caller may use the model: for the caller, other models do not exist.

        `asked` is the name in the request; the error reveals no other.
        """
        if not self.may_use(model):
            raise no_such_model(asked or model)


# The caller of every request while there are no keys; the address and `origins.py` keep out other machines.
ANONYMOUS = Caller("anonymous", frozenset(("chat", "tools", "admin")))

# The caller of requests to endpoints that need no key.
PUBLIC = Caller("", frozenset(), frozenset())


class Authenticator:
    """Finds the caller of a request by its key: one of the configuration or one of the database.

    `used` collects the ids of the database's keys that were presented. While `keys_unknown`, the database could not be
    read yet; with `keys_required`, requests without a key are rejected even if no key is valid.
    """

    def __init__(self, keys: Iterable[KeySettings], models: Iterable[ModelConfig] = ()) -> None:
        self._stored: Mapping[str, KeySettings] = {}
        self._former: Mapping[str, bytes] = {}
        self._secret = urandom(16)
        self.used: set[str] = set()
        self.keys_unknown = self.keys_required = False
        self.configure(keys, models)

    def configure(self, keys: Iterable[KeySettings], models: Iterable[ModelConfig] = ()) -> None:
        """Replace the keys and models of the configuration; of the keys only digests are kept."""
        self._models = tuple(models)
        self._configured = [_caller(key, self._models, digest) for key in keys if (digest := _digest_of(key))]
        self.set_stored_keys(self._stored, self._former)

    def set_stored_keys(self, stored: Mapping[str, KeySettings], former: Mapping[str, bytes] = {}) -> None:
        """Replace the keys of the database, by id; a key of the configuration takes precedence over one of its name.

        `former` has the digests of former secrets that are still valid.
        """
        self._stored, self._former = stored, former
        taken = {caller.name for caller in self._configured}
        added = [(id, key) for id, key in stored.items() if key.name not in taken]
        again = [_caller(key, self._models, former[id], id) for id, key in added if id in former]
        # Later ones replace earlier ones of the same digest or name: the configuration has the last word.
        callers = again + [_caller(key, self._models, _digest_of(key), id) for id, key in added] + self._configured
        self._callers = {caller.credential: caller for caller in callers}
        self._seen: dict[bytes, Caller] = {}
        self._named = {caller.name: caller for caller in callers}

    def current(self, caller: Caller) -> Caller | None:
        """Return the caller with its present rights; None if its key is no longer valid."""
        if not caller.credential:
            return caller if caller.name != ANONYMOUS.name or self.allows_anonymous else None
        current = self._callers.get(caller.credential)
        # A key that was given another name is another caller: what the former one owns is not its own.
        return current if current is not None and current.name == caller.name else None

    def named(self, name: str) -> Caller | None:
        """Return the caller of this name, if it has a valid key."""
        return self._named.get(name) or (ANONYMOUS if self.allows_anonymous and name == ANONYMOUS.name else None)

    @property
    def allows_anonymous(self) -> bool:
        """Whether requests need no key, because there are none."""
        return not (self._callers or self.keys_unknown or self.keys_required)

    @property
    def has_keys(self) -> bool:
        """Whether there is a valid key."""
        return bool(self._callers)

    def authenticate(
        self, headers: Collection[tuple[bytes, bytes]], named: Mapping[bytes, bytes] | None = None
    ) -> Caller:
        """Return the caller whose key the headers carry; Unauthenticated is the same for every other request.

        `named` are the headers by name: if it is as long as `headers`, no header is given twice.
        """
        if not self._callers:
            if self.keys_unknown:
                raise GatewayOverloaded(
                    "The keys could not be read yet: the storage is not available.",
                    code="storage_unavailable",
                    retry_after=5,
                )
            if self.keys_required:
                raise _unauthenticated()
            return ANONYMOUS
        # Nearly every client sends its key in this header alone, and no header twice.
        if named is not None and len(named) == len(headers) and _OTHER_HEADERS.isdisjoint(named):
            credential = _bearer(named.get(b"authorization", b""))
        else:
            credential = _credential(headers)
        if credential and len(credential) <= LONGEST:
            # Keys that were valid once are found again by a cheaper digest, keyed so that no client can compute it. The
            # secret stands before the key, which is as good with BLAKE2 and takes 60 % of the time of its own `key`.
            mark = blake2s(self._secret + credential).digest()
            caller = self._seen.get(mark)
            if caller is None and (caller := self._callers.get(sha256(credential).digest())) is not None:
                self._seen[mark] = caller
            if caller is not None:
                if caller.id:
                    self.used.add(caller.id)
                return caller
        raise _unauthenticated()


def _unauthenticated() -> Unauthenticated:
    return Unauthenticated("No valid API key was given: send one as `Authorization: Bearer …` or `x-api-key`.")


def may_be_stored(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether the credential has the form of a key that a server makes."""
    return _STORED.fullmatch(_credential(headers)) is not None


def digest_of_credential(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a short digest of the credential, to count different wrong keys; empty if none was sent."""
    credential = _credential(headers)
    return sha256(credential[: LONGEST + 1]).digest()[:8] if credential else b""


def _credential(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the one credential among the headers, empty if there is none; two that differ are an error."""
    found = b""
    for name, value in headers:
        if name not in _HEADERS:
            continue
        if name == b"authorization":
            credential = _bearer(value)
        elif name == _SUBPROTOCOLS:
            offered = [one.strip() for one in value.split(b",")]
            credential = next((one[len(KEY_OFFERED) :] for one in offered if one.startswith(KEY_OFFERED)), b"")
        else:
            credential = value.strip()
        if credential and found and credential != found:
            raise InvalidRequest(
                "The request carries two different credentials; send one.", code="conflicting_credentials"
            )
        found = credential or found
    return found


def _bearer(value: bytes) -> bytes:
    """Return the token of an Authorization header; for another scheme, a value that matches no key."""
    if value.startswith(_BEARER):
        return value[len(_BEARER) :].strip()
    scheme, _, token = value.strip().partition(b" ")
    if scheme.lower() == b"bearer" or not scheme:
        return token.strip()
    # Not empty, which would count as no credential at all.
    return b"\0" + value


def _caller(key: KeySettings, models: tuple[ModelConfig, ...], digest: bytes, id: str = "") -> Caller:
    allowed = None
    if key.models:
        matching: set[str] = set()
        for model in models:
            # An alias with `*` is matched as a whole or not at all.
            names = [name.replace("*", _ANY_TEXT) for name in model.names]
            if any(fnmatchcase(name, pattern) for pattern in key.models for name in names):
                matching.update(model.names)
        allowed = frozenset(matching)
    tools, keep = (key.tools, key.blocked_tools), key.keep_chats
    return Caller(key.name, frozenset(key.scopes), allowed, *tools, keep, digest, id, key.models)


def _digest_of(key: KeySettings) -> bytes:
    # A configuration may hold the digest of a key in its place: `sha256:9f86d0…`.
    text = key.key.reveal()
    return bytes.fromhex(text[7:]) if text.startswith("sha256:") else sha256(text.encode()).digest()
