"""Fuzzes the text parser: `python tests/fuzz/parser.py`, with `atheris` installed; arguments go to libFuzzer.

Whatever a model writes, in whatever pieces, in whatever syntax: reading it never fails, one part is open at a time, the
pieces change nothing, and a call that is told as whole and without a problem has arguments that are a JSON object.
"""

import sys

import atheris  # type: ignore[import-untyped]  # it brings no types

with atheris.instrument_imports():
    from toolgate.conversation.arguments import is_object
    from toolgate.conversation.events import PartDelta, PartEnd, PartStart, StepEvent
    from toolgate.conversation.message import Part, ToolCall
    from toolgate.conversation.request import ToolDef
    from toolgate.text_tools.parsing.argument_repair import repair
    from toolgate.text_tools.parsing.parser import TextParser
    from toolgate.text_tools.syntaxes import syntax, syntaxes

NAMES = sorted(syntaxes())
TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
SCHEMA = {"type": "object", "properties": {kind[0]: {"type": kind} for kind in TYPES} | {"any": {}}}
TOOLS = (ToolDef("f", None, SCHEMA), ToolDef("now", None, {"type": "object", "properties": {}}))


def read(name: str, pieces: list[str], cut: bool) -> tuple[list[StepEvent], bool]:
    """The events of a text, and whether all calls could be made out."""
    numbers = iter(range(1 << 30))
    parser = TextParser(syntax(name), TOOLS, new_id=lambda: f"call_{next(numbers):024d}")
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.end(cut=cut), not parser.problems


def parts(events: list[StepEvent]) -> list[Part]:
    """The parts; what a model calls its calls is left out, for our ids around it are random."""
    found = [event.part for event in events if isinstance(event, PartEnd)]
    return [ToolCall("", p.name, p.arguments, complete=p.complete) if isinstance(p, ToolCall) else p for p in found]


def check(data: bytes) -> None:
    """One input: a syntax, whether the model was cut off, a piece size, and the text."""
    source = atheris.FuzzedDataProvider(data)
    name, cut = NAMES[source.ConsumeIntInRange(0, len(NAMES) - 1)], source.ConsumeBool()
    size = source.ConsumeIntInRange(1, 16)
    text = source.ConsumeUnicodeNoSurrogates(1 << 16)
    whole, fine = read(name, [text], cut)
    split, _ = read(name, [text[at : at + size] for at in range(0, len(text), size)], cut)
    assert parts(whole) == parts(split), "the pieces matter"
    is_open = False
    for event in split:
        assert is_open is not isinstance(event, PartStart), "parts overlap"
        is_open = isinstance(event, (PartStart, PartDelta))
    assert not is_open, "a part never ends"
    for part in parts(whole):
        if isinstance(part, ToolCall):
            assert is_object(part.arguments) or not part.complete or not fine, "a whole call without arguments"
            repair(part.arguments, cut=cut)


if __name__ == "__main__":
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()
