"""`#searchFiles` pulls a tool in, and what only looks like it does not (spec: R1)."""

import time
from collections.abc import Sequence

import pytest

from tests.tools.fakes import FakeSource, tool
from toolgate.conversation.message import Media, Message, Text, ToolCall, ToolResult
from toolgate.tools.prompt_references import _ends, referenced_tools
from toolgate.tools.registry import ToolRegistry

TOOLS = [
    tool("search_files", reference_name="searchFiles"),
    tool("clock"),
    tool("x", reference_name="x"),
    tool("part", reference_name="part"),
    tool("get-page", reference_name="get-page"),
    tool("hidden", reference_name="hidden", private=True),
    tool("twin_a", reference_name="twin"),
    tool("twin_b", reference_name="twin"),
]


async def found(*messages: Message | str) -> list[str]:
    registry = ToolRegistry([FakeSource("python", TOOLS)])
    await registry.open()
    emitted = [Message("user", (Text(one),)) if isinstance(one, str) else one for one in messages]
    names = [tool.spec.name for tool in referenced_tools(emitted, registry)]
    await registry.aclose()
    return names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Use #searchFiles for it", ["search_files"]),
        ("#clock", ["clock"]),
        ("#search_files by its name", ["search_files"]),
        ("what time? (#clock)", ["clock"]),
        ("#clock, then #searchFiles. And #clock!", ["clock", "search_files"]),
        ('"#clock"', ["clock"]),
        ("first line\n#clock now", ["clock"]),
        ("#get-page- please", ["get-page"]),
        ("#clock: what is it?", ["clock"]),
        ("#twin", ["twin_a", "twin_b"]),
        ("`code` then #clock", ["clock"]),
        ("an unpaired ` before #clock", ["clock"]),
        ("```\ncode\n```\n#clock", ["clock"]),
        ("```` \n```\n#x\n````\n#clock", ["clock"]),
    ],
)
async def test_a_reference_is_understood(text: str, expected: Sequence[str]) -> None:
    assert await found(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "see #1 and #12",
        "# clock",
        "## clock",
        "##clock",
        "C#x is a language",
        "https://example.org/page#part",
        "https://example.org/#part",
        "https://example.org/?q=#part",
        "[link](#part)",
        "&#x41;",
        "`#clock`",
        "`` ` #clock ``",
        "```\n#clock\n```",
        "~~~python\n#clock\n~~~",
        "> ```\n> #clock\n> ```",
        "```\n#clock and the fence is never closed",
        "#hidden",
        "#nobody",
        "#clockwork",
        "#clock/hand",
        "#clock.hand",
        "#Clock",
        "#",
        "",
    ],
)
async def test_what_only_looks_like_a_reference_is_none(text: str) -> None:
    assert await found(text) == []


async def test_only_the_last_message_of_the_user_counts_whatever_came_after_it() -> None:
    call = Message("assistant", (Text("I use #x"), ToolCall("call_1", "clock", "{}")))
    result = Message("tool", (ToolResult("call_1", (Text("#part"),)),))
    assert await found("#searchFiles", "and #clock", call, result) == ["clock"]


async def test_a_message_without_text_is_ignored() -> None:
    picture = Message("user", (Media("image", "image/png", "aGk="),))
    assert await found("#clock", picture) == ["clock"]
    assert await found(Message("user", (Text("#clock"), Text("#x")))) == ["clock", "x"]
    assert await found() == []


@pytest.mark.parametrize("paste", ["#x " * 3_000_000, "`#x" * 3_000_000, "#x\n" * 3_000_000])
async def test_of_a_long_message_the_beginning_and_the_end_are_read(paste: str) -> None:
    """Nine megabytes of references stopped the server for two seconds."""
    middle = paste[: len(paste) // 2].replace("#x", "#y"), "#part\n", paste[len(paste) // 2 :].replace("#x", "#y")
    whole = f"#clock\n{''.join(middle)}\nand #get-page"
    assert await found(whole) == ["clock", "get-page"]
    assert await found(Message("user", (Text("#clock"), *map(Text, middle), Text("#get-page")))) == [
        "clock",
        "get-page",
    ]


def test_what_is_read_of_a_message_is_bounded_in_characters_and_parts() -> None:
    assert sum(map(len, _ends(["#x " * 3_000_000]))) <= 2 * 32_768
    assert len(_ends(["#x"] * 50_000)) < 2_000


@pytest.mark.parametrize("text", ["#" * 200_000, "` `` ``` " * 30_000 + "#y", "#y " * 100_000, "```\n" * 50_000 + "#y"])
async def test_a_hostile_text_is_read_in_no_time(text: str) -> None:
    started = time.process_time()
    assert await found(text) == []
    assert time.process_time() - started < 1.0
