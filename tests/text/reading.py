"""Reading text through the parser, and what must be true of the events."""

import json
import re
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from toolgate.conversation.events import Delta, PartEnd, PartStart, StepEvent
from toolgate.conversation.ids import original
from toolgate.conversation.message import Part, Reasoning, Text, ToolCall
from toolgate.conversation.request import ToolDef
from toolgate.text.parser import Parser
from toolgate.text.syntaxes import syntax


def unmarked(text: str) -> str:
    """Results as a model reads them, without the marks around each, which no result can know."""
    return re.sub(r"<output ([0-9a-f]{16})>\n(.*?)\n</output \1>", r"\2", text, flags=re.DOTALL)


def tool(name: str, **types: Any) -> ToolDef:
    """A tool whose parameters have these types, or these schemas."""
    properties = {key: {"type": kind} if isinstance(kind, str) else kind for key, kind in types.items()}
    return ToolDef(name, None, {"type": "object", "properties": properties})


WEATHER = tool("get_weather", city="string", days="integer", metric="boolean", tags="array", where="object")
NOW = tool("now")
TOOLS = (WEATHER, NOW)


def ids() -> Any:
    """Call ids that count, so that answers can be compared."""
    numbers = iter(range(10_000))
    return lambda: f"call_{next(numbers):024d}"


def events(
    text: str | Sequence[str], name: str = "invoke", tools: Sequence[ToolDef] = TOOLS, cut: bool = False, **options: Any
) -> list[StepEvent]:
    """The events of a text, in pieces or whole."""
    parser = Parser(syntax(name), tools, new_id=ids(), **options)
    pieces = [text] if isinstance(text, str) else text
    found = [event for piece in pieces for event in parser.feed(piece)]
    return found + parser.end(cut=cut)


def parts(
    text: str | Sequence[str], name: str = "invoke", tools: Sequence[ToolDef] = TOOLS, **options: Any
) -> list[Part]:
    """The parts of a text, calls under the model's own ids where it gave any."""
    found = [event.part for event in events(text, name, tools, **options) if isinstance(event, PartEnd)]
    return [replace(part, id=original(part.id)) if isinstance(part, ToolCall) else part for part in found]


def told(
    text: str | Sequence[str], name: str = "invoke", tools: Sequence[ToolDef] = TOOLS, **options: Any
) -> list[Any]:
    """The parts of a text in short: words, `("reasoning", words)`, `(name, arguments)`, `(name, text, "cut")`."""
    return [_short(part) for part in parts(text, name, tools, **options)]


def _short(part: Part) -> Any:
    match part:
        case Text(text):
            return text
        case Reasoning(text):
            return ("reasoning", text)
        case ToolCall(complete=False):
            return (part.name, part.arguments, "cut")
        case ToolCall():
            return (part.name, json.loads(part.arguments))
    raise AssertionError(part)


def well_formed(found: Sequence[StepEvent]) -> None:
    """One part is open at a time, and its deltas are what it ends with."""
    open_part: Part | None = None
    deltas: list[str] = []
    for event in found:
        match event:
            case PartStart(part):
                assert open_part is None, "two parts are open"
                open_part, deltas = part, []
            case Delta(text):
                assert open_part is not None, "a delta belongs to no part"
                assert text, "a delta says nothing"
                deltas.append(text)
            case PartEnd(part):
                assert type(part) is type(open_part), "another part ends than began"
                whole = part.arguments if isinstance(part, ToolCall) else part.text
                assert "".join(deltas).strip() == whole.strip() or _is_quoted("".join(deltas), whole)
                open_part = None
            case _:
                raise AssertionError(f"{event} is no part event")
    assert open_part is None, "a part never ends"


def _is_quoted(deltas: str, whole: str) -> bool:
    """Arguments inside a string are told when they are whole; cut off, they are not told at all."""
    return not deltas and whole.startswith('"')
