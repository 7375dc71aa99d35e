"""How much one key may use, and how that is counted. Knows numbers and time; it must not know HTTP, models or storage."""

from toolgate.limits.counters import Counters, Hold, LocalCounters, Meter, Taken
from toolgate.limits.policy import Budget, KeyLimits, Period
from toolgate.limits.purse import Purse

__all__ = ["Budget", "Counters", "Hold", "KeyLimits", "LocalCounters", "Meter", "Period", "Purse", "Taken"]
