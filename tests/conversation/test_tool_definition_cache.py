"""Tools that are offered again and again: what is made of them is made once, and is the same as if it were not."""

import pytest

from toolgate.conversation.message import Message, Text
from toolgate.conversation.request import ModelRequest, ToolDef
from toolgate.conversation.tool_definition_cache import MemoizedTools, cached_by_tools, tool_names
from toolgate.dialects.anthropic import DIALECT as ANTHROPIC
from toolgate.dialects.dialect import Dialect, Quirks
from toolgate.dialects.ollama import DIALECT as OLLAMA
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.dialects.openai_responses import DIALECT as OPENAI_RESPONSES
from toolgate.upstreams.tool_definition_rewrite import adapt
from toolgate.wire.jsontext import encode

TOOLS = (
    ToolDef("look", "Looks.", {"type": "object"}),
    ToolDef("wr\ud800ite"),
    ToolDef("a" * 90),
    ToolDef("search", kind="hosted"),
)
DIALECTS = (ANTHROPIC, OLLAMA, OPENAI_CHAT, OPENAI_RESPONSES)


def test_of_a_stock_a_thing_is_made_once_for_the_same_arguments() -> None:
    made: list[tuple[int, str]] = []

    @cached_by_tools
    def count(tools: tuple[ToolDef, ...], word: str) -> str:
        made.append((len(tools), word))
        return f"{len(tools)} {word}"

    cache = MemoizedTools(TOOLS)
    assert [count(cache, "tools"), count(cache, "tools"), count(cache, "others")] == ["4 tools", "4 tools", "4 others"]
    assert made == [(4, "tools"), (4, "others")]


def test_nothing_is_remembered_of_another_stock_nor_of_a_clients_tools() -> None:
    assert tool_names(MemoizedTools(TOOLS[:1])) == {"look"}
    assert tool_names(MemoizedTools(TOOLS)) == tool_names(TOOLS)


@pytest.mark.parametrize("dialect", DIALECTS, ids=[dialect.name for dialect in DIALECTS])
def test_cached_tools_are_encoded_like_any_others(dialect: Dialect) -> None:
    plain = ModelRequest("m", (Message("user", (Text("hi"),)),), TOOLS, dialect="anthropic")
    stocked = ModelRequest("m", plain.messages, MemoizedTools(TOOLS), dialect="anthropic")
    for _ in range(2):
        written, dropped = _written(stocked, dialect)
        assert (written, dropped) == _written(plain, dialect)
        assert b'"look"' in written


def _written(request: ModelRequest, dialect: Dialect) -> tuple[bytes, tuple[str, ...]]:
    body, dropped = dialect.upstream.encode_request(adapt(request, dialect.name, Quirks()).request, Quirks())
    return encode(body), dropped
