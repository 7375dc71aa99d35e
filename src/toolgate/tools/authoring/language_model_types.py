"""The values that tools receive and return, with the names of the editor's API in Python's spelling. Values only."""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from msgspec import Struct

from toolgate.tools.authoring.jsonable import json_text, whole_characters
from toolgate.tools.tool import CallProgressUpdate, ReportProgress, ignore_progress

T = TypeVar("T")

_MAX_MESSAGE = 2000  # characters of a report; clients are sent no more


class LanguageModelTextPart(Struct, frozen=True):
    """Text of a result."""

    value: str


class LanguageModelDataPart(Struct, frozen=True):
    """Bytes of a result and their media type."""

    data: bytes
    mime_type: str

    @classmethod
    def image(cls, data: bytes, mime_type: str) -> "LanguageModelDataPart":
        """Make an image part, for models that read images."""
        return cls(bytes(data), mime_type)

    @classmethod
    def json(cls, value: Any, mime_type: str = "application/json") -> "LanguageModelDataPart":
        """Encode a value as JSON; ToolCallFailed if it cannot be JSON."""
        return cls(json_text(value).encode(), mime_type)

    @classmethod
    def text(cls, value: str, mime_type: str = "text/plain") -> "LanguageModelDataPart":
        """Encode text of a media type such as `text/markdown`."""
        return cls(value.encode("utf-8", "replace"), mime_type)


ResultPart: TypeAlias = LanguageModelTextPart | LanguageModelDataPart


class LanguageModelToolResult(Struct, frozen=True):
    """The result of a call."""

    content: Sequence[ResultPart]


class ConfirmationMessages(Struct, frozen=True):
    """The question that a person answers before the tool runs."""

    title: str
    message: str


class PreparedToolInvocation(Struct, frozen=True):
    """What a person reads before a call; with `confirmation_messages`, the call needs approval."""

    invocation_message: str | None = None
    confirmation_messages: ConfirmationMessages | None = None


class ToolInvocationToken(Struct, frozen=True):
    """Identifies a call; `key` stays the same when this very call is repeated."""

    call_id: str = ""
    caller: str = ""
    session: str = ""
    key: str = ""


class ProgressReporter:
    """Reports the progress of a call; may be used from any thread."""

    def __init__(
        self, report: ReportProgress = ignore_progress, call_on_loop: Callable[..., object] | None = None
    ) -> None:
        """`call_on_loop` runs `report` on the thread of the event loop."""
        self._report = report
        self._call_on_loop = call_on_loop
        self._loop_thread = threading.get_ident()

    def report(self, message: str | None = None, done: float | None = None, total: float | None = None) -> None:
        """Report a message, numbers or both; what is no finite number is left out."""
        text = None if message is None else whole_characters(str(message)[:_MAX_MESSAGE])
        progress = CallProgressUpdate(text, _finite(done), _finite(total))
        # On the loop's own thread at once: the report then comes before the result that follows it.
        if self._call_on_loop is None or threading.get_ident() == self._loop_thread:
            self._report(progress)
        else:
            self._call_on_loop(self._report, progress)


def _finite(number: Any) -> float | None:
    """Return a number that JSON has; None for anything else."""
    try:
        return number if isinstance(number, int | float) and math.isfinite(number) else None
    except OverflowError:  # an integer beyond any float
        return None


class LanguageModelToolInvocationOptions(Struct, Generic[T], frozen=True):
    """One call of a tool in class form; `input` has the type in the brackets."""

    input: T
    tool_invocation_token: ToolInvocationToken = ToolInvocationToken()
    progress: ProgressReporter = ProgressReporter()


class LanguageModelToolInvocationPrepareOptions(Struct, Generic[T], frozen=True):
    """A call that is to be described to a person; it need not follow."""

    input: T


class LanguageModelToolInformation(Struct, frozen=True):
    """The public information about a tool."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    tags: tuple[str, ...] = ()
