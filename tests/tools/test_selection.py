"""A request is offered the tools that it asks for and may use, and every call is checked again (spec: X2, R5, R9)."""

from typing import Any

import pytest

from tests.tools.fakes import FakeSource, many, source, tool
from tests.tools.test_registry import quickest
from toolgate.conversation.errors import InvalidRequest
from toolgate.tools.registry import ToolRegistry
from toolgate.tools.selection import (
    EVERYTHING,
    MAX_PATTERN_CHARS,
    MAX_PATTERNS,
    NOTHING,
    ToolQuery,
    ToolRights,
    ToolSelection,
    parse_tool_query,
    parse_tool_query_header,
)


async def registry(*sources: FakeSource) -> ToolRegistry:
    made = ToolRegistry(
        sources
        or [
            FakeSource(
                "python",
                [
                    tool("clock", tags=("time",)),
                    tool("get_page", tags=("web",)),
                    tool("get_time", tags=("time", "web"), when="online"),
                    tool("hidden", private=True, tags=("web",)),
                ],
            ),
            FakeSource("mcp/files", [tool("files_delete", "mcp/files", origin="delete")]),
        ]
    )
    await made.open()
    return made


def names(selection: ToolSelection) -> list[str]:
    return [tool.spec.name for tool in selection.tools]


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (True, ["clock", "get_page", "get_time", "files_delete"]),
        (False, []),
        (None, []),
        ([], []),
        (["*"], ["clock", "get_page", "get_time", "files_delete"]),
        (["get_*"], ["get_page", "get_time"]),
        (["clock", "get_t*"], ["clock", "get_time"]),
        (["tag:time"], ["clock", "get_time"]),
        ({"tags": ["web"]}, ["get_page", "get_time"]),
        ({"tags": ["web"], "names": ["clock"]}, ["clock", "get_page", "get_time"]),
        ({"names": ["nothing_*"]}, []),
        ({}, []),
    ],
)
async def test_a_wish_is_granted(wish: Any, expected: list[str]) -> None:
    selection = ToolSelection(await registry(), parse_tool_query(wish), {"online": True})
    assert names(selection) == expected
    assert all(selection.permits(name) for name in expected)
    assert not any(selection.permits(name) for name in {"clock", "get_page", "hidden", "nobody"} - {*expected})


@pytest.mark.parametrize(
    ("header", "wish"),
    [
        ("*", ["*"]),
        ("true", True),
        ("false", False),
        ("", []),
        ("get_*, clock", ["get_*", "clock"]),
        ("tag:web,,clock,", ["tag:web", "clock"]),
    ],
)
def test_a_header_means_the_same_as_a_body(header: str, wish: Any) -> None:
    assert parse_tool_query_header(header) == parse_tool_query(wish)


