"""Offering more tools than a model accepts: groups, search and the limit that is never passed (R7, N6; field: E31)."""

import random
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.fakes import FakeTool, many, tool
from tests.tools.test_registry import quickest
from toolgate.conversation.message import Message, Text, ToolCall, plain_text
from toolgate.tools.tool_search_index import ToolSearchIndex
from toolgate.tools.virtual_tool_groups import VirtualToolSet, VirtualToolSetFactory


def offer(tools: Sequence[FakeTool], **options: Any) -> VirtualToolSet:
    return VirtualToolSetFactory().offer(tools, ToolSearchIndex([tool.spec for tool in tools]), **options)


def names(offer: VirtualToolSet) -> list[str]:
    return [spec.name for spec in offer.offered()]


def some(source: str, count: int, **fields: Any) -> list[FakeTool]:
    prefix = source.rpartition("/")[2]
    return [tool(f"{prefix}_{number:03}", source, **fields) for number in range(count)]


def open_text(offer: VirtualToolSet, name: str, **arguments: str) -> str:
    return plain_text(offer.open(name, arguments).content)


FILES, MAIL, SHOP = some("mcp/files", 20), some("mcp/mail", 12), some("http/shop", 30)
OWN = some("builtin", 5)
ALL = [*FILES, *MAIL, *SHOP, *OWN]


def test_up_to_the_limit_every_tool_is_offered_as_it_is() -> None:
    exact = offer(ALL, limit=len(ALL))
    assert names(exact) == [tool.spec.name for tool in ALL]
    assert not exact.is_virtual("search_tools")
    assert exact.resolve("files_003") is FILES[3]


def test_above_it_sources_stand_behind_groups_and_our_own_tools_stay_flat() -> None:
    first = offer(ALL, limit=64)
    own = [tool.spec.name for tool in OWN]
    groups = ["activate_mcp_files_part_1", "activate_mcp_files_part_2", "activate_mcp_mail"]
    assert names(first)[: 1 + len(own) + 3] == ["search_tools", *own, *groups]
    assert all(first.is_virtual(name) for name in ["search_tools", *groups])
    assert not first.is_virtual("files_003")
    mail = next(tool for tool in first.offered() if tool.name == "activate_mcp_mail")
    assert mail.description is not None
    assert "mail_000, mail_001" in mail.description
    assert "Opens 12 further tools" in mail.description
    assert mail.input_schema == {"type": "object", "properties": {}, "additionalProperties": False}


def test_what_is_opened_is_offered_from_the_next_step_on_behind_all_that_was_there() -> None:
    one = offer(ALL, limit=64)
    before = names(one)
    opened = [tool.spec.name for tool in MAIL]
    assert open_text(one, "activate_mcp_mail") == f"Tools activated: {', '.join(opened)}"
    assert names(one) == before + opened
    open_text(one, "activate_mcp_mail")
    assert names(one) == before + opened


def test_the_least_recently_used_group_is_put_back_when_room_is_short() -> None:
    sources = [tool for number in range(20) for tool in some(f"mcp/s{number:02}", 10)]
    one = offer(sources, limit=44)
    front = names(one)
    assert len(front) == 21
    open_text(one, "activate_mcp_s00")
    open_text(one, "activate_mcp_s01")
    assert len(names(one)) == 41
    assert one.resolve("s00_003") is not None  # the older one is used again
    open_text(one, "activate_mcp_s02")
    shown = names(one)
    assert len(shown) == 41
    assert shown[:21] == front
    assert ("s00_003" in shown, "s01_003" in shown, "s02_003" in shown) == (True, False, True)


def test_a_search_opens_what_fits_best() -> None:
    tools = [*ALL, tool("send_invoice", "http/shop", "Sends a bill to a customer.")]
    one = offer(tools, limit=32)
    assert open_text(one, "search_tools", query="bill the customer") == "Tools activated: send_invoice"
    assert names(one)[-1] == "send_invoice"
    assert open_text(one, "search_tools", query="qwertz").startswith("No tool fits")
    assert one.open("search_tools", {}).is_error
    assert one.open("search_tools", {"query": 3}).is_error


