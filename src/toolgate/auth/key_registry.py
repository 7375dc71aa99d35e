"""Keep the keys of the configuration and of the database together, for the whole server.

When either changes, the running requests of keys that are no longer valid are cancelled, and the listeners get the keys
of the database. It must not know what the listeners do.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from toolgate.auth.active_requests import ActiveRequests
from toolgate.auth.authenticator import Authenticator
from toolgate.auth.key_update_request import KeyRights
from toolgate.auth.keys_required_marker import KeysRequiredMarkerFile
from toolgate.auth.stored_key_cache import StoredKeyCache
from toolgate.config import Config, KeySettings, Secret
from toolgate.storage.database import Database
from toolgate.storage.keys import KeyStore, StoredKey
from toolgate.telemetry.request_log import Telemetry

_LOCKED = (
    "there is no valid key, and there were keys before: all requests are refused; "
    "add one under `keys`, or write `server: {open: true}` to allow requests without a key from this machine"
)
# Called with the valid keys of the database, whenever they change.
OnStoredKeys: TypeAlias = Callable[[Iterable[KeySettings]], None]
# Ends the runs of the callers that are not known, and returns how many that were.
EndRuns: TypeAlias = Callable[[Callable[[str], bool]], int]


class KeyRegistry:
    """All valid keys; outlives configurations.

    `authenticator` finds callers, `active_requests` has the running ones, `stored` the keys of the database.
    """

    def __init__(
        self,
        config: Config,
        database: Database,
        telemetry: Telemetry,
        authenticator: Authenticator | None = None,
        *,
        on_stored_keys: Sequence[OnStoredKeys] = (),
        end_runs: EndRuns = lambda is_known: 0,
    ) -> None:
        self.authenticator = authenticator or Authenticator(config.keys, config.models)
        self.active_requests = ActiveRequests()
        self.stored = StoredKeyCache(KeyStore(database), self._stored_keys_changed, self._take_used, telemetry.log)
        self._config = config
        self._file = KeysRequiredMarkerFile(config.source)
        self._required = False
        self._log = telemetry.log
        self._on_stored_keys = on_stored_keys
        self._end_runs = end_runs

    async def open(self) -> None:
        """Read the keys of the database; until that succeeds, and if keys were required before, requests need one."""
        self._store_requirement()
        await self.stored.open()
        self.authenticator.keys_unknown = not self.stored.known
        if self._update_requirement() and not self.authenticator.has_keys:
            self._log.error("keys", problem=_LOCKED)

    def configure(self, config: Config) -> None:
        """Replace the keys of the configuration, and cancel the requests of those that are gone."""
        if config.server.open and not self._config.server.open:
            self._log.warning(
                "keys", problem="server.open: while there is no key, requests from this machine need none"
            )
        self._config = config
        # Before the keys are replaced: at no moment may a server that loses its keys serve without one.
        self._store_requirement()
        self._update_requirement()
        self.authenticator.configure(config.keys, config.models)
        self._warn_of_shadowed(self.stored.all.values())
        self._cancel_unauthorised()

    async def aclose(self) -> None:
        """Write which keys were used."""
        await self.stored.aclose()

    def _store_requirement(self) -> None:
        """Store in file and database that keys are required, or that the configuration requires none."""
        if self._config.keys or self._config.server.open:
            self._file.write(not self._config.server.open)
            self.stored.set_required(not self._config.server.open)

    def _update_requirement(self) -> bool:
        """Decide whether requests need a key although none may be valid: a lost or expired key opens nothing."""
        if self._config.server.open:
            self._required = self.authenticator.keys_required = False
            return False
        # Keys of the database are noted beside the configuration, too: the database may be moved, replaced or lost.
        if self.stored.all:
            self._file.write(True)
        # Once required they stay so while this process runs, whatever is deleted: only `server.open` takes it back.
        known = self._config.keys or self.stored.all or self.stored.required or self._file.exists
        self._required = self.authenticator.keys_required = self._required or bool(known)
        return self._required

    def _stored_keys_changed(self, valid: Mapping[str, StoredKey]) -> None:
        self.authenticator.keys_unknown = False
        self._update_requirement()
        self._warn_of_shadowed(valid.values())
        keys = {id: key for id, stored in valid.items() if (key := to_settings(stored)) is not None}
        if len(keys) < len(valid):
            unread = [valid[id].name for id in valid.keys() - keys.keys()]
            self._log.error("keys", problem="the rights of these keys were written by another version", names=unread)
        former = {id: bytes.fromhex(digest) for id in keys if (digest := valid[id].former)}
        self.authenticator.set_stored_keys(keys, former)
        for listener in self._on_stored_keys:
            listener(keys.values())
        self._cancel_unauthorised()

    def _warn_of_shadowed(self, stored: Iterable[StoredKey]) -> None:
        shadowed = {key.name for key in self._config.keys} & {key.name for key in stored if key.revoked is None}
        if shadowed:
            self._log.warning("keys", problem="the configuration has keys of the same names", names=sorted(shadowed))

    def _cancel_unauthorised(self) -> None:
        """Cancel the requests and runs whose key is no longer valid."""
        keys = self.authenticator
        cancelled = self.active_requests.cancel_unauthorised(keys.current)
        # Until the database was read once, the owner of a run may have a key there.
        cancelled += self._end_runs(lambda name: keys.keys_unknown or keys.named(name) is not None)
        if cancelled:
            self._log.info("keys", ended=cancelled)

    def _take_used(self) -> set[str]:
        used, self.authenticator.used = self.authenticator.used, set()
        return used


def to_settings(stored: StoredKey) -> KeySettings | None:
    """Return a stored key as if the configuration had its digest; None if its rights cannot be read.

    A later version may know other scopes: a key whose rights are not understood gets none.
    """
    try:
        rights = msgspec.json.decode(stored.rights, type=KeyRights)
    except (msgspec.DecodeError, RecursionError):
        return None
    return KeySettings(name=stored.name, key=Secret(f"sha256:{stored.digest}"), **msgspec.structs.asdict(rights))
