"""Tools that are offered again and again: what is made of them is made once, and is the same as if it were not."""

import pytest

from toolgate.conversation.message import Message, Text
from toolgate.conversation.request import ModelRequest, ToolDef
from toolgate.conversation.stock import Stock, made_once, names_of
from toolgate.dialects.anthropic import DIALECT as ANTHROPIC
from toolgate.dialects.dialect import Dialect, Quirks
from toolgate.dialects.ollama import DIALECT as OLLAMA
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.dialects.openai_responses import DIALECT as OPENAI_RESPONSES
from toolgate.upstreams.adapt import adapt
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

    @made_once
    def count(tools: tuple[ToolDef, ...], word: str) -> str:
        made.append((len(tools), word))
        return f"{len(tools)} {word}"

    stock = Stock(TOOLS)
    assert [count(stock, "tools"), count(stock, "tools"), count(stock, "others")] == ["4 tools", "4 tools", "4 others"]
    assert made == [(4, "tools"), (4, "others")]


def test_nothing_is_remembered_of_another_stock_nor_of_a_clients_tools() -> None:
    assert names_of(Stock(TOOLS[:1])) == {"look"}
    assert names_of(Stock(TOOLS)) == names_of(TOOLS)


@pytest.mark.parametrize("dialect", DIALECTS, ids=[dialect.name for dialect in DIALECTS])
def test_an_upstream_is_told_of_a_stock_as_of_any_tools(dialect: Dialect) -> None:
    plain = ModelRequest("m", (Message("user", (Text("hi"),)),), TOOLS, dialect="anthropic")
    stocked = ModelRequest("m", plain.messages, Stock(TOOLS), dialect="anthropic")
    for _ in range(2):
        written, dropped = _written(stocked, dialect)
        assert (written, dropped) == _written(plain, dialect)
        assert b'"look"' in written


def _written(request: ModelRequest, dialect: Dialect) -> tuple[bytes, tuple[str, ...]]:
    body, dropped = dialect.upstream.encode_request(adapt(request, dialect.name, Quirks()).request, Quirks())
    return encode(body), dropped
