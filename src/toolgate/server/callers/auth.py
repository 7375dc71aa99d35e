"""Who is calling, and what they may do.

Keys are kept as digests only, so that a dump of this process shows none. A request costs one digest and one look-up; how
long that takes tells nothing about the keys, for nobody can choose the digest of what they send.
Knows headers and keys. It must not know routes, dialects or models beyond their names.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from hashlib import blake2s, sha256
from os import urandom

from msgspec import Struct

from toolgate.config import Key, Model
from toolgate.conversation.errors import Forbidden, InvalidRequest, Overloaded, Unauthenticated
from toolgate.upstreams.router import no_such_model

LONGEST = 4096
"""Bytes of a credential that are worth a look."""

KEY_OFFERED = b"openai-insecure-api-key."
"""What a WebSocket's subprotocol begins with that is a key: the pages of a browser can send it in no other header."""

_SUBPROTOCOLS = b"sec-websocket-protocol"
_HEADERS = frozenset((b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key", _SUBPROTOCOLS))
_BEARER = b"Bearer "


class Caller(Struct, frozen=True):
    """Who is calling; `models` holds every name they may ask for, None meaning all; tools are said by patterns.

    `keep_chats` None leaves it to the configuration whether their chats are kept. `credential` is the digest of the key
    they came with, `id` names it if it is kept in the database.
    """

    name: str
    scopes: frozenset[str]
    models: frozenset[str] | None = None
    allow_tools: tuple[str, ...] = ()
    block_tools: tuple[str, ...] = ()
    keep_chats: bool | None = None
    credential: bytes = b""
    id: str = ""

    def require(self, scope: str) -> None:
        """Forbidden unless the caller has the scope."""
        if scope not in self.scopes:
            raise Forbidden(f"This key lacks the scope {scope}.", code="missing_scope")

    def may_use(self, model: str) -> bool:
        """Whether the caller may ask for the model by this name."""
        return self.models is None or model in self.models

    def require_model(self, model: str, asked: str | None = None) -> None:
        """NotFound unless the caller may use the model: to them, what they may not use does not exist.

        `asked` is the name they called it by; the answer gives away no other.
        """
        if not self.may_use(model):
            raise no_such_model(asked or model)


ANONYMOUS = Caller("anonymous", frozenset(("chat", "tools", "admin")))
"""Whoever calls when there are no keys; the address we listen on and `origins.py` see to it that it is one of us."""

NOBODY = Caller("", frozenset(), frozenset())
"""Whoever calls where no key is asked for."""


class Keys:
    """The keys in force, ready to be looked up: those of the configuration and those that the database holds.

    `used` collects the ids of the database's keys that were presented, for whoever notes that; `unsure` says that nobody
    knows yet whether the database holds keys, `demanded` that there were keys: then nobody is let in without one.
    """

    nobody = NOBODY

    def __init__(self, keys: Iterable[Key], models: Iterable[Model] = ()) -> None:
        self._held: Mapping[str, Key] = {}
        self._former: Mapping[str, bytes] = {}
        self._secret = urandom(16)
        self.used: set[str] = set()
        self.unsure = self.demanded = False
        self.renew(keys, models)

    def renew(self, keys: Iterable[Key], models: Iterable[Model] = ()) -> None:
        """From now on these are the keys and the models of the configuration; of the keys only digests are kept."""
        self._models = tuple(models)
        self._configured = [_caller(key, self._models, digest) for key in keys if (digest := _digest_of(key))]
        self.hold(self._held, self._former)

    def hold(self, held: Mapping[str, Key], former: Mapping[str, bytes] = {}) -> None:
        """From now on these are the keys of the database, by id; one whose name the configuration has is not in force.

        `former` has digests by which some of them are known as well.
        """
        self._held, self._former = held, former
        taken = {caller.name for caller in self._configured}
        added = [(id, key) for id, key in held.items() if key.name not in taken]
        again = [_caller(key, self._models, former[id], id) for id, key in added if id in former]
        callers = again + [_caller(key, self._models, _digest_of(key), id) for id, key in added] + self._configured
        self._callers = {caller.credential: caller for caller in callers}
        self._seen: dict[bytes, Caller] = {}
        self._named = {caller.name: caller for caller in callers}

    def now(self, caller: Caller) -> Caller | None:
        """The caller as they stand now; None if the key they came with is no longer theirs."""
        if not caller.credential:
            return caller if caller is not ANONYMOUS or self.open else None
        current = self._callers.get(caller.credential)
        return current if current is not None and current.name == caller.name else None

    def named(self, name: str) -> Caller | None:
        """The caller of this name, if any key of theirs is in force."""
        return self._named.get(name) or (ANONYMOUS if self.open and name == ANONYMOUS.name else None)

    @property
    def open(self) -> bool:
        """Whether everybody is let in because there are no keys."""
        return not (self._callers or self.unsure or self.demanded)

    @property
    def any(self) -> bool:
        """Whether a key is in force."""
        return bool(self._callers)

    def authenticate(self, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
        """The caller whose key the headers carry; Unauthenticated says the same of every other request."""
        if not self._callers:
            return self._anybody()
        credential = _credential(headers)
        if credential and len(credential) <= LONGEST:
            mark = blake2s(credential, key=self._secret).digest()  # OpenSSL's sha256 would cost a request 5 % more
            caller = self._seen.get(mark) or self._look_up(credential, mark)
            if caller is not None:
                if caller.id:
                    self.used.add(caller.id)
                return caller
        raise _unauthenticated()

    def _look_up(self, credential: bytes, mark: bytes) -> Caller | None:
        """Whose key this is, remembered by its mark."""
        caller = self._callers.get(sha256(credential).digest())
        if caller is not None:
            self._seen[mark] = caller
        return caller

    def _anybody(self) -> Caller:
        if self.unsure:
            raise Overloaded(
                "The keys could not be read yet: the storage is not available.",
                code="storage_unavailable",
                retry_after=5,
            )
        if self.demanded:
            raise _unauthenticated()
        return ANONYMOUS


def _unauthenticated() -> Unauthenticated:
    return Unauthenticated("No valid API key was given: send one as `Authorization: Bearer …` or `x-api-key`.")


def guess(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """What tells a wrong key from others without being it; empty if none was given."""
    credential = _credential(headers)
    return sha256(credential[: LONGEST + 1]).digest()[:8] if credential else b""


def _credential(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The one credential among the headers, empty if there is none; two that differ are the client's mistake."""
    found = b""
    for name, value in headers:
        if name not in _HEADERS:
            continue
        given = _bearer(value) if name == b"authorization" else _given(name, value)
        if given and found and given != found:
            raise InvalidRequest(
                "The request carries two different credentials; send one.", code="conflicting_credentials"
            )
        found = given or found
    return found


def _given(name: bytes, value: bytes) -> bytes:
    if name != _SUBPROTOCOLS:
        return value.strip()
    offered = [one.strip() for one in value.split(b",")]
    return next((one[len(KEY_OFFERED) :] for one in offered if one.startswith(KEY_OFFERED)), b"")


def _bearer(value: bytes) -> bytes:
    """The token of an Authorization header; of another scheme something that differs by its value and is no key."""
    if value.startswith(_BEARER):
        return value[len(_BEARER) :].strip()
    scheme, _, token = value.strip().partition(b" ")
    if scheme.lower() == b"bearer" or not scheme:
        return token.strip()
    return b"\0" + value


def _caller(key: Key, models: tuple[Model, ...], digest: bytes, id: str = "") -> Caller:
    allowed = None
    if key.models:
        matching = [model for model in models if _matches(key.models, model)]
        allowed = frozenset(name for model in matching for name in model.names)
    tools, keep = (key.tools, key.blocked_tools), key.keep_chats
    return Caller(key.name, frozenset(key.scopes), allowed, *tools, keep, digest, id)


def _matches(patterns: tuple[str, ...], model: Model) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in model.names)


def _digest_of(key: Key) -> bytes:
    text = key.key.reveal()
    return bytes.fromhex(text[7:]) if text.startswith("sha256:") else sha256(text.encode()).digest()
