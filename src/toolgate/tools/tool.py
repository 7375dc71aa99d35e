"""A server tool: what it says of itself, what one call of it is given and what that gives back.

Every source brings tools of this shape and everything else sees this shape alone: time limits, approvals, caches and the
loop are wrapped around it. Knows nothing of where tools come from, of models or of HTTP.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from msgspec import Struct, field

from toolgate.conversation.message import Media, Text

Stance: TypeAlias = Literal["allow", "ask", "deny"]
Outcome: TypeAlias = Literal["ok", "error", "timeout", "denied", "refused", "cancelled", "outcome_unknown"]

NO_INPUT: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


class Annotations(Struct, frozen=True):
    """What a tool's author promises of its effects; what nobody promised is taken to be dangerous."""

    read_only: bool = False
    destructive: bool = True
    idempotent: bool = False
    open_world: bool = True

    @property
    def repeatable(self) -> bool:
        """Whether running it twice does no more than running it once."""
        return self.read_only or self.idempotent


class ToolSpec(Struct, frozen=True, kw_only=True):
    """All that is known of a tool without running it.

    `name` is unique among the server's tools and every upstream accepts it; `origin` is the name its source knows it by.
    `source` is its source's name. `approval` is the author's wish, not the policy.
    A `private` tool is callable by name in code and never listed or offered.
    """

    name: str
    description: str
    source: str
    input_schema: Mapping[str, Any] = field(default_factory=lambda: NO_INPUT)
    output_schema: Mapping[str, Any] | None = None
    origin: str | None = None
    display_name: str | None = None
    reference_name: str | None = None
    user_description: str | None = None
    icon: str | None = None
    tags: tuple[str, ...] = ()
    when: str | None = None
    private: bool = False
    annotations: Annotations = Annotations()
    approval: Stance | None = None
    timeout: float | None = None
    cache_seconds: float = 0.0


class Progress(Struct, frozen=True):
    """How far a call has come, in words, in numbers or both."""

    message: str | None = None
    done: float | None = None
    total: float | None = None


Tell: TypeAlias = Callable[[Progress], None]


def in_silence(progress: Progress) -> None:
    """Tells nobody."""


class Clock(Protocol):
    """The time that a call may take. It is running when the call is made; a tool stops it to stand in line."""

    def stop(self) -> None:
        """The tool waits for its turn, which it must bound by itself."""

    def start(self) -> None:
        """Its turn has come: it has all of its time."""


class NoClock(Struct, frozen=True):
    """Takes no time."""

    def stop(self) -> None:
        """There is nothing to stop."""

    def start(self) -> None:
        """There is nothing to start."""


class Invocation(Struct, frozen=True):
    """One call: `arguments` were checked against the schema, `text` is the JSON they were read from.

    `key` is the same whenever this very call is repeated, for tools that can recognise a repetition.
    """

    call_id: str
    arguments: Mapping[str, Any]
    text: str
    caller: str = ""
    session: str = ""
    key: str = ""
    tell: Tell = in_silence
    clock: Clock = NoClock()


class Output(Struct, frozen=True):
    """What a call gave back; `structured` is the same as data, where the tool has it, and `meta` is for programs."""

    content: tuple[Text | Media, ...]
    is_error: bool = False
    structured: Any = None
    meta: Mapping[str, Any] = {}


class Preparation(Struct, frozen=True):
    """What a person is told before a call; a `title` or `question` asks for their consent whatever the policy allows."""

    message: str | None = None
    title: str | None = None
    question: str | None = None

    @property
    def asks(self) -> bool:
        """Whether the tool itself wants a person's consent for this call."""
        return self.title is not None or self.question is not None


class ToolFailure(Exception):
    """The call failed; the message is written for the model, which may mend its arguments or tell the user."""

    outcome: ClassVar[Outcome] = "error"


class BadArguments(ToolFailure):
    """The arguments cannot be used, so nothing was run."""

    outcome = "refused"


class Denied(ToolFailure):
    """A person or the policy said no."""

    outcome = "denied"


class TooSlow(ToolFailure):
    """It took too long and was stopped."""

    outcome = "timeout"


class TransientFailure(ToolFailure):
    """It may go well if it is tried again: a connection broke, a service was busy."""


class Tool(Protocol):
    """Something the server can run."""

    @property
    def spec(self) -> ToolSpec:
        """What it says of itself."""

    async def prepare(self, invocation: Invocation) -> Preparation:
        """What a person should know first; has no effects and may not be followed by a call."""

    async def invoke(self, invocation: Invocation) -> Output:
        """Run it; ToolFailure says why it could not. Cancelling the task cancels the call."""


OnChange: TypeAlias = Callable[[], None]


class ToolSource(Protocol):
    """Where tools come from. It is opened once, may change its tools while it is open, and says so."""

    name: str
    """`builtin`, `python`, `api`, `mcp/<server>` or `http/<service>`."""

    @property
    def tools(self) -> Sequence[Tool]:
        """Its tools as they are now; empty while it cannot be reached."""

    @property
    def trouble(self) -> str | None:
        """Why tools are missing, in words for a person."""

    async def open(self, on_change: OnChange) -> None:
        """Begin to bring tools; returns soon, whatever its far end does, and calls `on_change` whenever they change."""

    async def aclose(self) -> None:
        """Let go of everything that was opened."""


class Asked(Struct, frozen=True):
    """A call that wants to run, with all that a person's consent is bound to."""

    spec: ToolSpec
    invocation: Invocation
    run: str
    preparation: Preparation = Preparation()
    stance: Stance | None = None
    """What the request itself demands of this call; it can make the policy stricter, never laxer."""
    tainted: bool = False
    """Whether the run already holds what strangers wrote: results of open-world tools. A person should know."""


class Verdict(Struct, frozen=True):
    """What became of it: a pending one names the approval to wait for, an allowed one may carry edited arguments."""

    stance: Literal["allow", "deny", "pending"]
    approval: str | None = None
    reason: str | None = None
    arguments: str | None = None


class Approvals(Protocol):
    """Decides whether calls may run."""

    def stance(self, spec: ToolSpec, caller: str) -> Stance:
        """What the policy says of the tool before a call of it is known; `ask` means that it may ask."""

    async def decide(self, asked: Asked) -> Verdict:
        """The verdict for this very call. An approval is used up by the `allow` it gives; a pending one is durable.

        The same call asked about again finds its pending approval instead of making another.
        """

    async def wait(self, approval: str, seconds: float) -> bool:
        """Whether the approval was answered within that time; `decide` then gives the verdict."""
