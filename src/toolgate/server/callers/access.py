"""Who is let in, and who still is: the keys of the configuration and of the database together, for the whole server.

Whenever either changes, requests under way that could not be made any more are ended, and whoever counts or judges by key
hears of it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import msgspec

from toolgate.config import Config, Key, Secret
from toolgate.server.callers.auth import Keys
from toolgate.server.callers.demand import DemandFile
from toolgate.server.callers.keyrights import KeyRights
from toolgate.server.callers.keyring import Keyring
from toolgate.server.callers.present import Present
from toolgate.storage.database import Database
from toolgate.storage.keys import KeyStore, StoredKey
from toolgate.telemetry.traced import Traced

_LOCKED = (
    "no key is in force, and keys were demanded before: nobody is let in; "
    "add one under `keys`, or write `server: {open: true}` to let everybody on this machine in"
)
OnHeld: TypeAlias = Callable[[Iterable[Key]], None]


class Access:
    """Outlives configurations; `keys` says who is calling, `present` who is being answered.

    `review_runs` ends what runs for those who are not known any more, and says how much that was.
    """

    def __init__(self, config: Config, database: Database, traced: Traced) -> None:
        self.keys = Keys(config.keys, config.models)
        self.present = Present()
        self.configured = config.keys
        self._config = config
        self._file = DemandFile(config.source)
        self._demanded = False
        self.ring = Keyring(KeyStore(database), self._hold, self._used, traced.log)
        self._log = traced.log
        self._listeners: list[OnHeld] = []
        self.review_runs: Callable[[Callable[[str], bool]], int] = lambda may: 0

    def on_held(self, listener: OnHeld) -> None:
        """Have this called with the keys of the database whenever those in force change."""
        self._listeners.append(listener)

    async def open(self) -> None:
        """Read the keys of the database; until they are known, or if keys were demanded before, one is needed."""
        self._remember()
        await self.ring.open()
        self.keys.unsure = not self.ring.known
        if self._judge() and not self.keys.any:
            self._log.error("keys", problem=_LOCKED)

    def renew(self, config: Config) -> None:
        """From now on the keys of this configuration are good, and no others of a configuration."""
        if config.server.open and not self._config.server.open:
            self._log.warning("keys", problem="server.open: where there is no key, everybody on this machine is let in")
        self._config, self.configured = config, config.keys
        self._remember()
        self._judge()
        self.keys.renew(config.keys, config.models)
        self._warn_of_shadows(self.ring.all.values())
        self._review("")

    async def aclose(self) -> None:
        """Note what was used."""
        await self.ring.aclose()

    def _remember(self) -> None:
        """Have it outlive us that keys are demanded, or that somebody said in words that none are."""
        if self.configured or self._config.server.open:
            self._file.write(not self._config.server.open)
            self.ring.demand(not self._config.server.open)

    def _judge(self) -> bool:
        """Decide whether a key is needed although none may be in force: a lost or expired key opens nothing.

        Keys of the database are remembered beside the configuration, too: the database may be moved, replaced or lost.
        """
        if self._config.server.open:
            self._demanded = self.keys.demanded = False
            return False
        if self.ring.all:
            self._file.write(True)
        known = self.configured or self.ring.all or self.ring.demanded or self._file.exists
        self._demanded = self.keys.demanded = self._demanded or bool(known)
        return self._demanded

    def _hold(self, held: Mapping[str, StoredKey], sparing: str) -> None:
        self.keys.unsure = False
        self._judge()
        self._warn_of_shadows(held.values())
        keys = {id: key for id, stored in held.items() if (key := as_configured(stored)) is not None}
        if len(keys) < len(held):
            unread = [held[id].name for id in held.keys() - keys.keys()]
            self._log.error("keys", problem="what these may do was written by another version", names=unread)
        former = {id: bytes.fromhex(digest) for id in keys if (digest := held[id].former)}
        self.keys.hold(keys, former)
        for listener in self._listeners:
            listener(keys.values())
        self._review(sparing)

    def _warn_of_shadows(self, held: Iterable[StoredKey]) -> None:
        shadowed = {key.name for key in self.configured} & {key.name for key in held if key.revoked is None}
        if shadowed:
            self._log.warning("keys", problem="the configuration has keys of the same names", names=sorted(shadowed))

    def _review(self, sparing: str) -> None:
        ended = self.present.review(self.keys.now, sparing) + self.review_runs(self._is_known)
        if ended:
            self._log.info("keys", ended=ended)

    def _is_known(self, name: str) -> bool:
        return self.keys.unsure or self.keys.named(name) is not None

    def _used(self) -> set[str]:
        used, self.keys.used = self.keys.used, set()
        return used


def as_configured(stored: StoredKey) -> Key | None:
    """The key as if the configuration held its digest, so that one code judges both; None if it cannot be read."""
    try:
        rights = msgspec.json.decode(stored.rights, type=KeyRights)
    except (msgspec.DecodeError, RecursionError):
        return None  # a version to come may know other scopes: who cannot tell what it may do lets it do nothing
    return Key(name=stored.name, key=Secret(f"sha256:{stored.digest}"), **msgspec.structs.asdict(rights))
