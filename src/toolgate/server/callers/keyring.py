"""The database's keys in this process: read at the start, again whenever a number says that they have changed.

A change that is made here holds at once, one that another process makes within two seconds, and a key or the former
secret of one that expires ends as quickly. While the database is away the last keys that were read stay in force.
It must not know headers, requests or what a key may do.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from msgspec.structs import replace

from toolgate.conversation.errors import ToolgateError
from toolgate.storage.keys import KeyStore, StoredKey
from toolgate.telemetry.logs import Log

EVERY = 2.0
"""Seconds between two looks."""

_USE_NOTED = 60
"""Seconds after which the use of a key is noted again."""


class Keyring:
    """All keys of the database, and which of them are in force.

    `demanded` is whether some configuration with keys was in force, as the database remembers it.
    """

    def __init__(
        self,
        store: KeyStore,
        on_change: Callable[[Mapping[str, StoredKey], str], None],
        used: Callable[[], set[str]],
        log: Log,
        *,
        every: float = EVERY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`on_change` hears of the keys in force by id, and the id of a request that is to be spared.

        `used` gives, once, the ids of the keys that were used since it was last asked.
        """
        self.store = store
        self.all: dict[str, StoredKey] = {}
        self.in_force: dict[str, StoredKey] = {}
        self._on_change = on_change
        self._used = used
        self._log = log
        self._every = every
        self._clock = clock
        self.demanded = False
        self._wanted: bool | None = None
        self._number: int | None = None
        self._noted: dict[str, int] = {}
        self._trouble = False
        self._watching: asyncio.Task[None] | None = None

    @property
    def known(self) -> bool:
        """Whether the database could be read at all."""
        return self._number is not None

    async def open(self) -> None:
        """Read the keys, and look for changes from now on: another process may make the first key."""
        await self._look()
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    def demand(self, demanded: bool) -> None:
        """Have the database remember, with the next look, whether keys are demanded."""
        self._wanted = demanded

    async def refresh(self, sparing: str = "") -> None:
        """Read all keys again; what has changed holds when this returns."""
        number, keys = await self.store.all()
        demanded = await self.store.demanded()
        first = self._number is None or demanded != self.demanded
        self.demanded = demanded
        self._number, self.all = number, {key.id: key for key in keys}
        self._settle(sparing, first)

    async def aclose(self) -> None:
        """Look no more, and note what was used."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
            if not self._trouble:  # with nothing to note it would seem to be over
                await self._try(self._note_use)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            self._settle()  # some may have expired, whether or not the database is there
            await self._look()

    async def _look(self) -> None:
        if await self._try(self._catch_up):
            await self._try(self._note_use)

    async def _try(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Whether the database did its part; its absence is told once, and so is its return."""
        try:
            async with asyncio.timeout(max(self._every, 1.0)):
                await work()
        except (ToolgateError, TimeoutError) as error:
            if not self._trouble:
                said = str(error) or "the database does not answer"
                self._log.warning("keys", problem=said, consequence="the keys last read stay in force")
            self._trouble = True
            return False
        if self._trouble:
            self._log.info("keys", problem="the database is back")
        self._trouble = False
        return True

    async def _catch_up(self) -> None:
        if self._wanted is not None:
            await self.store.demand(self._wanted)
            self._wanted = None
        if await self.store.number() != self._number:
            await self.refresh()

    async def _note_use(self) -> None:
        now = int(self._clock())
        used = {id: now for id in self._used() if now - self._noted.get(id, 0) >= _USE_NOTED}
        if used:
            self._noted |= used
            await self.store.touch(used)

    def _settle(self, sparing: str = "", first: bool = False) -> None:
        """Put into force what is neither revoked nor expired, without former secrets whose time is over."""
        now = self._clock()
        good = {id: _without_past(key, now) for id, key in self.all.items() if is_in_force(key, now)}
        if first or good != self.in_force:
            self.in_force = good
            self._on_change(good, sparing)


def is_in_force(key: StoredKey, now: float) -> bool:
    """Whether the key is neither revoked nor expired."""
    return key.revoked is None and (key.expires is None or key.expires > now)


def _without_past(key: StoredKey, now: float) -> StoredKey:
    return key if is_former_good(key, now) or key.former is None else replace(key, former=None, former_until=None)


def is_former_good(key: StoredKey, now: float) -> bool:
    """Whether the secret that the key had before still opens what the key does."""
    return is_in_force(key, now) and key.former_until is not None and key.former_until > now
