"""Wrap models: each wrapper adds one behaviour and is a `Model` itself, so that `app/models.py` can stack them.

Everything here happens before the client receives a byte, because `ask` returns only when the first event has arrived:
neither a retry nor a fallback can send anything twice. Nothing here knows a wire format or a socket.

From the outside in, a stack that holds together is FallbackModel, BalancedModel over its Deployments, CircuitBreaker,
RetryingModel, ConcurrencyLimitedModel, ToolNameCorrectingModel, UsageCountingModel and then the model itself.
The breaker stands outside the retries, so that a request counts once however often it was tried.
"""

from toolgate.upstreams.wrappers.breaker import CircuitBreaker
from toolgate.upstreams.wrappers.concurrency_limit import ConcurrencyLimitedModel
from toolgate.upstreams.wrappers.fallback import FallbackModel
from toolgate.upstreams.wrappers.load_balancing import BalancedModel, Deployment
from toolgate.upstreams.wrappers.retry import RetryBudget, RetryingModel
from toolgate.upstreams.wrappers.tool_name_correction import ToolNameCorrectingModel
from toolgate.upstreams.wrappers.usage_counting import UsageCountingModel

__all__ = [
    "BalancedModel",
    "CircuitBreaker",
    "ConcurrencyLimitedModel",
    "Deployment",
    "FallbackModel",
    "RetryBudget",
    "RetryingModel",
    "ToolNameCorrectingModel",
    "UsageCountingModel",
]
