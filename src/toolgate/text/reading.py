"""What the readers of all syntaxes share: the source, the tools on offer, and where text, reasoning and calls go.

Until a call begins, all that a reader takes from the source is held. `begin` and `drop` say that it was markup; what is
still held when the reader returns was plain text after all. So nothing is lost, and nothing is read twice.

Knows no syntax.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from toolgate.conversation.arguments import is_object, settled
from toolgate.conversation.assemble import Assembler
from toolgate.conversation.names import Spellings
from toolgate.conversation.request import ToolDef
from toolgate.text.source import Source, Steps, words
from toolgate.text.strings import escaped, quoted

_PREFIXES = ("functions.", "default_api.", "default_api:", "tools.")


class Problem(Struct, frozen=True):
    """A call of this tool whose arguments could not be made out, and why, in words for the model."""

    name: str
    reason: str


class Found(Exception):  # not an error: it carries news out of a reader
    """A call begins here, which is all that was asked."""


class Call(Protocol):
    """A call being written: argument text as it is, or parameter by parameter."""

    @property
    def tool(self) -> ToolDef | None:
        """The tool that is called."""

    def raw(self, piece: str) -> None:
        """More of the arguments' JSON text."""

    def key(self, name: str) -> None:
        """The next parameter; its value follows."""

    def quote(self) -> None:
        """A string value begins or ends."""

    def string(self, piece: str) -> None:
        """More of a string value."""

    def end_members(self) -> None:
        """There are no more parameters."""

    def end(self) -> None:
        """The call is over."""


class Reading:
    """The state of reading one answer."""

    def __init__(
        self, source: Source, assembler: Assembler, tools: Sequence[ToolDef], answer: str | None, any_tool: bool
    ) -> None:
        self.source = source
        self.assembler = assembler
        self.tools: Mapping[str, ToolDef] = {tool.name: tool for tool in tools}
        self.answer = answer if answer not in self.tools else None
        self._spellings = Spellings(self.tools)
        self.any_tool = any_tool
        self.problems: list[Problem] = []
        self.renamed: dict[str, str] = {}  # names as they were written, and those that were declared
        self.reason: Callable[[str], Steps[None]] = _no_reasoning  # reads reasoning behind its mark, or ends it
        self.cut = True  # at the end of the text: whether the model was stopped, or stopped by itself
        self.searching = False  # only whether a call begins is asked
        self.fresh = True  # nothing but blanks since the message, or something other than text, began
        self._blanks: list[str] = []
        self._said = False
        self._after_reasoning = False
        self._calls = 0

    def text(self, piece: str) -> None:
        """More plain text; blanks alone beside calls and reasoning are layout and left out."""
        if self.fresh:
            rest = piece.lstrip()
            self._blanks.append(piece[: len(piece) - len(rest)])
            if not rest:
                return
            blanks = "".join(self._blanks)
            piece = (blanks.lstrip("\r\n") if self._after_reasoning else blanks) + rest
            self._refresh(False)
        self.assembler.text(piece)

    def reasoning(self, piece: str) -> None:
        """More reasoning."""
        if piece:
            self._refresh(True, after_reasoning=True)
            self.assembler.reasoning(piece)

    def finish(self) -> None:
        """No more text comes; a message of blanks alone consists of them."""
        if self.fresh and not self._said and (blanks := "".join(self._blanks)):
            self.assembler.text(blanks)
        self._refresh(True)

    def declared(self, name: str) -> str | None:
        """The name of the tool meant, if there is one: namespaces before names are taken off, other spellings corrected."""
        if name in self.tools or name == self.answer:
            return name
        for prefix in _PREFIXES:
            if name.startswith(prefix) and name[len(prefix) :] in (*self.tools, self.answer):
                return name[len(prefix) :]
        other = self._spellings.meant(name)
        return other or (name if self.any_tool and name else None)

    def begin(self, name: str, id: str | None = None) -> Call | None:
        """A call begins, if the name is a tool's; what was held was its markup."""
        known = self.declared(name)
        if known is None:
            return None
        if self.searching:
            raise Found
        self.drop()
        self.source.held = None
        if known == self.answer:
            return Answer(self)
        if not name.endswith(known):
            self.renamed[name] = known
        self._refresh(True)
        self._calls += 1
        self.assembler.call(self._calls, id=id, name=known)
        return ToolCallText(self, self._calls, known)

    def drop(self) -> None:
        """What is held was markup."""
        if self.source.held:
            self.source.held = []

    def resume(self) -> None:
        """A call is over: what is read from here on is held again."""
        self.source.held = []

    def broken(self, call: Call, name: str, reason: str, *stops: str) -> Steps[None]:
        """The arguments cannot be made out: they are passed on as they are, up to one of the words or the end."""
        if self.source.over:  # cut off, which is no fault of what was written
            return
        self.problems.append(Problem(name, reason))
        if stops:
            yield from self.source.until(words(*stops), call.raw)
        else:
            yield from self.source.rest(call.raw)

    def close(self, *closers: str) -> Steps[bool]:
        """Reads blanks and one of the closing words, whole or, at the very end, cut short."""
        yield from self.source.blanks()
        found = yield from self.source.one_of(*closers)
        rest = self.source.text[self.source.at :]
        if not found and rest and self.source.ended and any(word.startswith(rest) for word in closers):
            self.source.take(len(rest))
            found = rest
        if found:
            self.drop()
        return bool(found)

    def _refresh(self, fresh: bool, after_reasoning: bool = False) -> None:
        self._blanks.clear()
        self.fresh = fresh
        self._said = True
        self._after_reasoning = after_reasoning


