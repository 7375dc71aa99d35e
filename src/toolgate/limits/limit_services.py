"""Compose the limits of all keys: counters, budgets, admission and idempotency, wrapped around endpoints.

Counters, budgets and stored responses outlive a configuration; the limits themselves belong to it.
"""

from collections.abc import Iterable, Sequence

from toolgate.config import Config
from toolgate.config.settings import KeySettings
from toolgate.conversation.errors import GatewayOverloaded
from toolgate.engine.run_limits import Price
from toolgate.http.application import HttpRoute
from toolgate.limits import Budgets, Counters, KeyBudget, KeyLimits, LocalBudgets, LocalCounters, SharedBudgets
from toolgate.limits.admission import AdmissionControl
from toolgate.limits.idempotency import Idempotency
from toolgate.limits.prices import prices_by_name, reservation_prices
from toolgate.runs.node_liveness import is_gone, this_node
from toolgate.storage.budget_reservations import BudgetReservationStore
from toolgate.storage.database import Database
from toolgate.storage.idempotency import IdempotencyStore
from toolgate.storage.spending import SpendingStore
from toolgate.telemetry.request_log import Telemetry


class LimitServices:
    """The limits of all keys, and what they have used."""

    def __init__(
        self, config: Config, database: Database, telemetry: Telemetry, shared_counters: Counters | None = None
    ) -> None:
        """`shared_counters` are those of all workers of this machine, if there are several."""
        self._log = telemetry.log
        self._counters = _counters(config, telemetry, shared_counters)
        local = LocalBudgets(SpendingStore(database))
        # Other processes may spend from the same budgets: other workers, or nodes with the same database.
        is_alone = shared_counters is None and config.redis is None and config.storage.reveal().startswith("sqlite:")
        self.budgets: Budgets = local if is_alone else SharedBudgets(local, BudgetReservationStore(database))
        self._idempotency = Idempotency(IdempotencyStore(database, is_gone=is_gone), name=this_node)
        self._stored: dict[str, KeyLimits] = {}  # those of the keys in the database
        self._configured: dict[str, KeyLimits] = {}
        self._limits: AdmissionControl | None = None

    def admission(self, config: Config) -> AdmissionControl:
        """Build the admission control of a configuration; `use` puts it into force."""
        inputs, outputs = [one.price.input for one in config.models], [one.price.output for one in config.models]
        highest = Price(max(inputs, default=0.0), max(outputs, default=0.0))
        return AdmissionControl(
            self._stored | _configured(config),
            self._counters,
            self.budgets,
            prices_by_name(config),
            highest,
            reservation_prices(config),
        )

    def use(self, limits: AdmissionControl, config: Config) -> None:
        """Put the limits of a configuration into force; changes of the database's keys reach them from now on."""
        self._limits, self._configured = limits, _configured(config)
        limits.set_limits(self._stored | self._configured)

    def use_stored_keys(self, keys: Iterable[KeySettings]) -> None:
        """Replace the limits of the database's keys; a key of the configuration takes precedence over one of its name."""
        self._stored = {key.name: _limits(key) for key in keys}
        if self._limits is not None:
            self._limits.set_limits(self._stored | self._configured)

    def wrap(self, endpoints: Sequence[HttpRoute], limits: AdmissionControl) -> list[HttpRoute]:
        """Return the endpoints with limits, and with one execution for each idempotency key."""
        # Limits are outside, so that a replayed response counts as a request too.
        return limits.wrap(self._idempotency.wrap(endpoints))

    async def aclose(self) -> None:
        """Write what was spent; what cannot be written is lost, and that is logged."""
        try:
            await self.budgets.aclose()
        except GatewayOverloaded as error:
            self._log.error("spending", problem=f"the last spending could not be written: {error.message}")
        await self._counters.aclose()


def _configured(config: Config) -> dict[str, KeyLimits]:
    return {key.name: _limits(key) for key in config.keys}


def _limits(key: KeySettings) -> KeyLimits:
    budget = KeyBudget(key.budget.amount, key.budget.period) if key.budget else None
    return KeyLimits(key.requests_per_minute, key.tokens_per_minute, key.concurrency, budget)


def _counters(config: Config, telemetry: Telemetry, shared: Counters | None) -> Counters:
    """Share counters through Redis if there is one, else between the workers of this machine, if there are several."""
    fallback = shared or LocalCounters()
    if config.redis is None:
        return fallback
    # Imported here: the package `redis` is optional.
    from toolgate.limits.redis_counters import RedisCounters

    def warn(problem: str) -> None:
        telemetry.log.warning("redis", problem=problem)

    def note(state: str) -> None:
        telemetry.log.info("redis", state=state)

    return RedisCounters(config.redis.reveal(), fallback, on_error=warn, on_recovery=note)
