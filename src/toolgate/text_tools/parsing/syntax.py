"""Define what a syntax is: the markers that begin its calls, how each is read, and how calls are rendered in it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from toolgate.conversation.message import ToolCall
from toolgate.conversation.request import ToolDef
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState

# Reads what follows a marker, given the text that it matched. What it has read and not dropped when it returns is text.
Read: TypeAlias = Callable[[ParserState, str], Parse[None]]

# Writes calls as the model would; `UnrenderableValue` if they cannot be written so that they are read back the same.
Render: TypeAlias = Callable[[Sequence[ToolCall], Mapping[str, ToolDef]], str]


class CallMarker(Struct, frozen=True):
    """A mark that may begin calls.

    It is a `word`, or a `pattern` whose unfinished beginnings match `partial` and start with one of `firsts`.
    `at` is where it counts: anywhere in text, only at the start of a line, or only at the start of a message.
    """

    read: Read
    word: str = ""
    pattern: str = ""
    partial: str = ""
    firsts: str = ""
    at: Literal["anywhere", "line", "start"] = "anywhere"


class Syntax(Struct, frozen=True):
    """One way of writing tool calls as text.

    `markers` returns the markers for tools of the given names, which only a syntax that is `by_name` needs. `detected` says
    that automatic detection uses it. `reasoning_marks` are pairs of marks around reasoning, besides the common ones.
    """

    name: str
    markers: Callable[[Collection[str]], Sequence[CallMarker]]
    render: Render
    detected: bool = True
    by_name: bool = False
    reasoning_marks: tuple[tuple[str, str], ...] = ()


class UnrenderableValue(ValueError):
    """The syntax cannot write this value so that it would be read back as the same."""


def fixed_markers(*markers: CallMarker) -> Callable[[Collection[str]], Sequence[CallMarker]]:
    """Return these markers whatever the names of the tools."""
    return lambda _: markers
