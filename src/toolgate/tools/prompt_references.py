"""Find the tools that the user's last message refers to, as in `#searchFiles`.

A reference stands where a word could stand. What is part of a word (`C#x`), of an address (`…/page#part`), of a link
(`](#part)`), of a heading, or stands in code is no reference; nor is a word that is no tool's name.
Of a long message only the beginning and the end are read, where people write: what is between them was pasted.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from toolgate.conversation.message import Message, Text
from toolgate.tools.registry import ToolRegistry
from toolgate.tools.tool import Tool

_MAX_TOOLS = 64
# Characters that are read of either end of a message, and those that a part counts for beside its own.
_END_CHARS = 32 * 1024
_PART_CHARS = 32
# `#name` after a space, an opening bracket, a quote or a comma, but not in a link's `](#part)`; and not before what
# would make it an address or an assignment, as in `#a/b`, `#a.b` or `#a=1`.
_REFERENCE = re.compile(r"""(?<![^\s([{"'“‘«,;])(?<!\]\()\#([A-Za-z_][\w-]{0,63})(?![\w-])(?![/:.@=]\w)""")
# The beginning of a fenced block, ``` or ~~~, also indented or in a quotation.
_FENCE = re.compile(r"[ \t>]*(`{3,}|~{3,})")
_TICKS = re.compile(r"(`+)")


def referenced_tools(messages: Sequence[Message], registry: ToolRegistry) -> tuple[Tool, ...]:
    """List the tools that the last text of the user refers to, in order, each once."""
    # The last messages may be results of tools, which the user did not write.
    texts: list[str] = []
    for message in reversed(messages):
        texts = [part.text for part in message.parts if isinstance(part, Text)] if message.role == "user" else []
        if texts:
            break
    found: dict[str, Tool] = {}
    lines = [line for text in _ends(texts) if "#" in text for line in _lines_outside_fences(text) if "#" in line]
    for word in (reference[1] for line in lines for reference in _REFERENCE.finditer(_without_code(line))):
        # A dash may belong to the sentence: "use #clock- it is".
        for tool in registry.referenced(word) or registry.referenced(word.rstrip("-")):
            found.setdefault(tool.spec.name, tool)
        if len(found) >= _MAX_TOOLS:
            break
    return tuple(found.values())


def _ends(texts: Sequence[str]) -> list[str]:
    """Return the beginning and the end of the texts, cut between lines or words, or all of them if they are short."""
    if sum([len(text) + _PART_CHARS for text in texts]) <= 2 * _END_CHARS:
        return list(texts)
    return [*_first(texts, _cut_end), *reversed(_first(texts[::-1], _cut_beginning))]


def _first(texts: Sequence[str], cut: Callable[[str, int], str]) -> list[str]:
    first, left = [], _END_CHARS
    for text in texts:
        first.append(cut(text, left) if len(text) > left else text)
        left -= len(text) + _PART_CHARS
        if left <= 0:
            break
    return first


def _cut_end(text: str, left: int) -> str:
    return text[:left].rpartition("\n")[0] or text[:left].rpartition(" ")[0]


def _cut_beginning(text: str, left: int) -> str:
    return text[-left:].partition("\n")[2] or text[-left:].partition(" ")[2]


def _lines_outside_fences(text: str) -> Iterator[str]:
    """Iterate over the lines outside of fenced blocks; an open fence hides the rest, as it does when Markdown is shown."""
    fence = ""
    for line in text.splitlines():
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line[mark.end() :].strip(" \t`~"):
                fence = ""
        elif mark:
            fence = mark[1]
        else:
            yield line


def _without_code(line: str) -> str:
    """Remove code spans: what stands between as many backticks before it as after it."""
    pieces = _TICKS.split(line)  # text, ticks, text, ticks, … text
    # From right to left, so that one pass finds for each run of ticks the next one of the same length. A search from
    # each run would take quadratic time for a line of many ticks.
    closing: dict[int, int] = {}
    ends = [0] * len(pieces)
    for place in range(len(pieces) - 2, 0, -2):
        ends[place] = closing.get(len(pieces[place]), place)
        closing[len(pieces[place])] = place
    kept, place = [pieces[0]], 1
    while place < len(pieces):
        place = ends[place]
        kept += ["`", pieces[place + 1]]
        place += 2
    return "".join(kept)
