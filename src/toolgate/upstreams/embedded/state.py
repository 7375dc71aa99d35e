"""How the embedded model is doing, for those who ask: the log, `/readyz`, the start banner, the commands."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct

Phase: TypeAlias = Literal["asleep", "fetching", "checking", "loading", "ready", "failed", "closed"]


class State(Struct, frozen=True):
    """What it is doing, how far that has come in percent, and the same in words for a person."""

    phase: Phase
    model: str
    message: str
    percent: float | None = None
    pid: int | None = None
    waiting: int = 0

    @property
    def ready(self) -> bool:
        """Whether it answers now."""
        return self.phase == "ready"


Tell: TypeAlias = Callable[[State], None]
