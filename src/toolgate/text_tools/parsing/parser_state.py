"""What the readers of all syntaxes share: the input buffer, the tools, and where text, reasoning and calls are emitted.

Until a call begins, all that a reader takes from the buffer is held. `begin_call` and `drop_markup` mark it as markup;
what is still held when the reader returns was plain text. So nothing is lost, and nothing is read twice.

Knows no syntax.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from toolgate.conversation.arguments import is_object, normalize_arguments
from toolgate.conversation.event_assembler import EventAssembler
from toolgate.conversation.request import ToolDef
from toolgate.conversation.tool_name_matching import ToolNameMatcher
from toolgate.text_tools.parsing.escape_json_string import escaped, quoted
from toolgate.text_tools.parsing.input_buffer import InputBuffer, Parse, word_set
from toolgate.text_tools.parsing.schema_types import ParameterTypes, types_of

# Namespaces that some models put before the names of all tools: gpt-oss writes `functions.f`, Gemma `default_api:f`.
_PREFIXES = ("functions.", "default_api.", "default_api:", "tools.")


class CallProblem(Struct, frozen=True):
    """A call of this tool whose arguments could not be parsed, and why, as a text for the model."""

    name: str
    reason: str


class CallStartFound(Exception):  # not an error: it ends a reader early
    """A call begins here; raised while the scanner only probes for calls."""


class CallSink(Protocol):
    """A call being parsed; its reader passes JSON text, or one parameter after the other."""

    @property
    def types(self) -> ParameterTypes:
        """The types of the parameters of the tool that is called."""

    def raw(self, piece: str) -> None:
        """Add to the arguments' JSON text."""

    def key(self, name: str) -> None:
        """Begin a parameter; its value follows."""

    def quote(self) -> None:
        """Begin or end a string value."""

    def string(self, piece: str) -> None:
        """Add to a string value."""

    def end_members(self) -> None:
        """End the parameters."""

    def end(self) -> None:
        """End the call."""


class ParserState:
    """The state of parsing one answer."""

    def __init__(
        self,
        buffer: InputBuffer,
        assembler: EventAssembler,
        tools: Sequence[ToolDef],
        answer: str | None,
        any_tool: bool,
    ) -> None:
        self.buffer = buffer
        self.assembler = assembler
        self.tools: Mapping[str, ToolDef] = {tool.name: tool for tool in tools}
        self.answer = answer if answer not in self.tools else None
        self.any_tool = any_tool
        self.problems: list[CallProblem] = []
        self.renamed: dict[str, str] = {}  # declared names, by the names that the model wrote
        self.cut = True  # at the end of the text: whether the model was stopped, or stopped by itself
        self.probing = False  # whether a call only has to be found, not read
        self.at_start = True  # whether only blanks have come since the start, a call or reasoning
        self._matcher = ToolNameMatcher(self.tools)
        self._blanks: list[str] = []
        self._has_content = False
        self._after_reasoning = False
        self._calls = 0
        self._types: dict[str, ParameterTypes] = {}

    def text(self, piece: str) -> None:
        """Emit plain text; blanks between calls and reasoning are layout and left out."""
        if self.at_start:
            rest = piece.lstrip()
            self._blanks.append(piece[: len(piece) - len(rest)])
            if not rest:
                return
            blanks = "".join(self._blanks)
            # Behind reasoning, line breaks are layout; other blanks may be the indentation of code.
            piece = (blanks.lstrip("\r\n") if self._after_reasoning else blanks) + rest
            self._restart(at_start=False)
        self.assembler.text(piece)

    def reasoning(self, piece: str) -> None:
        """Emit reasoning."""
        if piece:
            self._restart(at_start=True, after_reasoning=True)
            self.assembler.reasoning(piece)

    def finish(self) -> None:
        """End the text; of a message that is nothing but blanks, they are the content."""
        if self.at_start and not self._has_content and (blanks := "".join(self._blanks)):
            self.assembler.text(blanks)
        self._restart(at_start=True)

    def resolve_name(self, name: str) -> str | None:
        """Return the declared tool that a name stands for: namespaces are removed, other spellings corrected."""
        if name in self.tools or name == self.answer:
            return name
        for prefix in _PREFIXES:
            if name.startswith(prefix) and name[len(prefix) :] in (*self.tools, self.answer):
                return name[len(prefix) :]
        return self._matcher.match(name) or (name if self.any_tool and name else None)

    def types(self, name: str) -> ParameterTypes:
        """Return the types of a tool's parameters, the same object for all its calls; any type for an unknown tool."""
        if name not in self._types:
            self._types[name] = types_of(self.tools.get(name))
        return self._types[name]

    def begin_call(self, name: str, id: str | None = None) -> CallSink | None:
        """Begin a call, if the name is a tool's, and drop its markup; None if it is not."""
        tool = self.resolve_name(name)
        if tool is None:
            return None
        if self.probing:
            raise CallStartFound
        # A call has begun: what follows is streamed and can no longer turn out to be text.
        self.drop_markup()
        self.buffer.held = None
        if tool == self.answer:
            return FinalAnswerCall(self)
        if not name.endswith(tool):  # to remove a namespace is no correction that the client must know of
            self.renamed[name] = tool
        self._restart(at_start=True)
        self._calls += 1
        self.assembler.call(self._calls, id=id, name=tool)
        return ParsedCallSink(self, self._calls, tool)

    def drop_markup(self) -> None:
        """Drop what is held: it was markup."""
        if self.buffer.held:
            self.buffer.held = []

    def hold_text(self) -> None:
        """Hold what is read from here on, behind a call."""
        self.buffer.held = []

    def copy_broken(self, call: CallSink, name: str, reason: str, *stops: str) -> Parse[None]:
        """Note that the arguments cannot be parsed, and copy them as they are, up to one of the stops or the end."""
        if self.buffer.exhausted:  # cut off, which is no fault of what was written
            return
        self.problems.append(CallProblem(name, reason))
        if stops:
            yield from self.buffer.copy_until(word_set(*stops), call.raw)
        else:
            yield from self.buffer.copy_rest(call.raw)

    def accept_closing(self, *closers: str) -> Parse[bool]:
        """Read blanks and one of the closing marks, whole or, at the end of the text, cut short."""
        yield from self.buffer.read_blanks()
        found = yield from self.buffer.accept_any(*closers)
        rest = self.buffer.text[self.buffer.at :]
        # A stop sequence or a limit may cut a closing mark: `</invo` is then no text behind the call.
        if not found and rest and self.buffer.ended and any(word.startswith(rest) for word in closers):
            self.buffer.take(len(rest))
            found = rest
        if found:
            self.drop_markup()
        return bool(found)

    def read_plain_text(self, close: str) -> Parse[None]:
        """Emit the text up to a closing mark; a line break on both its sides is layout."""
        self.drop_markup()
        self.buffer.held = None
        line_break = yield from self.buffer.accept_any("\r\n", "\n")
        stop = yield from self.buffer.copy_until(word_set(line_break + close, close), self.text)
        self.buffer.take(len(stop))
        self.at_start = True  # blanks behind the mark are layout

    def _restart(self, *, at_start: bool, after_reasoning: bool = False) -> None:
        self._blanks.clear()
        self.at_start = at_start
        self._has_content = True
        self._after_reasoning = after_reasoning


