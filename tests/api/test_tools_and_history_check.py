"""The checks of every request, also where the same tools were checked before."""

import asyncio

import pytest

from toolgate.api.tools_and_history_check import ToolsAndHistoryValidator
from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.message import Message, Text
from toolgate.conversation.request import ModelRequest, ToolDef
from toolgate.testing import ScriptedModel
from toolgate.upstreams.router import ModelRoute

ROUTE = ModelRoute("m", ScriptedModel([]), max_tools=2)
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
def test_invalid_tools_are_refused_even_if_similar_valid_ones_were_cached(
    tools: tuple[ToolDef, ...], complaint: str
) -> None:
    check = ToolsAndHistoryValidator()
    for _ in range(2):
        assert asyncio.run(check.check(asked(*GOOD), ROUTE)).tools == GOOD
        with pytest.raises(InvalidRequest, match=complaint):
            asyncio.run(check.check(asked(*tools), ROUTE))


def test_half_a_surrogate_pair_in_a_schema_is_a_client_error() -> None:
    with pytest.raises(InvalidRequest, match="half of a surrogate pair"):
        asyncio.run(
            ToolsAndHistoryValidator().check(asked(ToolDef("look", input_schema={"description": "\ud800"})), ROUTE)
        )
