"""A page of a list is bounded in bytes as well as in items, and its cursor leads to the rest. (fault: Z1)"""

import pytest

from tests.api.approval_server import open_approval_server
from tests.api.records.record_server import RecordServer, record_server
from tests.api.records.test_invocations import call, run_tools
from tests.api.test_approvals import get
from toolgate.config.settings import RecordSettings
from toolgate.storage import sql_engine
from toolgate.testing import FakeSource, FakeTool

LONG = "x" * 10_000
ROOM_FOR_TWO = 25_000


def pages(kept: RecordServer, path: str) -> list[int]:
    """How many items each page has; each item is there once."""
    counts, seen, after = [], [], ""
    while True:
        status, page = kept.ask(f"{path}limit=100{after}")
        assert status == 200, page
        counts.append(len(page["data"]))
        seen += [one["id"] for one in page["data"]]
        assert (page["first_id"], page["last_id"]) == (seen[-counts[-1]], seen[-1])
        if not page["has_more"]:
            break
        after = f"&after={page['last_id']}"
    assert len(seen) == len(set(seen))
    return counts


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_of_large_messages_are_short(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    monkeypatch.setattr(sql_engine, "PAGE_BYTES", ROOM_FOR_TWO)
    with record_server() as kept:
        kept.play("Yes.", "No.")
        given = [{"role": "user", "content": f"{number}{LONG}"} for number in range(5)]
        question = {"model": "openai_chat", "messages": given, "store": True}
        status, answer = kept.ask("/v1/chat/completions", method="POST", body=question)
        assert status == 200, answer
        [chat] = kept.listed("/v1/chats")
        in_order = [2, 2, 2] if order == "asc" else [3, 2, 1]
        assert pages(kept, f"/v1/chats/{chat['id']}/messages?order={order}&") == in_order
        assert pages(kept, f"/v1/chat/completions/{answer['id']}/messages?order={order}&") == [2, 2, 1]
        kept.play("Yes.")
        status, answer = kept.ask("/v1/responses", method="POST", body={"model": "openai_chat", "input": given})
        assert pages(kept, f"/v1/responses/{answer['id']}/input_items?order={order}&") == [2, 2, 1]


def test_pages_of_large_stored_completions_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_engine, "PAGE_BYTES", ROOM_FOR_TWO)
    with record_server() as kept:
        kept.play(*[LONG] * 3)
        for number in range(3):
            given = [{"role": "user", "content": str(number)}]
            kept.ask(
                "/v1/chat/completions", method="POST", body={"model": "openai_chat", "messages": given, "store": True}
            )
        assert pages(kept, "/v1/chat/completions?") == [2, 1]


def test_an_item_that_is_larger_than_a_page_is_a_page_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_engine, "PAGE_BYTES", 100)
    with record_server() as kept:
        kept.play(LONG)
        given = [{"role": "user", "content": LONG}]
        kept.ask("/v1/chat/completions", method="POST", body={"model": "openai_chat", "messages": given})
        [chat] = kept.listed("/v1/chats")
        assert pages(kept, f"/v1/chats/{chat['id']}/messages?") == [1, 1]


async def test_pages_of_large_approvals_are_short_in_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_engine, "PAGE_BYTES", ROOM_FOR_TWO)
    async with open_approval_server() as server:
        asked = [await server.ask(arguments={"text": f"{number}{LONG}"}) for number in range(5)][::-1]
        first = (await get(server, "/v1/approvals?limit=100", "root")).json
        shown = [one["id"] for one in first["data"]]
        assert (shown, first["has_more"]) == (asked[: len(shown)], True)
        assert 1 <= len(shown) < 5
        last = (await get(server, f"/v1/approvals?limit=100&before={asked[-1]}", "root")).json
        ahead = [one["id"] for one in last["data"]]
        assert (ahead, last["has_more"]) == (asked[-1 - len(ahead) : -1], True)
        assert 1 <= len(ahead) < 4


def test_pages_of_tool_runs_with_large_arguments_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_engine, "PAGE_BYTES", ROOM_FOR_TWO)
    with record_server(FakeSource(FakeTool("echo", str)), records=RecordSettings(arguments=True)) as kept:
        run_tools(kept, *[call("echo", f'{{"text": "{number}{LONG}"}}') for number in range(3)])
        assert pages(kept, "/v1/tool_invocations?") == [2, 1]
