"""The laws that every text syntax must keep; a new syntax is tested as soon as its module exists."""

import itertools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.text_tools.parsed import NOW, TOOLS, assert_well_formed, events, parts, tool
from tests.text_tools.strategies import fragments, law, mangle, mangling, render_everywhere, tools_and_calls
from tests.typed import all_of, of
from toolgate.conversation.arguments import is_object
from toolgate.conversation.events import PartEnd
from toolgate.conversation.message import Text, ToolCall
from toolgate.conversation.request import ToolDef
from toolgate.text_tools.parsing.parser import TextParser
from toolgate.text_tools.parsing.syntax import Syntax
from toolgate.text_tools.syntaxes import syntax, syntaxes

Example = tuple[tuple[ToolDef, ...], list[ToolCall]]
"""Tools, and calls of them."""

every_syntax = pytest.mark.parametrize("one", list(syntaxes().values()), ids=list(syntaxes()))
SINGLE_TOOL = (tool("now", x="string"), tool("x1", k9="integer"))


def split(text: str, sizes: list[int]) -> list[str]:
    """The text in pieces of these sizes, over and over."""
    pieces: list[str] = []
    position = 0
    for size in itertools.cycle(sizes):
        if position >= len(text):
            return pieces
        pieces.append(text[position : position + size])
        position += size
    raise AssertionError("sizes never run out")


sizes = st.lists(st.integers(1, 40), min_size=1, max_size=5) | st.just([1])


def exactly(text: str) -> object:
    """Decode arguments, with numbers as they are written."""
    return json.loads(text, parse_int=str, parse_float=str)


@law(80)
@given(tools_and_calls())
def test_1_what_a_syntax_writes_it_reads_back_exactly(example: Example) -> None:
    tools, calls = example
    wanted = [(call.name, exactly(call.arguments), True) for call in calls]
    for name, text in render_everywhere(calls, tools).items():
        found = parts(text, name, tools)
        assert [type(part) for part in found] == [ToolCall] * len(calls), (name, text, found)
        assert [(part.name, exactly(part.arguments), part.complete) for part in all_of(ToolCall, found)] == wanted, (
            name,
            text,
        )


@law(50)
@given(
    tools_and_calls(2),
    st.sampled_from(["", "Let me see.\n", "<think>Hm.</think>\n\n"]),
    st.sampled_from(["", "\nDone."]),
    sizes,
)
def test_2_where_a_text_is_split_changes_nothing(example: Example, before: str, after: str, sizes: list[int]) -> None:
    """field: F1"""
    tools, calls = example
    for name, text in render_everywhere(calls, tools).items():
        text = before + text + after
        assert parts(split(text, sizes), name, tools) == parts(text, name, tools), (name, text)


@law(120)
@given(fragments, sizes)
def test_3_where_nonsense_is_split_changes_nothing_either(text: str, sizes: list[int]) -> None:
    for name in syntaxes():
        assert parts(split(text, sizes), name, SINGLE_TOOL) == parts(text, name, SINGLE_TOOL), name


@law(60)
@given(fragments, sizes)
def test_4_one_part_is_open_at_a_time(text: str, sizes: list[int]) -> None:
    for name in syntaxes():
        assert_well_formed(events(split(text, sizes), name, SINGLE_TOOL))


@law(60)
@given(fragments, sizes)
def test_5_without_tools_every_character_is_text(text: str, sizes: list[int]) -> None:
    """Marks around reasoning and answers apart, and the channels of harmony, which are no text."""
    text = re.sub(r"</?(?:think|final_answer|response)>|<\|(?:channel|end|start|call|return)\|>|>>>", "", text)
    for name in syntaxes():
        assert parts(split(text, sizes), name, ()) == ([Text(text)] if text else []), name


@law(50)
@given(tools_and_calls(1), st.floats(0, 1, exclude_max=True))
def test_6_a_call_that_is_cut_off_is_not_read_as_another(example: Example, where: float) -> None:
    tools, calls = example
    for name, text in render_everywhere(calls, tools).items():
        for part in parts(text[: int(len(text) * where)], name, tools, cut=True):
            if isinstance(part, ToolCall) and part.complete:
                assert exactly(part.arguments) == exactly(calls[0].arguments), (name, text)


@law(80)
@given(tools_and_calls(2), st.data(), sizes)
def test_7_a_mangled_call_is_read_the_same_in_all_pieces_and_never_as_complete(
    example: Example, data: st.DataObject, sizes: list[int]
) -> None:
    tools, calls = example
    texts = render_everywhere(calls, tools)
    for name in data.draw(st.lists(st.sampled_from(list(texts)), min_size=1, max_size=5, unique=True)):
        text = mangle(texts[name], data.draw(mangling))
        for reader in (name, "auto"):
            assert parts(split(text, sizes), reader, tools) == parts(text, reader, tools), (reader, text)
            parser = TextParser(syntax(reader), tools)
            found = parser.feed(text) + parser.end()
            assert_well_formed(found)
            ended = [event.part for event in found if isinstance(event, PartEnd)]
            whole = [part for part in ended if isinstance(part, ToolCall) and part.complete]
            assert parser.problems or all(is_object(part.arguments) for part in whole), (reader, text)


@every_syntax
def test_8_text_between_calls_stays_in_place(one: Syntax) -> None:
    """field: F27"""
    call = one.render([ToolCall("call_000000000000000000000000", "now", "{}")], {"now": NOW})
    found = parts(f"One.\n{call}\nTwo.\n{call}\nThree.", one.name, TOOLS)
    assert [part.text.strip() if isinstance(part, Text) else of(ToolCall, part).name for part in found] == [
        "One.",
        "now",
        "Two.",
        "now",
        "Three.",
    ]


@every_syntax
def test_9_calls_in_code_are_text(one: Syntax) -> None:
    if "```" in (call := one.render([ToolCall("call_000000000000000000000000", "now", "{}")], {"now": NOW})):
        pytest.skip("the syntax is itself a fence")
    texts = [f"Write this:\n{fence}\n{call}\n{fence}\n" for fence in ("```", "````", "~~~", "~~~~~", "  ~~~")]
    texts += [f"~~~ {call.splitlines()[0]}\n```\n{call}\n```\n~~~\n", f"~~~~\n~~~\n{call}\n~~~~x\n{call}\n~~~~"]
    if "\n" not in call.strip():
        texts.append(f"Write this:\n```\n{call}\n```\nor `{call.strip()}`.")
    for text in texts:
        assert parts(text, one.name, TOOLS) == [Text(text)]
        assert parts(list(text), one.name, TOOLS) == [Text(text)]


@every_syntax
def test_10_calls_behind_code_are_calls(one: Syntax) -> None:
    if "```" in (call := one.render([ToolCall("call_000000000000000000000000", "now", "{}")], {"now": NOW})):
        pytest.skip("the syntax is itself a fence")
    for before in ("~~~\ncode\n~~~\n", "a ~~~ b\n", "```\n~~~\n```\n", "~~~\ncode\n~~~~~ \n", "~~\n"):
        found = parts(list(before + call), one.name, TOOLS)
        assert [type(part) for part in found] == [Text, ToolCall], before
