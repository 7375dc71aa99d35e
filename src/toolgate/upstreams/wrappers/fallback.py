"""Asking somebody else: models in order, until one begins to answer."""

from collections.abc import Iterable, Sequence

from toolgate.conversation.errors import Overloaded, Rejected, ToolgateError, UpstreamFault
from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import Answer, Model
from toolgate.upstreams.wrappers.answers import noted

TOO_LONG = "context_length_exceeded"


class Fallback:
    """A chain of models: the next is asked when one cannot be reached, is full, times out or makes no sense.

    A request that was refused for what it says is not tried elsewhere, save one that is too long for this model, if
    `when_too_long` says so.
    """

    def __init__(self, models: Sequence[Model], *, when_too_long: bool = False) -> None:
        self._models = tuple(models)
        self._when_too_long = when_too_long

    async def ask(self, request: ModelRequest) -> Answer:
        """The answer of the first model that begins one."""
        return await first_answer(self._models, request, self._when_too_long)


async def first_answer(models: Iterable[Model], request: ModelRequest, when_too_long: bool = False) -> Answer:
    """The answer of the first model that begins one, with a warning if it was not the first; else the last fault."""
    faults: list[ToolgateError] = []
    for model in models:
        try:
            answer = await model.ask(request)
        except (UpstreamFault, Overloaded) as fault:
            if isinstance(fault, Rejected) and not (when_too_long and fault.code == TOO_LONG):
                raise
            faults.append(fault)
        else:
            return noted(answer, _amends(answer.upstream, faults)) if faults else answer
    if len(faults) == 1:
        raise faults[0]
    raise _summary(faults) from faults[-1]


def _amends(upstream: str, faults: list[ToolgateError]) -> str:
    codes = ", ".join([fault.code for fault in faults])
    return f"{upstream} answered after {len(faults)} before it had failed ({codes})"


def _summary(faults: list[ToolgateError]) -> ToolgateError:
    """The last fault; its message says how many there were, and the shortest wait that any of them named is kept."""
    last = faults[-1]
    waits = [fault.retry_after for fault in faults if fault.retry_after is not None]
    summary = type(last)(
        f"None of the {len(faults)} models that were tried answered; the last said: {last.message}",
        param=last.param,
        code=last.code,
        retry_after=min(waits, default=None),
        status=last.status,
    )
    if isinstance(summary, UpstreamFault) and isinstance(last, UpstreamFault):
        summary.upstream_status = last.upstream_status
    return summary
