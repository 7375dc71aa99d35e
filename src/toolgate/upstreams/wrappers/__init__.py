"""Models around models: each adds one behaviour and keeps the Protocol, so that `server/build.py` can stack them.

Everything here happens before the client has seen a byte, for `ask` returns only once the first piece of an answer has
arrived: neither a retry nor a fallback can say anything twice. Nothing here knows a wire format or a socket.

From the outside in, a stack that holds together is
`Fallback([Balanced([Deployment(breaker := Breaker(Retrying(Limited(Named(Counted(model))))), weight, breaker), …]), …])`.
The breaker stands outside the retries, so that a request counts once however often it was tried.
"""

from toolgate.upstreams.wrappers.balanced import Balanced, Deployment
from toolgate.upstreams.wrappers.breaker import Breaker
from toolgate.upstreams.wrappers.counted import Counted
from toolgate.upstreams.wrappers.fallback import Fallback
from toolgate.upstreams.wrappers.limited import Limited
from toolgate.upstreams.wrappers.named import Named
from toolgate.upstreams.wrappers.retry import RetryBudget, Retrying

__all__ = ["Balanced", "Breaker", "Counted", "Deployment", "Fallback", "Limited", "Named", "RetryBudget", "Retrying"]
