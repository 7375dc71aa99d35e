"""Parse text and summarize its parts, and check that the events are well formed."""

import json
import re
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from toolgate.conversation.call_ids import original_id
from toolgate.conversation.events import PartDelta, PartEnd, PartStart, StepEvent
from toolgate.conversation.message import Part, Reasoning, Text, ToolCall
from toolgate.conversation.request import ToolDef
from toolgate.text_tools.parsing.parser import TextParser
from toolgate.text_tools.syntaxes import syntax


def without_result_marks(text: str) -> str:
    """Return results as a model reads them, without the secret marks around each."""
    return re.sub(r"<output ([0-9a-f]{16})>\n(.*?)\n</output \1>", r"\2", text, flags=re.DOTALL)


def tool(name: str, **types: Any) -> ToolDef:
    """Return a tool whose parameters have these types, or these schemas."""
    properties = {key: {"type": kind} if isinstance(kind, str) else kind for key, kind in types.items()}
    return ToolDef(name, None, {"type": "object", "properties": properties})


WEATHER = tool("get_weather", city="string", days="integer", metric="boolean", tags="array", where="object")
NOW = tool("now")
TOOLS = (WEATHER, NOW)


def counting_ids() -> Any:
    """Return a source of call ids that count, so that answers can be compared."""
    numbers = iter(range(10_000))
    return lambda: f"call_{next(numbers):024d}"


def events(
    text: str | Sequence[str], name: str = "invoke", tools: Sequence[ToolDef] = TOOLS, cut: bool = False, **options: Any
) -> list[StepEvent]:
    """Return the events of a text, in pieces or whole."""
    parser = TextParser(syntax(name), tools, new_id=counting_ids(), **options)
    pieces = [text] if isinstance(text, str) else text
    found = [event for piece in pieces for event in parser.feed(piece)]
    return found + parser.end(cut=cut)


def parts(
    text: str | Sequence[str], name: str = "invoke", tools: Sequence[ToolDef] = TOOLS, **options: Any
) -> list[Part]:
    """Return the parts of a text; calls have the ids that the model gave them."""
    found = [event.part for event in events(text, name, tools, **options) if isinstance(event, PartEnd)]
    return [replace(part, id=original_id(part.id)) if isinstance(part, ToolCall) else part for part in found]


def summary(
    text: str | Sequence[str], name: str = "invoke", tools: Sequence[ToolDef] = TOOLS, **options: Any
) -> list[Any]:
    """Return the parts of a text in short: text, `("reasoning", text)`, `(name, arguments)`, `(name, text, "cut")`."""
    return [_summarize(part) for part in parts(text, name, tools, **options)]


def _summarize(part: Part) -> Any:
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


def assert_well_formed(found: Sequence[StepEvent]) -> None:
    """Assert that one part is open at a time, and that its deltas are its content."""
    open_part: Part | None = None
    deltas: list[str] = []
    for event in found:
        match event:
            case PartStart(part):
                assert open_part is None, "two parts are open"
                open_part, deltas = part, []
            case PartDelta(text):
                assert open_part is not None, "a delta belongs to no part"
                assert text, "a delta is empty"
                deltas.append(text)
            case PartEnd(part):
                assert type(part) is type(open_part), "another part ends than began"
                assert isinstance(part, ToolCall | Text | Reasoning)
                whole = part.arguments if isinstance(part, ToolCall) else part.text
                assert "".join(deltas).strip() == whole.strip() or _is_quoted("".join(deltas), whole)
                open_part = None
            case _:
                raise AssertionError(f"{event} is no part event")
    assert open_part is None, "a part never ends"


def _is_quoted(deltas: str, whole: str) -> bool:
    """Return whether these are arguments inside a string, which have no deltas until they are complete."""
    return not deltas and whole.startswith('"')