def test_a_hidden_tool_that_is_called_by_name_comes_with_its_group() -> None:
    one = offer(ALL, limit=64)
    assert "mail_004" not in names(one)
    assert one.resolve("mail_004") is MAIL[4]
    assert "mail_004" in names(one)
    assert "mail_011" in names(one)
    assert one.resolve("activate_mcp_mail") is None
    assert one.resolve("nobody") is None


async def test_a_conversation_that_is_continued_finds_its_groups_open() -> None:
    live = offer(ALL, limit=64)
    calls = [("activate_mcp_mail", {}), ("search_tools", {"query": "shop_017"}), ("files_003", {}), ("gone", {})]
    for name, arguments in calls:
        if live.is_virtual(name):
            live.open(name, arguments)
        else:
            live.resolve(name)
    history = [
        Message(
            "assistant", (Text("Let me see."), ToolCall(f"call_{n}", name, msgspec.json.encode(arguments).decode()))
        )
        for n, (name, arguments) in enumerate(calls)
    ]
    again = offer(ALL, limit=64)
    await again.reopen_from([*history, Message("assistant", (ToolCall("call_x", "search_tools", "{broken"),))])
    assert names(again) == names(live)
    by_name = offer(ALL, limit=64)
    by_name.reopen(["activate_mcp_mail", "files_003", "gone", "activate_gone"])
    assert {"mail_000", "files_003"} <= set(names(by_name))


class CountingSearchIndex(ToolSearchIndex):
    """Counts the searches."""

    searches = 0

    def best(self, query: str, count: int = 10, among: Collection[str] | None = None) -> tuple[str, ...]:
        self.searches += 1
        return super().best(query, count, among)


async def test_of_a_long_history_the_last_calls_are_made_again_and_keep_their_places() -> None:
    """A client that sent thousands of searches stopped the server for seconds."""
    calls = [("search_tools", f'{{"query": "shop_{number % 30:03} {number}"}}') for number in range(1000)]
    calls += [("search_tools", '{"query": "shop_017"}'), ("activate_mcp_mail", "{}")]
    calls += [("search_tools", '{"query": "shop_017"}'), *[("mail_011", "{}")] * 1000]
    history = [Message("assistant", tuple([ToolCall("", *call) for call in calls]))]
    search = CountingSearchIndex([tool.spec for tool in ALL])
    one = VirtualToolSetFactory().offer(ALL, search, limit=64)
    await one.reopen_from(history)
    assert search.searches == 16
    shown = names(one)
    assert shown.index("shop_017") < shown.index("mail_011")


def test_a_tool_that_was_asked_for_by_name_is_offered_at_once_and_last() -> None:
    plain, pinned = offer(ALL, limit=64), offer(ALL, limit=64, pinned={"shop_017", "files_001", "gone"})
    assert names(pinned) == [*names(plain), "files_001", "shop_017"]


def test_the_clients_own_tools_go_before_ours_of_the_same_name() -> None:
    one = offer(ALL, limit=62, taken={"mail_004", "search_tools", "activate_mcp_mail"})
    assert one.resolve("mail_004") is None
    assert {"search_tools_2", "activate_mcp_mail_2"} <= set(names(one))
    assert not {"mail_004", "search_tools", "activate_mcp_mail"} & set(names(one))
    assert "mail_004" not in open_text(one, "activate_mcp_mail_2")


def test_clients_whose_tools_have_other_names_than_ours_are_shown_the_very_same() -> None:
    factory, search = VirtualToolSetFactory(), ToolSearchIndex([tool.spec for tool in ALL])
    mine, yours = (factory.offer(ALL, search, limit=62, taken={name}) for name in ("my_tool", "your_tool"))
    assert all(one is other for one, other in zip(mine.offered(), yours.offered(), strict=True))
    assert factory.offer(ALL, search, limit=62, taken={"mail_004"}).resolve("mail_004") is None


