"""Define the ports of the engine: models, streams, tools and the journal of a run.

Each role is a small Protocol, so that behaviour is added by wrapping.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from toolgate.conversation.errors import ToolgateError
from toolgate.conversation.events import FinishReason, ModelResponse, StepEvent, ToolProgress, Usage
from toolgate.conversation.message import ApprovalRequestPart, Message, Part, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest, ToolDef
from toolgate.conversation.tool_name_matching import CallNameCorrector

# What has become of a call of the server's tools; the timeline of a run shows it.
CallOutcome: TypeAlias = Literal[
    "running", "waiting", "completed", "failed", "denied", "timeout", "cancelled", "unknown"
]

_Item = TypeVar("_Item", covariant=True)


class ClosableIterator(Protocol[_Item]):
    """An async iterator that can be closed before its end, such as an async generator."""

    def __aiter__(self) -> AsyncIterator[_Item]:
        """Return itself."""

    def __anext__(self) -> Awaitable[_Item]:
        """Return the next item, or raise StopAsyncIteration."""

    def aclose(self) -> Awaitable[object]:
        """Stop the iteration and release what it holds."""


class ModelStream(Protocol):
    """The streamed answer of a model, which is read once to its end, or closed."""

    # The name of the upstream that answers, for the log.
    upstream: str

    # The wire format of the answer, if it can be relayed in it: then the stream is a `RelayableStream` too.
    dialect: str | None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What could not be sent to the upstream, and what was corrected in its answer, as text; may grow."""

    # The answer has arrived completely: reading it can neither wait nor fail any more.
    whole: bool

    def events(self) -> "ClosableIterator[list[StepEvent]]":
        """Yield the step's events in batches, as the network delivered them; raise UpstreamError when it breaks off.

        A batch may be empty, because a wrapper may hold all of its events back.
        """

    async def aclose(self) -> None:
        """Stop reading; an unfinished answer is cancelled at the upstream."""


class Model(Protocol):
    """A model that answers requests."""

    async def ask(self, request: ModelRequest) -> ModelStream:
        """Return the answer once its first event has arrived; an error before that is raised, so another may be asked."""


class RelayStats(Protocol):
    """What is known of an answer that is relayed."""

    done: bool
    usage: Usage | None
    names: CallNameCorrector

    @property
    def reason(self) -> FinishReason | None:
        """The finish reason, once the answer has ended."""

    @property
    def calls(self) -> int:
        """The number of tool calls so far."""

    def received(self) -> list[Part]:
        """Return the parts so far, for counting their tokens."""

    def error(self, error: ToolgateError) -> bytes:
        """Encode the error with which the stream ends here."""


class RelayedStream(Protocol):
    """A streamed answer that is relayed to a client of its own dialect."""

    @property
    def relay(self) -> RelayStats:
        """What is known of the answer so far."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Iterate over the frames, in batches as the network delivered them."""


class RelayableStream(ModelStream, Protocol):
    """An answer that can be relayed to a client of its own dialect with all its unknown fields.

    `metadata` is the `ResponseMetadata` of the dialects: the id, time and model that the answer shows.
    """

    def relay_stream(self, metadata: Any) -> RelayedStream:
        """Return the streamed answer as frames of its dialect."""

    async def relay_whole(self, metadata: Any, usage: Usage | None = None) -> tuple[bytes, ModelResponse]:
        """Return the whole answer as a body of its dialect, and decoded; `usage` is used where it reports none."""


class CallTraits(Struct, frozen=True):
    """How a run must treat the calls of one tool; `RunTools.rules` decides it.

    `may_wait`: the call may need approval, so the client is shown it only when that is known.
    `repeatable`: running the call twice has the same effect as running it once, so it may run again after a crash.
    `read_only`: the call has no effect. The defaults are those of a tool that does not exist: nothing runs at all.
    """

    may_wait: bool = False
    repeatable: bool = True
    read_only: bool = True

    @property
    def needs_record(self) -> bool:
        """Whether the run must be stored around the call: asking the model again would lose an effect or an approval."""
        return self.may_wait or not self.read_only


class RunTools(Protocol):
    """The server's tools as one run may use them."""

    def offered(self) -> tuple[ToolDef, ...]:
        """Return the tools that the model is offered now; they may grow during the run, and their order never changes."""

    def owns(self, name: str) -> bool:
        """Return whether the server runs calls of this name."""

    def rules(self, name: str) -> CallTraits:
        """Decide how the run must treat calls of this tool."""

    async def run(
        self, call: ToolCall, report: Callable[[ToolProgress], None], starting: Callable[[], Awaitable[None]]
    ) -> ToolResult | ApprovalRequestPart:
        """Run the call and return its result, which may be an error, or the approval request that it waits for.

        `starting` is awaited when the call is permitted and its effects are about to happen.
        """

    def waited_seconds(self) -> float:
        """Return the seconds so far in which the run waited for approvals."""


class RunObserver(Protocol):
    """Is notified of every step and call of a run as it goes on, for the timeline of the run; it never fails."""

    def step_started(self, offered: Sequence[str]) -> None:
        """The model is about to be asked, and offered these tools of the server."""

    def step_ended(self, usage: Usage | None, calls: bool) -> None:
        """The model has answered, with or without calls."""

    def call_started(self, call: ToolCall) -> None:
        """A call of the server's tools is about to be worked on."""

    def call_refused(self, call: ToolCall, outcome: CallOutcome) -> None:
        """A call of the server's tools is not run; its outcome is unknown if an earlier attempt had started it."""

    def tool_started(self, call: str) -> None:
        """The tool of the call of this id is about to run: a person has approved it, if that was needed."""

    def call_ended(self, call: str, outcome: CallOutcome) -> None:
        """The call of this id has ended, or waits for a person when the run ends."""


class UnobservedRun:
    """Notes nothing (`RunObserver`)."""

    def step_started(self, offered: Sequence[str]) -> None:
        pass

    def step_ended(self, usage: Usage | None, calls: bool) -> None:
        pass

    def call_started(self, call: ToolCall) -> None:
        pass

    def call_refused(self, call: ToolCall, outcome: CallOutcome) -> None:
        pass

    def tool_started(self, call: str) -> None:
        pass

    def call_ended(self, call: str, outcome: CallOutcome) -> None:
        pass


class RunJournal(Protocol):
    """Records what a run did that its client does not see, so that the run can be resumed."""

    async def progressed(self, messages: Sequence[Message]) -> None:
        """Record the messages of the run so far; if it stops here, the same request resumes from them."""

    async def answered(self, message: Message, usage: Usage | None, by_model: Mapping[str, Usage]) -> None:
        """Record an answer of the model whose calls are about to be run, and its usage.

        `by_model` is the usage of the whole run so far, by the models that were asked.
        """

    async def starting(self, call: ToolCall, repeatable: bool) -> None:
        """Record that a call is about to run; unless it is repeatable, running it twice may do harm."""

    async def ended(self, result: ToolResult) -> None:
        """Record the result of a call."""

    async def finished(
        self, messages: Sequence[Message], returned: Sequence[ToolCall], approvals: Sequence[str] = ()
    ) -> None:
        """Record the end of the run; the client will send results of the `returned` calls, or answer the `approvals`."""
