"""What keys may use and have used, and requests that are carried out once: wrapped around the endpoints of a site.

Counters, purse and kept answers outlive a configuration; which limits there are is the configuration's.
"""

from collections.abc import Iterable, Sequence

from toolgate.config import Config
from toolgate.config.settings import Key
from toolgate.conversation.errors import Overloaded
from toolgate.engine.limits import Price
from toolgate.limits import Budget, Budgets, Counters, KeyLimits, LocalCounters, Purse, Vault
from toolgate.runs.nodes import is_gone, this_node
from toolgate.server.app import Endpoint
from toolgate.server.callers.idempotency import Idempotency
from toolgate.server.callers.limits import Limits
from toolgate.server.models.prices import price_table
from toolgate.server.supervisor.foreman import Foreman
from toolgate.storage.database import Database
from toolgate.storage.holds import BudgetHolds
from toolgate.storage.idempotency import IdempotencyStore
from toolgate.storage.spending import SpendingStore
from toolgate.telemetry.traced import Traced


class Accounts:
    """The accounts of all keys."""

    def __init__(self, config: Config, database: Database, traced: Traced, foreman: Foreman | None = None) -> None:
        self._log = traced.log
        self._counters = _counters(config, traced, foreman)
        self.purse = _purse(config, database, foreman)
        self._idempotency = Idempotency(IdempotencyStore(database, is_gone=is_gone), name=this_node)
        self._held: dict[str, KeyLimits] = {}
        self._configured: dict[str, KeyLimits] = {}
        self._limits: Limits | None = None

    def limits(self, config: Config) -> Limits:
        """The limits of this configuration's keys, for `use`."""
        inputs, outputs = [one.price.input for one in config.models], [one.price.output for one in config.models]
        dearest = Price(max(inputs, default=0.0), max(outputs, default=0.0))
        return Limits(
            self._held | _configured(config),
            self._counters,
            self.purse,
            price_table(config),
            dearest,
        )

    def use(self, limits: Limits, config: Config) -> None:
        """From now on these limits, of this configuration, are in force and follow the keys of the database."""
        self._limits, self._configured = limits, _configured(config)
        limits.renew(self._held | self._configured)

    def hold(self, keys: Iterable[Key]) -> None:
        """From now on these are the keys of the database; where the configuration has the name, it has the word."""
        self._held = {key.name: _limits(key) for key in keys}
        if self._limits is not None:
            self._limits.renew(self._held | self._configured)

    def around(self, endpoints: Sequence[Endpoint], limits: Limits) -> list[Endpoint]:
        """The endpoints within their limits, each carried out once for each idempotency key."""
        return limits.around(self._idempotency.around(endpoints))

    async def aclose(self) -> None:
        """Write down what is not yet; what cannot be is lost, and the log says so."""
        try:
            await self.purse.aclose()
        except Overloaded as error:
            self._log.error("spending", problem=f"what was spent last could not be written down: {error.message}")
        await self._counters.aclose()


def _configured(config: Config) -> dict[str, KeyLimits]:
    return {key.name: _limits(key) for key in config.keys}


def _limits(key: Key) -> KeyLimits:
    budget = Budget(key.budget.amount, key.budget.period) if key.budget else None
    return KeyLimits(key.requests_per_minute, key.tokens_per_minute, key.concurrency, budget)


def _purse(config: Config, database: Database, foreman: Foreman | None) -> Budgets:
    """In the database, where others may spend from the same budgets; in this process, where nobody else does."""
    purse = Purse(SpendingStore(database))
    alone = config.redis is None and foreman is None and config.storage.reveal().startswith("sqlite:")
    return purse if alone else Vault(purse, BudgetHolds(database))


def _counters(config: Config, traced: Traced, foreman: Foreman | None) -> Counters:
    """Shared as widely as there is a means: by all nodes, by the workers of this machine, or by nobody."""
    behind = foreman.counters if foreman else LocalCounters()
    if config.redis is None:
        return behind
    from toolgate.limits.shared import SharedCounters

    def complain(what: str) -> None:
        traced.log.warning("redis", problem=what)

    return SharedCounters(config.redis.reveal(), behind, on_trouble=complain)
