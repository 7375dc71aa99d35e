"""What happened while a text was taken for more than text, for logs and metrics."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct

NoteKind: TypeAlias = Literal[
    "broken_call",  # arguments that could not be made out
    "repaired_call",  # a call that was mended
    "renamed_call",  # a tool's name that was spelt otherwise
    "forbidden_call",  # a call that the client did not want
    "unknown_tool",  # a call of something that is not on offer
    "cut_results",  # results that the model made up
    "cut_calls",  # calls behind the first, where only one was wanted
    "choice_unmet",  # no call, though the client insisted
    "asked_again",
    "given_up",
    "promoted_call",  # a call as text from a model that has better ways
]


class Note(Struct, frozen=True):
    """One such thing; `tool` is the name the model wrote, if it is about one."""

    kind: NoteKind
    detail: str
    tool: str | None = None


Noted: TypeAlias = Callable[[Note], None]


def unnoticed(_: Note) -> None:
    """Nobody wants to know."""