@pytest.mark.parametrize(
    ("wish", "param"),
    [
        (1, "use_server_tools"),
        ("clock", "use_server_tools"),
        ([1], "use_server_tools[0]"),
        (["a", ""], "use_server_tools[1]"),
        (["a" * 257], "use_server_tools[0]"),
        ([f"a{n}" for n in range(MAX_PATTERNS + 1)], "use_server_tools"),
        (["*" + "a" * 128] * 16, "use_server_tools"),
        ({"tag": ["a"]}, "use_server_tools.tag"),
        ({"tags": "a"}, "use_server_tools.tags"),
        ({"names": [None]}, "use_server_tools.names[0]"),
    ],
)
def test_a_wish_that_cannot_be_read_is_refused_by_its_path(wish: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_tool_query(wish)
    assert caught.value.param == param


def test_wishes_are_true_when_there_is_something_in_them() -> None:
    assert not NOTHING
    assert EVERYTHING
    assert ToolQuery(tags=frozenset({"a"}))


class TestUnknown:
    async def test_a_name_that_is_not_there_is_refused_with_a_suggestion(self) -> None:
        with pytest.raises(InvalidRequest, match="'get_pages'; did you mean 'get_page'") as caught:
            ToolSelection(await registry(), parse_tool_query(["get_pages"]))
        assert (caught.value.param, caught.value.code) == ("use_server_tools", "unknown_tool")

    async def test_nothing_is_suggested_where_nothing_is_near(self) -> None:
        with pytest.raises(InvalidRequest, match="GET /v1/tools"):
            ToolSelection(await registry(), parse_tool_query(["quux"]))

    async def test_a_forbidden_tool_looks_like_one_that_does_not_exist(self) -> None:
        rights = [ToolRights(block=("clock",))]
        for name in ("clock", "hidden"):
            with pytest.raises(InvalidRequest, match=f"no tool '{name}'; GET") as caught:
                ToolSelection(await registry(), parse_tool_query([name]), {}, rights)
            assert caught.value.code == "unknown_tool"

    async def test_a_named_tool_whose_clause_does_not_hold_is_warned_of(self) -> None:
        selection = ToolSelection(await registry(), parse_tool_query(["get_time", "clock"]), {})
        assert names(selection) == ["clock"]
        assert selection.warnings == ("the tool get_time is not offered now",)

    async def test_a_wish_that_nothing_fits_is_warned_of(self) -> None:
        assert ToolSelection(await registry(), parse_tool_query(["no_*"])).warnings == (
            "no server tool matches the request",
        )
        assert ToolSelection(await registry(), NOTHING).warnings == ()


@pytest.mark.parametrize(
    ("rights", "expected"),
    [
        (ToolRights(), {"clock", "get_page", "files_delete"}),
        (ToolRights(allow=("get_*",)), {"get_page"}),
        (ToolRights(block=("get_*",)), {"clock", "files_delete"}),
        (ToolRights(allow=("*",), block=("clock",)), {"get_page", "files_delete"}),
        (ToolRights(allow=("mcp/files/*",)), {"files_delete"}),
        (ToolRights(allow=("mcp/files/delete",)), {"files_delete"}),
        (ToolRights(block=("mcp/*",)), {"clock", "get_page"}),
        (ToolRights(allow=("tag:web",)), {"get_page"}),
        (ToolRights(block=("tag:t*",)), {"get_page", "files_delete"}),
        (ToolRights(allow=("delete",)), set()),
        (ToolRights(block=("delete",)), {"clock", "get_page"}),
        (ToolRights(allow=("*files*",)), {"files_delete"}),
        (ToolRights(allow=("*python*",)), set()),
        (ToolRights(allow=("Clock",)), set()),
    ],
)
async def test_rights_bound_what_is_offered_and_what_is_called(rights: ToolRights, expected: set[str]) -> None:
    """spec: R9; field: E15, E35: an allow-list reads public names, a block also the name before any prefix."""
    selection = ToolSelection(await registry(), EVERYTHING, {}, [ToolRights(), rights])
    assert set(names(selection)) == expected
    assert {name for name in ("clock", "get_page", "files_delete") if selection.permits(name)} == expected


async def test_all_lists_of_rights_must_permit() -> None:
    selection = ToolSelection(
        await registry(), EVERYTHING, {}, [ToolRights(allow=("get_*", "clock")), ToolRights(block=("clock",))]
    )
    assert names(selection) == ["get_page"]


async def test_a_reference_pulls_in_what_was_not_wished_for_but_nothing_forbidden() -> None:
    selection = ToolSelection(
        await registry(), NOTHING, {}, [ToolRights(block=("get_*",))], ["clock", "get_page", "hidden"]
    )
    assert names(selection) == ["clock"]
    assert selection.pinned >= {"clock"}
    assert not selection.permits("get_page")
    assert selection.permits("clock")


async def test_a_call_is_judged_by_what_is_there_now() -> None:
    """field: E35"""
    one = source("mcp/one", "a", "b")
    selection = ToolSelection(await registry(one), parse_tool_query(["*"]), {"on": True})
    assert names(selection) == ["a", "b"]
    one.bring(tool("a", "mcp/one", private=True), tool("b", "mcp/one", when="!on"), tool("c", "mcp/one"))
    assert [name for name in "abc" if selection.permits(name)] == ["c"]
    assert selection.find("c") is one.tools[2]


async def test_the_same_wish_of_another_caller_or_at_another_time_is_another_choice() -> None:
    brought = FakeSource("python", [tool("get_page"), tool("get_time", when="online")])
    tools, wish = await registry(brought), parse_tool_query(["get_*"])
    assert names(ToolSelection(tools, wish, {"online": True})) == ["get_page", "get_time"]
    assert names(ToolSelection(tools, wish, {"online": False})) == ["get_page"]
    assert names(ToolSelection(tools, wish, {"online": True}, [ToolRights(block=("*_page",))])) == ["get_time"]
    brought.bring(tool("get_news"))
    assert names(ToolSelection(tools, wish, {"online": True})) == ["get_news"]


async def test_a_namespaced_tool_does_not_inherit_the_rights_of_the_name_it_lost() -> None:
    """fault: T7; field: E15"""
    made = await registry(source("mcp/mail", "send"), source("mcp/evil", "send"))
    selection = ToolSelection(made, EVERYTHING, {}, [ToolRights(allow=("send",))])
    assert names(selection) == ["send"]
    assert not selection.permits("mcp_evil__send")


async def test_five_thousand_tools_are_chosen_from_in_no_time() -> None:
    """spec: N6"""
    made = await registry(FakeSource("mcp/big", many(5000)))
    rights = [ToolRights(allow=("big_*", "mcp/*"), block=("*delete*",))]
    wish = parse_tool_query(["big_read_*", "big_list_*", "tag:file"])
    assert len(ToolSelection(made, EVERYTHING, {"mode": "work"}).tools) == 5000
    assert quickest(lambda: ToolSelection(made, EVERYTHING)) < 0.020
    assert quickest(lambda: ToolSelection(made, wish, {"mode": "work"}, rights)) < 0.030


async def test_hostile_patterns_take_no_longer_than_plain_ones() -> None:
    made = await registry(FakeSource("python", [tool("a" * 64)]))
    wish = parse_tool_query(["*a" * 100 + "b"] * (MAX_PATTERN_CHARS // 201))
    assert quickest(lambda: ToolSelection(made, wish)) < 0.1