def test_one_large_source_is_divided_by_tags_or_by_how_names_begin_or_by_the_alphabet() -> None:
    tagged = [tool(f"git_{n:03}", "mcp/git", tags=("issues" if n % 2 else "pulls",)) for n in range(60)]
    assert names(offer(tagged, limit=50))[1].startswith("activate_mcp_git_pulls")
    alike = [tool(t.spec.name, "http/git", tags=("http", "git", *t.spec.tags)) for t in tagged]
    assert names(offer(alike, limit=50))[1].startswith("activate_http_git_pulls")
    begun = [tool(f"git_{verb}_{n:02}", "mcp/git") for verb in ("get", "list", "put") for n in range(10)]
    lone = [*begun, tool("git_odd_1", "mcp/git"), tool("git_strange_1", "mcp/git")]
    groups = [f"activate_mcp_git_{verb}" for verb in ("get", "list", "put", "other")]
    assert names(offer(lone, limit=41, threshold=20))[1:] == groups
    alike = [tool(f"t{n:03}", "mcp/git") for n in range(60)]
    assert names(offer(alike, limit=50))[1:] == [f"activate_mcp_git_part_{n}" for n in range(1, 6)]


def test_a_group_of_one_is_the_tool_itself() -> None:
    assert "lonely_000" in names(offer([*ALL, *some("mcp/lonely", 1)], limit=64))


def test_our_own_tools_are_grouped_when_they_alone_are_too_many() -> None:
    assert any(name.startswith("activate_builtin") for name in names(offer(some("builtin", 200), limit=64)))


def test_the_order_does_not_depend_on_what_else_went_on() -> None:
    factory = VirtualToolSetFactory()
    search = ToolSearchIndex([tool.spec for tool in ALL])
    first = factory.offer(ALL, search, limit=64)
    first.open("activate_mcp_mail")
    second = factory.offer(list(ALL), search, limit=64)
    assert [spec.name for spec in second.offered()] == names(offer(ALL, limit=64))
    assert second.offered()[1] == first.offered()[1]


@pytest.mark.parametrize("limit", [-3, 0, 1])
def test_where_there_is_no_room_only_what_was_asked_for_by_name_is_offered(limit: int) -> None:
    one = offer(ALL, limit=limit, pinned={"files_001", "files_002"})
    assert names(one) == ["files_001"][: max(0, limit)]
    assert one.resolve("files_009") is FILES[9]
    assert len(names(one)) <= max(0, limit)


@given(st.data())
def test_the_limit_is_never_passed_and_every_tool_can_be_reached(data: st.DataObject) -> None:
    """field: E31"""
    sources = data.draw(st.lists(st.integers(1, 60), min_size=1, max_size=12))
    limit = data.draw(st.integers(9, 140))
    tools = [tool for number, count in enumerate(sources) for tool in some(f"mcp/s{number}", count)]
    one = offer(tools, limit=limit, threshold=data.draw(st.integers(0, 100)))
    chance = random.Random(data.draw(st.integers(0, 99)))
    prefix = names(one)
    seen: set[str] = set()
    waiting = [name for name in names(one) if one.is_virtual(name) and name != "search_tools"]
    while waiting:
        opened = waiting.pop(chance.randrange(len(waiting)))
        emitted = open_text(one, opened).removeprefix("Tools activated: ").split(", ")
        shown = names(one)
        assert len(shown) <= limit
        assert len(set(shown)) == len(shown)
        assert shown[: len(prefix)] == prefix
        assert set(emitted) <= set(shown)
        waiting += [name for name in emitted if one.is_virtual(name)]
        seen |= set(emitted)
    assert {tool.spec.name for tool in tools} <= seen | set(prefix)


@given(st.integers(0, 12), st.lists(st.sampled_from([t.spec.name for t in ALL]), max_size=20))
def test_a_tiny_limit_is_kept_whatever_is_called(limit: int, calls: list[str]) -> None:
    one = offer(ALL, limit=limit)
    for name in calls:
        assert one.resolve(name) is not None
        one.open("search_tools", {"query": name}) if one.is_virtual("search_tools") else None
        assert len(names(one)) <= limit


def test_five_thousand_tools_are_grouped_in_no_time() -> None:
    """spec: N6"""
    tools = many(5000)
    search = ToolSearchIndex([tool.spec for tool in tools])
    assert len(VirtualToolSetFactory().offer(tools, search).offered()) <= 128
    assert quickest(lambda: VirtualToolSetFactory().offer(tools, search)) < 0.060
    factory = VirtualToolSetFactory()
    assert quickest(lambda: factory.offer(tools, search).offered()) < 0.005
    one = factory.offer(tools, search)
    assert quickest(lambda: one.open("search_tools", {"query": "delete the ticket of a user"})) < 0.020
    assert quickest(lambda: one.open(names(one)[3])) < 0.010
