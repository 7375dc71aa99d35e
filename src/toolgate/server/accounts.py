"""What keys may use and have used, and requests that are carried out once: wrapped around the endpoints of a site.

Counters, purse and kept answers outlive a configuration; which limits there are is the configuration's.
"""

from collections.abc import Sequence

from toolgate.config import Config
from toolgate.config.settings import Key
from toolgate.engine.limits import Price
from toolgate.limits import Budget, Counters, KeyLimits, LocalCounters, Purse
from toolgate.server.app import Endpoint
from toolgate.server.idempotency import Idempotency
from toolgate.server.limits import KeyList, Limits
from toolgate.server.supervisor.foreman import Foreman
from toolgate.storage.database import Database
from toolgate.storage.idempotency import IdempotencyStore
from toolgate.storage.spending import SpendingStore
from toolgate.telemetry.traced import Traced


class Accounts:
    """The accounts of all keys."""

    def __init__(self, config: Config, database: Database, traced: Traced, foreman: Foreman | None = None) -> None:
        self._counters = _counters(config, traced, foreman)
        self._purse = Purse(SpendingStore(database))
        self._idempotency = Idempotency(IdempotencyStore(database))

    def limits(self, config: Config) -> Limits:
        """The limits of this configuration's keys."""
        prices = {name: Price(model.price.input, model.price.output) for name, model in config.by_name().items()}
        inputs, outputs = [one.input for one in prices.values()], [one.output for one in prices.values()]
        dearest = Price(max(inputs, default=0.0), max(outputs, default=0.0))
        return Limits(
            {key.name: _limits(key) for key in config.keys},
            self._counters,
            self._purse,
            lambda name: prices.get(name, Price()),
            dearest,
        )

    def around(self, endpoints: Sequence[Endpoint], config: Config, limits: Limits) -> list[Endpoint]:
        """The endpoints within their limits, each carried out once for each idempotency key, and the list of keys."""
        listed = KeyList(config.keys, {key.name: _limits(key) for key in config.keys}, self._purse).endpoints()
        return limits.around(self._idempotency.around([*endpoints, *listed]))

    async def aclose(self) -> None:
        """Write down what is not yet."""
        await self._purse.aclose()
        await self._counters.aclose()


def _limits(key: Key) -> KeyLimits:
    budget = Budget(key.budget.amount, key.budget.period) if key.budget else None
    return KeyLimits(key.requests_per_minute, key.tokens_per_minute, key.concurrency, budget)


def _counters(config: Config, traced: Traced, foreman: Foreman | None) -> Counters:
    """Shared as widely as there is a means: by all nodes, by the workers of this machine, or by nobody."""
    behind = foreman.counters if foreman else LocalCounters()
    if config.redis is None:
        return behind
    from toolgate.limits.shared import SharedCounters

    def complain(what: str) -> None:
        traced.log.warning("redis", problem=what)

    return SharedCounters(config.redis.reveal(), behind, on_trouble=complain)
