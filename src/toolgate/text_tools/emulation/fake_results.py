"""Find blocks of results that a model makes up, in its text while it comes.

A model that has read `Tool Call: f({…})` and `Result [SUCCESS]` may go on like that: it makes up results, or writes the line
instead of a call. Lines that begin so are held back until it is clear which; what follows a made-up result is no answer.
In an answer that has said something and called no tool, such a line is no made-up result: the model shows one to the user.
Knows no events.
"""

import re
from collections.abc import Collection

from toolgate.text_tools.prompts.prompt_renderer import CALL_MARK, OUTPUT_MARKS, RESULT_MARKS

# How results begin in the training data of a syntax's models: some write them whatever the prompt demands.
_TRAINED_MARKS: tuple[tuple[str, frozenset[str]], ...] = (
    ("Observation:", frozenset({"react", "command_r"})),
    ("<tool_response>", frozenset({"hermes", "hermes_tight", "hermes_ascii", "qwen3_coder", "longcat"})),
    ("<function_results>", frozenset({"invoke", "auto", "anthropic_xml", "anthropic_legacy"})),
)

# Lines, and runs of blank lines as one: a model may write hundreds of thousands of them.
_LINES = re.compile(r"(?<=\n)(?:[^\S\n]*+\n)++|[^\n]*\n|[^\n]+")
# `Tool Call: f({…})`, as our prompts write a call above its result; the arguments may have line breaks.
_CALL = re.compile(rf"{re.escape(CALL_MARK)}([^\s(]+)\((.*)\)[ \t]*\n?", re.DOTALL)
_SEPARATORS = ("", "---")  # the lines that our prompts have between two results
_LONGEST_LINE = 1 << 18  # characters of a line that is held back; a longer one is text


def result_marks(syntax: str) -> tuple[str, ...]:
    """Return the marks that show, at the start of a line, that a model of this syntax makes up results."""
    return (*RESULT_MARKS, *[mark for mark, syntaxes in _TRAINED_MARKS if syntax in syntaxes])


class FakeResultFilter:
    """Filters the text of one answer: `feed` returns what is certainly text.

    `calls` are the names and arguments of lines that stand for calls. `after_call` is whether the answer has called a tool.
    """

    def __init__(self, tools: Collection[str], marks: tuple[str, ...] = RESULT_MARKS) -> None:
        self.cut = False  # a made-up result has come, and the rest is ignored
        self.calls: list[tuple[str, str]] = []
        self.after_call = False
        self._has_text = False  # text that is not blank has passed
        self._tools = tools
        self._marks = marks
        self._deciding = True  # the current line may be one that is held back
        self._line: list[str] = []  # the pieces of the current line, while it may be held back
        self._size = 0  # of these pieces
        self._is_call = self._is_separator = False  # what the current line is so far
        self._held: list[str] = []

    def feed(self, text: str) -> str:
        """Return as much of the text so far as is certainly text."""
        if not self._deciding and "\n" not in text:  # most deltas: the rest of a line that was decided on
            self._has_text = self._has_text or not text.isspace()
            return text
        out: list[str] = []
        for piece in _LINES.findall(text):
            if self.cut:
                break
            if not self._deciding:
                out.append(piece)
                self._deciding = piece.endswith("\n")
                self._has_text = self._has_text or not piece.isspace()
                continue
            self._line.append(piece)
            self._size += len(piece)
            is_same = self._is_call or (self._is_separator and piece.isspace())
            if is_same and self._size <= _LONGEST_LINE and not piece.endswith("\n"):
                continue  # without joining the line, or each delta would cost as much as the line is long
            line = "".join(self._line)
            made_up = line.startswith(self._marks) and (self.after_call or self._held or not self._has_text)
            if made_up or (self.after_call and line.startswith(OUTPUT_MARKS)):
                self.cut = True
                self._start_line()
            elif len(line) <= _LONGEST_LINE and self._may_be_held(line):
                if line.endswith("\n"):
                    self._held.append(line)
                    self._start_line()
            else:
                out.append("".join(self._held) + line)
                self._has_text = self._has_text or not out[-1].isspace()
                self._held = []
                self._start_line()
                self._deciding = line.endswith("\n")
        return "".join(out)

    def release(self) -> str:
        """End the text and return what was held back and is text; lines that stand for calls go to `calls`."""
        lines = [*self._held, "".join(self._line)]
        found = [_CALL.fullmatch(line) for line in lines]
        calls = [(match[1], match[2]) for match in found if match and match[1] in self._tools]
        self.calls += calls
        text = "" if self.cut or calls else "".join(lines)
        self._held, self._deciding = [], True
        self._start_line()
        return text

    def _start_line(self) -> None:
        self._line, self._size, self._is_call, self._is_separator = [], 0, False, False

    def _may_be_held(self, line: str) -> bool:
        """Return whether the line is, or may become, one that is held back."""
        unfinished = not line.endswith("\n")
        # Between two lines that are held, separators are held, too: they are text only if those are.
        self._is_separator = bool(self._held) and line.strip() in _SEPARATORS
        if self._is_separator or (self._held and unfinished and "---".startswith(line)):
            return True
        outputs = OUTPUT_MARKS if self.after_call else ()
        if unfinished and any(mark.startswith(line) for mark in (CALL_MARK, *self._marks, *outputs)):
            return True
        if not line.startswith(CALL_MARK):
            return False
        name, opened, _ = line[len(CALL_MARK) :].partition("(")
        self._is_call = bool(opened) and name in self._tools
        return self._is_call or (not opened and unfinished and any(tool.startswith(name) for tool in self._tools))
