"""A server tool and a call of it: the Protocols and values that all tool sources and all users of tools share.

Every source brings tools of this form and everything else sees this form alone: time limits, approvals, caches and the
tool loop are wrapped around it. Knows nothing of where tools come from, of models or of HTTP.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from msgspec import Struct, field

from toolgate.conversation.message import Media, Text

Stance: TypeAlias = Literal["allow", "ask", "deny"]
Outcome: TypeAlias = Literal["ok", "error", "timeout", "denied", "refused", "cancelled", "outcome_unknown"]

NO_INPUT: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


class Annotations(Struct, frozen=True):
    """What a tool's author promises about its effects; without a promise the worst is assumed."""

    # The defaults are those of MCP's tool annotations.
    read_only: bool = False
    destructive: bool = True
    idempotent: bool = False
    open_world: bool = True

    @property
    def repeatable(self) -> bool:
        """Whether running it twice does no more than running it once."""
        return self.read_only or self.idempotent


class ServerToolDefinition(Struct, frozen=True, kw_only=True):
    """The definition of a tool: all that is known without running it.

    `name` is unique among the server's tools and every upstream accepts it; `origin` is the tool's name in its source.
    `source` is the name of the source. `target` is where calls go, a URL or a command, unless the source alone decides it:
    an approval of the tool is for this target, and it is shown to no client, because it may hold credentials.
    `approval` is what the author asks for; the policy may be stricter. A `registered` tool, or its server, was registered
    at run time: the operator does not vouch for its annotations.
    A `private` tool can be called by name in code and is never listed or offered.
    """

    name: str
    description: str
    source: str
    input_schema: Mapping[str, Any] = field(default_factory=lambda: NO_INPUT)
    output_schema: Mapping[str, Any] | None = None
    origin: str | None = None
    target: str | None = None
    registered: bool = False
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


class CallProgressUpdate(Struct, frozen=True):
    """The progress of a call, as a message, as numbers or both."""

    message: str | None = None
    done: float | None = None
    total: float | None = None


ReportProgress: TypeAlias = Callable[[CallProgressUpdate], None]


def ignore_progress(progress: CallProgressUpdate) -> None:
    """Drop the report."""


class CallClock(Protocol):
    """The time limit of a call. It runs from the start of the call; a tool stops it while it waits in a queue."""

    def stop(self) -> None:
        """Suspend the limit; the tool must limit the time in the queue by itself."""

    def start(self) -> None:
        """Begin again with the full time."""


class UnlimitedCallClock(Struct, frozen=True):
    """Limits nothing."""

    def stop(self) -> None: ...

    def start(self) -> None: ...


class ToolCallInput(Struct, frozen=True):
    """One call: `arguments` were checked against the schema, `text` is the JSON that they were parsed from.

    `key` stays the same when this very call is repeated, so that a tool can recognise the repetition. `run` is the run
    that it belongs to, `window` the window of an editor that the client names, empty for any.
    """

    call_id: str
    arguments: Mapping[str, Any]
    text: str
    caller: str = ""
    session: str = ""
    key: str = ""
    report: ReportProgress = ignore_progress
    clock: CallClock = UnlimitedCallClock()
    run: str = ""
    window: str = ""


class ToolOutput(Struct, frozen=True):
    """The result of a call; `structured` is the same as data, where the tool has it, and `meta` is for programs.

    Where the tool was not `called`, because the call was refused or denied, the text is our own.
    """

    content: tuple[Text | Media, ...]
    is_error: bool = False
    structured: Any = None
    meta: Mapping[str, Any] = {}
    called: bool = True


class CallPreview(Struct, frozen=True):
    """What a person reads before a call; a `title` or `question` asks for approval even where the policy allows the call."""

    message: str | None = None
    title: str | None = None
    question: str | None = None

    @property
    def asks(self) -> bool:
        """Whether the tool itself asks for a person's approval of this call."""
        return self.title is not None or self.question is not None


class ToolCallFailed(Exception):
    """The call failed; the message is written for the model, which may correct its arguments or inform the user."""

    outcome: ClassVar[Outcome] = "error"


class InvalidArguments(ToolCallFailed):
    """The arguments cannot be used, so nothing was run."""

    outcome = "refused"


class CallDenied(ToolCallFailed):
    """A person or the policy denied the call."""

    outcome = "denied"


class CallTimedOut(ToolCallFailed):
    """The call took too long and was stopped."""

    outcome = "timeout"


class TransientToolFailure(ToolCallFailed):
    """The call may succeed if it is tried again: a connection broke, a service was busy."""


class Tool(Protocol):
    """A tool that the server can run."""

    @property
    def spec(self) -> ServerToolDefinition:
        """The definition."""

    async def prepare(self, invocation: ToolCallInput) -> CallPreview:
        """Describe the call to a person; this has no effects, and a call need not follow."""

    async def invoke(self, invocation: ToolCallInput) -> ToolOutput:
        """Run the call; ToolCallFailed if it fails. Cancelling the task cancels the call."""


OnChange: TypeAlias = Callable[[], None]


class ToolSource(Protocol):
    """Brings tools. It is opened once and may change its tools while it is open."""

    # `builtin`, `python`, `api`, `vscode`, `mcp/<server>` or `http/<service>`.
    name: str

    @property
    def tools(self) -> Sequence[Tool]:
        """The present tools; empty while the source cannot be reached."""

    @property
    def problem(self) -> str | None:
        """Why tools are missing, in a sentence for a person; None if none are."""

    async def open(self, on_change: OnChange) -> None:
        """Begin to bring tools and return soon, even if a server does not answer; `on_change` is called at every change."""

    async def aclose(self) -> None:
        """Close all connections and processes."""


class ProposedCall(Struct, frozen=True):
    """A call that is about to run, with all that a person's approval is bound to."""

    spec: ServerToolDefinition
    invocation: ToolCallInput
    run: str
    preparation: CallPreview = CallPreview()
    # What the request itself demands for this call; it can make the policy stricter, never laxer.
    stance: Stance | None = None
    # Whether the model has read results of open-world tools, which strangers may have written.
    tainted: bool = False


class CallApprovalOutcome(Struct, frozen=True):
    """The decision about a call: a pending one names the approval to wait for, an `allow` may carry edited arguments."""

    stance: Literal["allow", "deny", "pending"]
    approval: str | None = None
    reason: str | None = None
    arguments: str | None = None


class CallApprovals(Protocol):
    """Decides whether calls may run."""

    def stance(self, spec: ServerToolDefinition, caller: str, requested: Stance | None = None) -> Stance:
        """Decide about a tool before a call of it is known; `ask` means that a call may be held for a person.

        `requested` is what the request itself demands; it can make the policy stricter, never laxer.
        """

    async def decide(self, query: ProposedCall) -> CallApprovalOutcome:
        """Decide about this very call. The `allow` that an approval gives consumes it; a pending approval is stored.

        Deciding again about the same call finds its pending approval instead of making another.
        """

    async def wait(self, approval: str, seconds: float) -> bool:
        """Wait until the approval is decided, and whether it was; `decide` then gives the verdict."""
