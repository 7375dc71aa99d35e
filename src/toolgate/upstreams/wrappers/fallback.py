"""Try models in order until one begins to respond."""

from collections.abc import Iterable, Sequence

from toolgate.conversation.errors import GatewayOverloaded, ToolgateError, UpstreamError, UpstreamRejected
from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import Model, ModelStream
from toolgate.upstreams.wrapped_streams import with_warning

TOO_LONG = "context_length_exceeded"


class FallbackModel:
    """A chain of models: the next is tried when one cannot be reached, is full, times out or sends garbage.

    A rejected request is not tried elsewhere, except if the upstream does not have the model (404), or if the request is
    too long for this model and `when_too_long` is set.
    """

    def __init__(self, models: Sequence[Model], names: Sequence[str] = (), *, when_too_long: bool = False) -> None:
        """`names` are those of the models, for the warning that one has failed."""
        named = names or [f"model {number}" for number in range(1, len(models) + 1)]
        self._models = tuple(zip(named, models, strict=True))
        self._when_too_long = when_too_long

    async def ask(self, request: ModelRequest) -> ModelStream:
        """Return the response of the first model that begins one."""
        return await first_answer(self._models, request, self._when_too_long)


async def first_answer(
    models: Iterable[tuple[str, Model]], request: ModelRequest, when_too_long: bool = False
) -> ModelStream:
    """Return the response of the first model that begins one, with a warning if others failed before; else raise."""
    faults: list[ToolgateError] = []
    failed: list[str] = []
    for name, model in models:
        try:
            answer = await model.ask(request)
        except (UpstreamError, GatewayOverloaded) as fault:
            # A 404 is about the configured model or address, which the client did not choose.
            may_fit_elsewhere = fault.status == 404 or (when_too_long and fault.code == TOO_LONG)
            if isinstance(fault, UpstreamRejected) and not may_fit_elsewhere:
                raise
            faults.append(fault)
            failed.append(f"{name} failed ({fault.code})")
        else:
            return with_warning(answer, "; ".join([*failed, f"{name} answered"])) if faults else answer
    try:
        if len(faults) == 1:
            raise faults[0]
        raise _summary(faults) from faults[-1]  # it gets no name here, for the same reason
    finally:
        faults.clear()  # they refer to this frame: a cycle would keep the request in memory


def _summary(faults: list[ToolgateError]) -> ToolgateError:
    """Return the last fault with the number of faults in its message and the shortest wait of them all."""
    # One model that is ready again is enough, so that the shortest wait counts.
    last = faults[-1]
    waits = [fault.retry_after for fault in faults if fault.retry_after is not None]
    summary = type(last)(
        f"None of the {len(faults)} models that were tried answered; the last said: {last.message}",
        param=last.param,
        code=last.code,
        retry_after=min(waits, default=None),
        status=last.status,
    )
    if isinstance(summary, UpstreamError) and isinstance(last, UpstreamError):
        summary.upstream_status = last.upstream_status
    return summary