class ParsedCallSink:
    """A call of a tool, which goes to the assembler."""

    def __init__(self, state: ParserState, number: int, name: str) -> None:
        self.types = state.types(name)
        self._name = name
        self._first_char = ""
        self._not_object: list[str] = []  # the arguments, as long as they do not look like an object
        self._problems_before = len(state.problems)
        self._state = state
        self._assembler = state.assembler
        self._number = number
        self._keys: set[str] = set()

    def raw(self, piece: str) -> None:
        if piece:
            self._first_char = self._first_char or piece[0]
            if self._first_char != "{":
                self._not_object.append(piece)
            self._assembler.call(self._number, arguments=piece)

    def key(self, name: str) -> None:
        if name in self._keys:
            self._state.problems.append(CallProblem(self._name, f"the parameter {name!r} is given twice"))
        self.raw(f"{',' if self._keys else '{'}{quoted(name)}:")
        self._keys.add(name)

    def quote(self) -> None:
        self.raw('"')

    def string(self, piece: str) -> None:
        self.raw(escaped(piece))

    def end_members(self) -> None:
        self.raw("}" if self._keys else "{}")

    def end(self) -> None:
        """End the call; where the text ends, too, `cut` decides whether the call is complete."""
        if not self._state.buffer.exhausted:
            self._assembler.end_call(self._number)
        # The problem of a value that could not be read is already noted, and says more than this one.
        if len(self._state.problems) == self._problems_before and not is_object(
            normalize_arguments("".join(self._not_object) or "{}")
        ):
            self._state.problems.append(CallProblem(self._name, "the arguments are not a JSON object"))
        self._state.hold_text()


class FinalAnswerCall:
    """The final answer, written as if it were a call: its strings are plain text."""

    def __init__(self, state: ParserState) -> None:
        self.types = ParameterTypes(None)
        self._state = state
        self._pieces: list[str] = []

    def raw(self, piece: str) -> None:
        """Collect JSON text, whose strings are emitted when it is complete."""
        self._pieces.append(piece)

    def key(self, name: str) -> None:
        """Ignore the name of the parameter."""

    def quote(self) -> None:
        """Ignore the quotes of a string."""

    def string(self, piece: str) -> None:
        self._state.text(piece)

    def end_members(self) -> None:
        """Ignore the end of the parameters."""

    def end(self) -> None:
        text = normalize_arguments("".join(self._pieces)) if self._pieces else ""
        if is_object(text):
            # The parameter's name is of no interest: `{"answer": "Yes."}` and `{"text": "Yes."}` are the same answer.
            values = msgspec.json.decode(text).values()
            text = "\n".join([one if isinstance(one, str) else msgspec.json.encode(one).decode() for one in values])
        self._state.text(text)
        self._state.at_start = True  # blanks behind the mark are layout
        self._state.hold_text()
