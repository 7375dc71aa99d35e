"""Notes about tool calls in a model's text, for logs and metrics."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct

NoteKind: TypeAlias = Literal[
    "broken_call",  # the arguments could not be parsed
    "repaired_call",  # the arguments were repaired
    "renamed_call",  # the name of the tool was corrected
    "forbidden_call",  # the client does not want this tool called
    "unknown_tool",  # no such tool is declared
    "cut_results",  # the model made up results
    "cut_calls",  # calls were dropped behind the last one allowed
    "choice_unmet",  # the client requires a call, and there is none
    "asked_again",  # the answer could not be used
    "given_up",  # the answer could not be used, even after asking again
    "promoted_call",  # a model with tool support wrote a call as text
]


class EmulationNote(Struct, frozen=True):
    """One note; `tool` is the name that the model wrote, if the note is about one."""

    kind: NoteKind
    detail: str
    tool: str | None = None


OnNote: TypeAlias = Callable[[EmulationNote], None]


def ignore_note(_: EmulationNote) -> None:
    """Ignore a note."""
