"""Balance requests among deployments of one model by weight."""

from collections.abc import Sequence

from msgspec import Struct

from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import Model, ModelStream
from toolgate.upstreams.wrappers.breaker import CircuitBreaker
from toolgate.upstreams.wrappers.fallback import first_answer


class Deployment(Struct, frozen=True):
    """One deployment of a model, its weight, its circuit breaker, and the name of its upstream."""

    model: Model
    weight: float = 1
    breaker: CircuitBreaker | None = None
    name: str = "an upstream"

    @property
    def ready(self) -> bool:
        """Whether its circuit lets a request through."""
        return self.breaker is None or self.breaker.ready


class BalancedModel:
    """Deployments that take turns by weight; an open circuit is skipped, and after a failure the next one is tried."""

    def __init__(self, deployments: Sequence[Deployment]) -> None:
        self._deployments = tuple(deployments)
        self._credits = [0.0] * len(self._deployments)

    async def ask(self, request: ModelRequest) -> ModelStream:
        """Return the response of the deployment whose turn it is, or of the next that begins one."""
        # Each gains credit by its weight, the one with the most is asked first, and it pays for all. With the weights 2
        # and 1 that gives a b a, a b a: shares are exact, and a heavy deployment gets no bursts (nginx does the same).
        deployments, credits = self._deployments, self._credits
        places = [place for place, deployment in enumerate(deployments) if deployment.ready]
        places = places or list(range(len(deployments)))  # none is ready: their errors have a Retry-After
        for place in places:
            credits[place] += deployments[place].weight
        places.sort(key=lambda place: -credits[place])
        credits[places[0]] -= sum([deployments[place].weight for place in places])
        return await first_answer([(deployments[place].name, deployments[place].model) for place in places], request)
