"""Sharing requests among deployments of one model by weight."""

from collections.abc import Sequence

from msgspec import Struct

from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import Answer, Model
from toolgate.upstreams.wrappers.breaker import Breaker
from toolgate.upstreams.wrappers.fallback import first_answer


class Deployment(Struct, frozen=True):
    """One place where a model runs, its share of the requests and the breaker that knows whether it is well."""

    model: Model
    weight: float = 1
    breaker: Breaker | None = None

    @property
    def ready(self) -> bool:
        """Whether a request sent here now would be tried."""
        return self.breaker is None or self.breaker.ready


class Balanced:
    """Deployments taken in turn, smoothly by weight; those with an open circuit are passed over, failures move on."""

    def __init__(self, deployments: Sequence[Deployment]) -> None:
        self._deployments = tuple(deployments)
        self._credits = [0.0] * len(self._deployments)

    async def ask(self, request: ModelRequest) -> Answer:
        """The answer of the deployment whose turn it is, or of the next that begins one."""
        return await first_answer([self._deployments[place].model for place in self._turn()], request)

    def _turn(self) -> list[int]:
        """The places in the order of asking; everybody earns by weight, and who comes first pays for all."""
        deployments, credits = self._deployments, self._credits
        places = [place for place, deployment in enumerate(deployments) if deployment.ready]
        places = places or list(range(len(deployments)))  # nobody is well: let their breakers say when they may be
        for place in places:
            credits[place] += deployments[place].weight
        places.sort(key=lambda place: -credits[place])
        credits[places[0]] -= sum([deployments[place].weight for place in places])
        return places
