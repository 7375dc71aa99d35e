"""The values a tool is given and gives back, in the editor's words and Python's spelling. Values only."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from msgspec import Struct

from toolgate.tools.authoring.jsonable import json_text
from toolgate.tools.tool import Progress as Report
from toolgate.tools.tool import Tell, in_silence

T = TypeVar("T")


class LanguageModelTextPart(Struct, frozen=True):
    """Words of a result."""

    value: str


class LanguageModelDataPart(Struct, frozen=True):
    """Bytes of a result and what they are."""

    data: bytes
    mime_type: str

    @classmethod
    def image(cls, data: bytes, mime_type: str) -> "LanguageModelDataPart":
        """A picture, for models that see."""
        return cls(bytes(data), mime_type)

    @classmethod
    def json(cls, value: Any, mime_type: str = "application/json") -> "LanguageModelDataPart":
        """A value as JSON; ToolFailure if it cannot be JSON."""
        return cls(json_text(value).encode(), mime_type)

    @classmethod
    def text(cls, value: str, mime_type: str = "text/plain") -> "LanguageModelDataPart":
        """Words of a kind, such as `text/markdown`."""
        return cls(value.encode("utf-8", "replace"), mime_type)


ResultPart: TypeAlias = LanguageModelTextPart | LanguageModelDataPart


class LanguageModelToolResult(Struct, frozen=True):
    """All that a call gave back."""

    content: Sequence[ResultPart]


class ConfirmationMessages(Struct, frozen=True):
    """The question a person answers before the tool runs."""

    title: str
    message: str


class PreparedToolInvocation(Struct, frozen=True):
    """What a person is told before a call, and asked if there are `confirmation_messages`."""

    invocation_message: str | None = None
    confirmation_messages: ConfirmationMessages | None = None


class ToolInvocationToken(Struct, frozen=True):
    """Which call this is; `key` is the same whenever this very call is repeated."""

    call_id: str = ""
    caller: str = ""
    session: str = ""
    key: str = ""


class Progress:
    """Tells whoever waits how far the call has come; may be used from any thread."""

    def __init__(self, tell: Tell = in_silence, hand_over: Callable[..., object] | None = None) -> None:
        self._tell = tell
        self._hand_over = hand_over
        self._home = threading.get_ident()

    def report(self, message: str | None = None, done: float | None = None, total: float | None = None) -> None:
        """Say it in words, in numbers or both."""
        report = Report(message, done, total)
        if self._hand_over is None or threading.get_ident() == self._home:
            self._tell(report)
        else:
            self._hand_over(self._tell, report)


class LanguageModelToolInvocationOptions(Struct, Generic[T], frozen=True):
    """One call, as a class-form tool sees it; `input` has the type that stands in the brackets."""

    input: T
    tool_invocation_token: ToolInvocationToken = ToolInvocationToken()
    progress: Progress = Progress()


class LanguageModelToolInvocationPrepareOptions(Struct, Generic[T], frozen=True):
    """A call that may come."""

    input: T


class LanguageModelToolInformation(Struct, frozen=True):
    """What anybody may know of a tool."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    tags: tuple[str, ...] = ()