def _no_reasoning(_: str) -> Steps[None]:
    yield from ()


class ToolCallText:
    """A call of a tool, told to the assembler."""

    def __init__(self, reading: Reading, number: int, name: str) -> None:
        self.tool = reading.tools.get(name)
        self._name = name
        self._first = ""
        self._not_object: list[str] = []  # the arguments, as long as they do not look like an object
        self._faults = len(reading.problems)
        self._reading = reading
        self._assembler = reading.assembler
        self._number = number
        self._keys: set[str] = set()

    def raw(self, piece: str) -> None:
        """More of the arguments' JSON text."""
        if piece:
            self._first = self._first or piece[0]
            if self._first != "{":
                self._not_object.append(piece)
            self._assembler.call(self._number, arguments=piece)

    def key(self, name: str) -> None:
        """The next parameter; its value follows."""
        if name in self._keys:
            self._reading.problems.append(Problem(self._name, f"the parameter {name!r} is given twice"))
        self.raw(f"{',' if self._keys else '{'}{quoted(name)}:")
        self._keys.add(name)

    def quote(self) -> None:
        """A string value begins or ends."""
        self.raw('"')

    def string(self, piece: str) -> None:
        """More of a string value."""
        self.raw(escaped(piece))

    def end_members(self) -> None:
        """There are no more parameters."""
        self.raw("}" if self._keys else "{}")

    def end(self) -> None:
        """The call is over; where the text is, too, what was said of it decides whether it is whole."""
        if not self._reading.source.over:
            self._assembler.end_call(self._number)
        if len(self._reading.problems) == self._faults and not is_object(settled("".join(self._not_object) or "{}")):
            self._reading.problems.append(Problem(self._name, "the arguments are not a JSON object"))
        self._reading.resume()


class Answer:
    """The answer, written as if it were a call: its strings are plain text."""

    tool: ToolDef | None = None

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._pieces: list[str] = []

    def raw(self, piece: str) -> None:
        """More JSON text, whose strings are told when it is whole."""
        self._pieces.append(piece)

    def key(self, name: str) -> None:
        """The name of the parameter is no part of the answer."""

    def quote(self) -> None:
        """Text has no quotes around it."""

    def string(self, piece: str) -> None:
        """More of the answer."""
        self._reading.text(piece)

    def end_members(self) -> None:
        """Nothing closes text."""

    def end(self) -> None:
        """The answer is over."""
        self._reading.text(_strings(settled("".join(self._pieces))) if self._pieces else "")
        self._reading.fresh = True  # blanks behind the mark are layout
        self._reading.resume()


def _strings(text: str) -> str:
    """The strings in an object, or the text itself if it is none."""
    if not is_object(text):
        return text
    values = msgspec.json.decode(text).values()
    return "\n".join([value if isinstance(value, str) else msgspec.json.encode(value).decode() for value in values])
