"""What the engine asks of the world. Each role is a small Protocol, so that behaviour is added by wrapping."""

from collections.abc import AsyncIterator
from typing import Any, Protocol, runtime_checkable

from toolgate.conversation.events import ModelResponse, StepEvent
from toolgate.conversation.request import ModelRequest


class Answer(Protocol):
    """What a model is saying, read once and to its end, or closed."""

    upstream: str
    """Who answered, for the log."""

    warnings: tuple[str, ...]
    """What the upstream could not be told, in words for a person."""

    def events(self) -> AsyncIterator[list[StepEvent]]:
        """The step's events in batches, as the network delivered them; raises UpstreamFault when it breaks off."""

    async def aclose(self) -> None:
        """Stop listening; an unfinished answer is cancelled at the upstream."""


class Model(Protocol):
    """Someone to ask."""

    async def ask(self, request: ModelRequest) -> Answer:
        """The answer, once its first piece has arrived: until then a failure is raised and another may be asked."""


class Retold(Protocol):
    """An answer as it passes to a client of its own dialect, with what was heard while it passed."""

    response: ModelResponse | None
    """Reason, usage and calls, once the answer is complete; parts are not kept."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The frames, in batches."""


@runtime_checkable
class Relayable(Protocol):
    """An answer that can be passed on as it is to a client of the same dialect, unknown fields and all."""

    dialect: str

    def retell(self, reply: Any) -> Retold:
        """The streamed answer as frames of its dialect; `reply` is the dialect's `Reply`."""

    def retell_whole(self, reply: Any) -> tuple[dict[str, Any], ModelResponse]:
        """The whole answer as a body of its dialect, and what it says."""
