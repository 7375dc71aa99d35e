"""The state of the local model, for the log, `/readyz`, the start banner and commands."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct

Phase: TypeAlias = Literal["asleep", "fetching", "checking", "loading", "ready", "failed", "closed"]


class LocalModelState(Struct, frozen=True):
    """The phase, its progress in percent, and a text for people."""

    phase: Phase
    model: str
    message: str
    percent: float | None = None
    pid: int | None = None
    waiting: int = 0

    @property
    def ready(self) -> bool:
        """Whether it can answer now."""
        return self.phase == "ready"


OnState: TypeAlias = Callable[[LocalModelState], None]
