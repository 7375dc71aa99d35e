"""Cache the keys of the database: read at the start, and again when their version number has changed.

A change that is made here takes effect at once, one of another process within two seconds, and so does the expiry of a
key or of a former secret. A key that is new to this process is looked for when it is first sent.
While the database is not available, the keys that were read last stay valid.
It must not know headers, requests or the rights of a key.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from msgspec.structs import replace

from toolgate.conversation.errors import ToolgateError
from toolgate.storage.keys import KeyStore, StoredKey
from toolgate.telemetry.log_writer import Logger

EVERY = 2.0  # seconds between two reads of the version number

# Seconds between two looks for keys that are not known: strangers must not keep the database busy.
LOOK_SECONDS = 0.2

_USE_SECONDS = 60  # after which the use of a key is written again


class StoredKeyCache:
    """All keys of the database, and the valid ones among them.

    `required` is whether requests need a key, as the database has it.
    """

    def __init__(
        self,
        store: KeyStore,
        on_change: Callable[[Mapping[str, StoredKey]], None],
        used: Callable[[], set[str]],
        log: Logger,
        *,
        every: float = EVERY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`on_change` is called with the valid keys by id.

        `used` returns the ids of the keys that were used since its last call.
        """
        self.store = store
        self.all: dict[str, StoredKey] = {}
        self.valid: dict[str, StoredKey] = {}
        self._on_change = on_change
        self._used = used
        self._log = log
        self._every = every
        self._clock = clock
        self.required = False
        self._new_required: bool | None = None
        self._version: int | None = None
        self._used_at: dict[str, int] = {}
        self._unavailable = False
        self._refreshing = asyncio.Lock()
        self._polling: asyncio.Task[None] | None = None
        self._next_look: asyncio.Task[None] | None = None
        self._looks: set[asyncio.Task[None]] = set()
        self._looked_at = 0.0

    @property
    def known(self) -> bool:
        """Whether the keys were read at least once."""
        return self._version is not None

    async def open(self) -> None:
        """Read the keys, and poll for changes from now on: another process may make the first key."""
        await self._poll()
        self._polling = asyncio.get_running_loop().create_task(self._poll_forever())

    def set_required(self, required: bool) -> None:
        """Store whether requests need a key; it is written with the next poll."""
        self._new_required = required

    async def refresh(self) -> None:
        """Read all keys again; changes have taken effect when this returns."""
        async with self._refreshing:  # keys that were read before must not replace those that were read after
            version, keys = await self.store.all()
            required = await self.store.demanded()
            must_report = self._version is None or required != self.required
            self.required = required
            self._version, self.all = version, {key.id: key for key in keys}
            self._update_valid(must_report)

    async def find_new_keys(self) -> None:
        """Read what others have changed until this call.

        Calls share a look at the version number, and there are five of these a second at most, however many calls.
        """
        if self._polling is None or self._unavailable:
            return
        if self._next_look is None:
            self._next_look = asyncio.get_running_loop().create_task(self._look_soon())
            self._looks.add(self._next_look)
            self._next_look.add_done_callback(self._looks.discard)
        await asyncio.shield(self._next_look)  # a client that leaves must not cancel the look of the others

    async def aclose(self) -> None:
        """Stop polling, and write which keys were used."""
        if self._looks:
            for look in self._looks:
                look.cancel()
            await asyncio.wait(self._looks)
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait({self._polling})
            if not self._unavailable:  # with nothing to write, the database would seem to be back
                await self._try(self._write_use)

    async def _poll_forever(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            self._update_valid()  # some may have expired, whether or not the database is available
            await self._poll()

    async def _look_soon(self) -> None:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, self._looked_at + LOOK_SECONDS - clock()))
        self._looked_at, self._next_look = clock(), None  # a key that is sent from now on may be newer than this look
        await self._try(self._read_changes)

    async def _poll(self) -> None:
        if await self._try(self._read_changes):
            await self._try(self._write_use)

    async def _try(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Run the work and return whether the database was available; log once when it fails and when it is back."""
        try:
            # A database that hangs must not hold up the expiry of keys, which the same task checks.
            async with asyncio.timeout(max(self._every, 1.0)):
                await work()
        except (ToolgateError, TimeoutError) as error:
            if not self._unavailable:
                problem = str(error) or "the database does not answer"
                self._log.warning("keys", problem=problem, consequence="the keys last read stay in force")
            self._unavailable = True
            return False
        if self._unavailable:
            self._log.info("keys", problem="the database is back")
        self._unavailable = False
        return True

    async def _read_changes(self) -> None:
        if self._new_required is not None:
            await self.store.demand(self._new_required)
            self._new_required = None
        if await self.store.number() != self._version:
            await self.refresh()

    async def _write_use(self) -> None:
        now = int(self._clock())
        used = {id: now for id in self._used() if now - self._used_at.get(id, 0) >= _USE_SECONDS}
        if used:
            self._used_at |= used
            await self.store.touch(used)

    def _update_valid(self, must_report: bool = False) -> None:
        """Find the keys that are neither revoked nor expired, without former secrets whose time is over."""
        now = self._clock()
        valid = {id: key for id, key in self.all.items() if is_valid(key, now)}
        for id, key in valid.items():
            if key.former is not None and not is_former_valid(key, now):
                valid[id] = replace(key, former=None, former_until=None)
        if must_report or valid != self.valid:
            self.valid = valid
            self._on_change(valid)


def is_valid(key: StoredKey, now: float) -> bool:
    """Return whether the key is neither revoked nor expired."""
    return key.revoked is None and (key.expires is None or key.expires > now)


def is_former_valid(key: StoredKey, now: float) -> bool:
    """Return whether the former secret of the key is still accepted."""
    return is_valid(key, now) and key.former_until is not None and key.former_until > now
