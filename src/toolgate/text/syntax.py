"""What a syntax is: the openers by which its calls are recognised, how each is read, and how calls are written in it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from toolgate.conversation.message import ToolCall
from toolgate.conversation.request import ToolDef
from toolgate.text.reading import Reading
from toolgate.text.source import Steps

Read: TypeAlias = Callable[[Reading, str], Steps[None]]
"""Reads on behind an opener, which it is given. Whatever it has read and not dropped when it returns is plain text."""

Render: TypeAlias = Callable[[Sequence[ToolCall], Mapping[str, ToolDef]], str]
"""Writes calls as the model would; `Unsayable` if the syntax has no way to write them so that they can be read back."""


class Opener(Struct, frozen=True):
    """A mark that may begin calls.

    It is a `word`, or a `pattern` whose unfinished beginnings match `partial` and start with one of `firsts`.
    `at` says where it counts: anywhere in text, only where a line begins, or only where a message begins.
    """

    read: Read
    word: str = ""
    pattern: str = ""
    partial: str = ""
    firsts: str = ""
    at: Literal["anywhere", "line", "start"] = "anywhere"


class Syntax(Struct, frozen=True):
    """One way of writing tool calls as text.

    `openers` are those for tools of these names, which only a syntax that is `by_name` looks at. `detected` says that
    automatic detection looks for it, too.
    `thinks` are pairs of marks around reasoning that this syntax adds to the common ones.
    """

    name: str
    openers: Callable[[Collection[str]], Sequence[Opener]]
    render: Render
    detected: bool = True
    by_name: bool = False
    thinks: tuple[tuple[str, str], ...] = ()


class Unsayable(ValueError):
    """The syntax cannot write this value so that it would be read back as the same."""


def always(*openers: Opener) -> Callable[[Collection[str]], Sequence[Opener]]:
    """The same openers whatever the tools."""
    return lambda _: openers
