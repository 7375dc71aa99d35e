"""Add up the usage of all upstreams that are asked while one request is served."""

from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

from toolgate.conversation.events import Usage


class OpenUsageStep(Protocol):
    """A request to an upstream whose usage is not certain yet."""

    # The name of the configured model that was asked, which may be a fallback of the one that the client named.
    model: str

    async def count(self) -> Usage | None:
        """Count its usage from what was sent and received; never less than the upstream reported."""

    def count_roughly(self) -> Usage | None:
        """Estimate its usage by the length of the texts, when there is no time to count."""


class UsageTally(Struct, eq=False):
    """Adds up usage step by step.

    Every request to an upstream is a step: those of a run with tools, corrections, attempts that failed. A step is open
    until its usage is certain; `close_all` counts those that ended before their upstream reported it.
    It is a struct because each request makes one, and a struct is made without running Python code.
    """

    # The sum of what is certain.
    usage: Usage | None = None
    # The model of all of it, and once there are several, the same by model: each has its own price. "" is not known.
    model: str = ""
    by_models: dict[str, Usage] | None = None
    # The steps whose usage is not certain yet; the model that is asked adds its step here.
    open_steps: list[OpenUsageStep] = []
    # How many questions were sent to models that editors lend, each of which may cost a person something.
    lent: int = 0
    # Called with the usage and the model of each step when it becomes certain.
    listener: Callable[[Usage, str], None] | None = None
    # Returns, as text, what a run may use no more of: the budget of its key; None while something is left.
    used_up: Callable[[], str | None] | None = None

    @property
    def by_model(self) -> Mapping[str, Usage]:
        """The sum by the model that was asked."""
        return self.by_models or ({} if self.usage is None else {self.model: self.usage})

    def close(self, step: OpenUsageStep, usage: Usage | None) -> None:
        """Add the usage of a step and close it; a second call changes nothing."""
        if step in self.open_steps:
            self.open_steps.remove(step)
            self.add(usage, step.model)

    def add(self, usage: Usage | None, model: str = "") -> None:
        """Add usage of a model."""
        if usage is None:
            return
        if self.usage is None:  # most requests ask one model once: they need no dictionary
            self.usage, self.model = usage, model
        else:
            by_models = self.by_models = self.by_models or {self.model: self.usage}
            before = by_models.get(model)
            by_models[model] = usage if before is None else before + usage
            self.usage += usage
        if self.listener is not None:
            self.listener(usage, model)

    async def close_all(self) -> Usage | None:
        """Close all steps and return the sum; steps that are left when this is cancelled are estimated."""
        try:
            while self.open_steps:
                self.close(self.open_steps[0], await self.open_steps[0].count())
        finally:
            for step in tuple(self.open_steps):
                self.close(step, step.count_roughly())
        return self.usage
