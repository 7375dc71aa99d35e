"""What the engine asks of the world. Each role is a small Protocol, so that behaviour is added by wrapping."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

from toolgate.conversation.errors import ToolgateError
from toolgate.conversation.events import FinishReason, ModelResponse, StepEvent, ToolProgress, Usage
from toolgate.conversation.message import ApprovalRequest, Message, Part, ToolCall, ToolResult
from toolgate.conversation.names import CallNames
from toolgate.conversation.request import ModelRequest, ToolDef


class Answer(Protocol):
    """What a model is saying, read once and to its end, or closed."""

    upstream: str
    """Who answered, for the log."""

    dialect: str | None
    """The wire format it came in, if it can be passed on in that format as it is: then it is `Relayable` too."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the upstream could not be told, and what was odd about its answer, in words for a person; may grow."""

    whole: bool
    """All of it is here: reading it can neither wait nor fail any more."""

    def events(self) -> AsyncIterator[list[StepEvent]]:
        """The step's events in batches, as the network delivered them; raises UpstreamFault when it breaks off.

        A batch may be empty, because a wrapper may keep all events of a batch back: a reader must not expect an event in it.
        """

    async def aclose(self) -> None:
        """Stop listening; an unfinished answer is cancelled at the upstream."""


class Model(Protocol):
    """Someone to ask."""

    async def ask(self, request: ModelRequest) -> Answer:
        """The answer, once its first piece has arrived: until then a failure is raised and another may be asked."""


class Heard(Protocol):
    """What was heard of an answer while it passed."""

    done: bool
    usage: Usage | None
    names: CallNames

    @property
    def reason(self) -> FinishReason | None:
        """Why it ended, once it has."""

    @property
    def calls(self) -> int:
        """How many tool calls it held."""

    def received(self) -> list[Part]:
        """What has passed so far, for counting its tokens."""

    def error(self, error: ToolgateError) -> bytes:
        """The words in which its dialect says that it broke off here."""


class Retold(Protocol):
    """A streamed answer as it passes to a client of its own dialect."""

    @property
    def relay(self) -> Heard:
        """What was heard of it so far."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The frames, in batches as the network delivered them."""


class Relayable(Answer, Protocol):
    """An answer that can be passed on as it is to a client of its own dialect, unknown fields and all.

    `reply` is the dialect's own `Reply`: how the answer presents itself.
    """

    def retell(self, reply: Any) -> Retold:
        """The streamed answer as frames of its dialect."""

    def retell_whole(self, reply: Any, usage: Usage | None = None) -> tuple[bytes, ModelResponse]:
        """The whole answer as a body of its dialect, and what it says; `usage` stands in where it gave none."""


class Toolbox(Protocol):
    """The server's tools as one run may use them."""

    def offered(self) -> tuple[ToolDef, ...]:
        """What the model is offered now; it may grow while the run goes on, and its order never changes."""

    def owns(self, name: str) -> bool:
        """Whether a call by this name is the server's to run."""

    def may_ask(self, name: str) -> bool:
        """Whether a call by this name may have to wait for a person: it is not shown before that is known."""

    def is_traceless(self, name: str) -> bool:
        """Whether it only reads, so that nobody needs to know that it ran."""

    def is_repeatable(self, name: str) -> bool:
        """Whether running a call by this name twice does no more than running it once."""

    async def run(
        self, call: ToolCall, tell: Callable[[ToolProgress], None], starting: Callable[[], Awaitable[None]]
    ) -> ToolResult | ApprovalRequest:
        """What became of the call: whatever goes wrong is a result that says so; only a person can keep it waiting.

        `starting` is awaited when nothing is in its way any more and its effects are about to happen.
        """

    def waited(self) -> float:
        """The seconds so far in which the run stood still because a person was thinking."""


class Journal(Protocol):
    """Remembers what a run did that its client does not see, so that whoever comes back finds it."""

    async def progressed(self, messages: Sequence[Message]) -> None:
        """The messages of the run so far; if it is cut off here, the same request goes on from them."""

    async def answered(self, message: Message, usage: Usage | None) -> None:
        """The model has answered with calls that are about to be run, and this is what it cost."""

    async def starting(self, call: ToolCall, repeatable: bool) -> None:
        """The call is about to run; unless it is repeatable, running it twice may do harm."""

    async def ended(self, result: ToolResult) -> None:
        """A call has given this."""

    async def finished(
        self, messages: Sequence[Message], returned: Sequence[ToolCall], asked: Sequence[str] = ()
    ) -> None:
        """The run is over; the client will come back with the `returned` calls, or with the approvals it was `asked` for."""
