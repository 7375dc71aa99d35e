"""What every request must satisfy is checked of each, also of tools that came before (D15)."""

import asyncio

import pytest

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.message import Message, Text
from toolgate.conversation.request import ModelRequest, ToolDef
from toolgate.server.checks import RequestCheck
from toolgate.testing import ScriptedModel
from toolgate.upstreams.router import Route

ROUTE = Route("m", ScriptedModel([]), max_tools=2)
GOOD = (ToolDef("look", "Looks.", {"type": "object"}), ToolDef("write", input_schema={"properties": {}}))


def asked(*tools: ToolDef) -> ModelRequest:
    return ModelRequest("m", (Message("user", (Text("hi"),)),), tools)


@pytest.mark.parametrize(
    ("tools", "complaint"),
    [
        ((GOOD[0], ToolDef("look", "Looks.", {"type": "object"})), "used twice"),
        ((GOOD[0], ToolDef("write", input_schema={"properties": 1})), "not valid JSON Schema"),
        ((GOOD[0], ToolDef("wri te")), "without blanks"),
        ((*GOOD, ToolDef("more")), "at most 2"),
    ],
)
def test_tools_are_refused_however_like_they_are_to_good_ones_that_came_before(
    tools: tuple[ToolDef, ...], complaint: str
) -> None:
    check = RequestCheck()
    for _ in range(2):
        assert asyncio.run(check.check(asked(*GOOD), ROUTE)).tools == GOOD
        with pytest.raises(InvalidRequest, match=complaint):
            asyncio.run(check.check(asked(*tools), ROUTE))


def test_half_of_a_character_in_a_schema_is_the_clients_mistake() -> None:
    with pytest.raises(InvalidRequest, match="half of a surrogate pair"):
        asyncio.run(RequestCheck().check(asked(ToolDef("look", input_schema={"description": "\ud800"})), ROUTE))
