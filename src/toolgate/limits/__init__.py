"""How much one key may use, and how that is counted. Knows numbers and time; it must not know HTTP, models or storage."""

from toolgate.limits.budgets import Budgets
from toolgate.limits.counters import Counters, Hold, LocalCounters, Meter, Taken
from toolgate.limits.policy import Budget, KeyLimits, Period
from toolgate.limits.purse import Held, Purse
from toolgate.limits.vault import Vault

__all__ = [
    "Budget",
    "Budgets",
    "Counters",
    "Held",
    "Hold",
    "KeyLimits",
    "LocalCounters",
    "Meter",
    "Period",
    "Purse",
    "Taken",
    "Vault",
]
