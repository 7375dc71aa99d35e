"""`#searchFiles` in a prompt: which tools the user's last words refer to.

A reference stands where a word could stand. What is part of a word (`C#x`), of an address (`…/page#part`), of a link
(`](#part)`), of a heading, or stands in code refers to nothing; nor does a word that no tool is called by.
"""

import re
from collections.abc import Iterator, Sequence

from toolgate.conversation.message import Message, Text
from toolgate.tools.registry import Registry
from toolgate.tools.tool import Tool

_MOST = 64
_REFERENCE = re.compile(r"""(?<![^\s([{"'“‘«,;])(?<!\]\()\#([A-Za-z_][\w-]{0,63})(?![\w-])(?![/:.@=]\w)""")
_FENCE = re.compile(r"[ \t>]*(`{3,}|~{3,})")
_TICKS = re.compile(r"(`+)")


def referenced(messages: Sequence[Message], registry: Registry) -> tuple[Tool, ...]:
    """The tools that the last words of the user refer to, in order, each once."""
    found: dict[str, Tool] = {}
    for word in _words(messages):
        for tool in registry.referenced(word) or registry.referenced(word.rstrip("-")):
            found.setdefault(tool.spec.name, tool)
        if len(found) >= _MOST:
            break
    return tuple(found.values())


def _words(messages: Sequence[Message]) -> Iterator[str]:
    for message in reversed(messages):
        texts = [part.text for part in message.parts if isinstance(part, Text)] if message.role == "user" else []
        if texts:
            for text in texts:
                yield from _references(text)
            return


def _references(text: str) -> Iterator[str]:
    if "#" not in text:
        return
    for line in _prose(text):
        if "#" in line:
            yield from [found[1] for found in _REFERENCE.finditer(_without_code(line))]


def _prose(text: str) -> Iterator[str]:
    """The lines that are not in a fenced block; a fence that is never closed hides the rest, as it does when shown."""
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
    """The line without what stands between backticks, as many before it as behind."""
    pieces = _TICKS.split(line)  # text, ticks, text, ticks, … text
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
