"""Limit and count what each key uses: requests, tokens, concurrency and spending."""

from toolgate.limits.budgets import Budgets
from toolgate.limits.counters import Counters, LimitState, LocalCounters, RateLimitReservation, RateLimitResult
from toolgate.limits.local_budgets import BudgetReservation, LocalBudgets
from toolgate.limits.policy import KeyBudget, KeyLimits, Period
from toolgate.limits.shared_budgets import SharedBudgets

__all__ = [
    "BudgetReservation",
    "Budgets",
    "Counters",
    "KeyBudget",
    "KeyLimits",
    "LimitState",
    "LocalBudgets",
    "LocalCounters",
    "Period",
    "RateLimitReservation",
    "RateLimitResult",
    "SharedBudgets",
]
