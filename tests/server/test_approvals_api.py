"""Approvals over HTTP: who sees them, who answers them, and what a late answer is told (A2)."""

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest

from tests.server.inbox import Inbox, open_inbox
from tests.server.talk import Caller, Heard, ask
from tests.tools.approvals.asking import Clock, call, tool
from toolgate.tools.approvals import Policy, Terms

DENY_ALL, RESET = "/v1/approvals/deny_all", "/v1/approvals/reset"


async def get(inbox: Inbox, path: str, who: str = "ann") -> Heard:
    async with Caller(inbox.url) as caller:
        host = inbox.url.removeprefix("http://")
        head = f"GET {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {who}-key\r\n\r\n"
        caller.writer.write(head.encode())
        return await caller.answer()


async def post(inbox: Inbox, path: str, body: Any, who: str = "ann") -> Heard:
    return await ask(inbox.url, path, body, f"authorization: Bearer {who}-key")


async def answer(inbox: Inbox, id: str, who: str = "ann", decision: str = "approve", **more: Any) -> Heard:
    return await post(inbox, f"/v1/approvals/{id}", {"decision": decision, **more}, who)


async def test_what_waits_is_listed_shown_and_approved() -> None:
    async with open_inbox() as inbox:
        id = await inbox.ask(arguments={"path": "/tmp/\u202egnp"})
        [listed] = (await get(inbox, "/v1/approvals?state=pending")).json["data"]
        shown = (await get(inbox, f"/v1/approvals/{id}")).json
        assert listed == shown
        assert shown["arguments"] == '{"path":"/tmp/\\u202egnp"}'
        heard = await answer(inbox, id, level="session", reason="fine", arguments={"path": "/tmp/png"})
        assert heard.status == 200
        assert (heard.json["state"], heard.json["level"], heard.json["answered_by"]) == ("approved", "session", "ann")
        assert (await get(inbox, "/v1/approvals?state=pending")).json["data"] == []
        assert [one["id"] for one in (await get(inbox, "/v1/approvals")).json["data"]] == [id]
        verdict = await inbox.desk.decide(call(arguments={"path": "/tmp/\u202egnp"}))
        assert (verdict.stance, verdict.arguments) == ("allow", '{"path":"/tmp/png"}')


async def test_a_second_answer_is_told_the_first() -> None:
    """(fault: M1)"""
    async with open_inbox() as inbox:
        id = await inbox.ask()
        assert (await answer(inbox, id, decision="deny", reason="no")).status == 200
        late = await answer(inbox, id)
        assert late.status == 409
        assert late.json["error"]["code"] == "already_denied"
        assert (late.json["approval"]["state"], late.json["approval"]["reason"]) == ("denied", "no")


async def test_of_fifty_answers_at_once_one_wins_and_the_rest_hear_of_it() -> None:
    """(fault: M1)"""
    async with open_inbox() as inbox:
        id = await inbox.ask()
        heard = await asyncio.gather(*[answer(inbox, id, decision=("approve", "deny")[n % 2]) for n in range(50)])
        assert Counter(one.status for one in heard) == {200: 1, 409: 49}
        [won] = [one.json["state"] for one in heard if one.status == 200]
        assert {one.json["approval"]["state"] for one in heard if one.status == 409} == {won}


async def test_to_anybody_else_an_approval_does_not_exist() -> None:
    """(fault: A2, Z2)"""
    async with open_inbox() as inbox:
        id = await inbox.ask()
        for foreign, absent in (
            (await get(inbox, f"/v1/approvals/{id}", "bob"), await get(inbox, "/v1/approvals/mcpr_x", "bob")),
            (await answer(inbox, id, "bob"), await answer(inbox, "mcpr_x", "bob")),
        ):
            assert foreign.status == absent.status == 404
            assert foreign.json["error"]["code"] == absent.json["error"]["code"]
        assert (await get(inbox, "/v1/approvals", "bob")).json["data"] == []
        assert (await post(inbox, DENY_ALL, {}, "bob")).json["denied"] == []
        assert (await get(inbox, f"/v1/approvals/{id}")).json["state"] == "pending"


async def test_an_admin_sees_and_answers_all() -> None:
    async with open_inbox(Policy(self_approval=False)) as inbox:
        id = await inbox.ask()
        refused = await answer(inbox, id)
        assert (refused.status, refused.json["error"]["code"]) == (403, "self_approval_forbidden")
        assert [one["id"] for one in (await get(inbox, "/v1/approvals", "root")).json["data"]] == [id]
        assert (await answer(inbox, id, "root", level="always")).json["answered_by"] == "root"
        assert len((await get(inbox, "/v1/approvals/grants", "root")).json["data"]) == 1
        assert len((await get(inbox, "/v1/approvals/grants")).json["data"]) == 1
        assert (await get(inbox, "/v1/approvals/grants", "bob")).json["data"] == []


@pytest.mark.parametrize("path", ["", "/grants", "/mcpr_x"])
async def test_a_key_without_the_scope_is_turned_away(path: str) -> None:
    async with open_inbox() as inbox:
        assert (await get(inbox, f"/v1/approvals{path}", "talker")).status == 403
        assert (await get(inbox, f"/v1/approvals{path}", "nobody")).status == 401


@pytest.mark.parametrize("path", [DENY_ALL, RESET, "/v1/approvals/mcpr_x"])
async def test_nothing_is_changed_without_the_scope(path: str) -> None:
    """(fault: A5)"""
    async with open_inbox() as inbox:
        assert (await post(inbox, path, {}, "talker")).status == 403
        assert (await post(inbox, path, {}, "nobody")).status == 401


async def test_an_expired_one_is_gone() -> None:
    clock = Clock()
    async with open_inbox(now=clock) as inbox:
        id = await inbox.ask()
        clock.time += 3600
        heard = await answer(inbox, id)
        assert (heard.status, heard.json["error"]["code"]) == (410, "approval_expired")
        assert heard.json["approval"]["state"] == "expired"


async def test_one_whose_tool_has_changed_is_out_of_scope() -> None:
    """(fault: A1)"""
    async with open_inbox(definition=lambda _: tool(description="changed")) as inbox:
        heard = await answer(inbox, await inbox.ask())
        assert (heard.status, heard.json["error"]["code"]) == (409, "out_of_scope")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "decision"),
        ({"decision": "maybe"}, "decision"),
        ({"decision": True}, "decision"),
        ({"decision": "approve", "level": "forever"}, "level"),
        ({"decision": "approve", "arguments": "{}"}, "arguments"),
        ({"decision": "approve", "arguments": []}, "arguments"),
        ({"decision": "approve", "reason": "x" * 2001}, "reason"),
        ({"decision": "approve", "caller": "ann"}, "caller"),
        ({"decision": "approve", "policy": {"auto_approve": True}}, "policy"),
        ({"decision": "deny", "level": "always"}, "decision"),
        ({"decision": "deny", "arguments": {}}, "decision"),
        ([], None),
    ],
)
async def test_a_bad_answer_names_the_field_and_changes_nothing(body: Any, param: str | None) -> None:
    """(fault: Z8)"""
    async with open_inbox() as inbox:
        id = await inbox.ask()
        heard = await post(inbox, f"/v1/approvals/{id}", body)
        assert (heard.status, heard.json["error"]["param"]) == (400, param)
        assert (await get(inbox, f"/v1/approvals/{id}")).json["state"] == "pending"


async def test_a_key_that_stands_twice_in_edited_arguments_is_refused() -> None:
    async with open_inbox() as inbox:
        id = await inbox.ask()
        body = b'{"decision":"approve","arguments":{"path":"/a","path":"/b"}}'
        assert (await post(inbox, f"/v1/approvals/{id}", body)).status == 400


async def test_a_run_can_be_denied_whole() -> None:
    """(fault: A4)"""
    async with open_inbox() as inbox:
        for number in range(3):
            await inbox.ask(arguments={"n": number}, run="r1" if number else "r2")
        assert len((await post(inbox, DENY_ALL, {"run": "r1", "reason": "enough"})).json["denied"]) == 2
        assert len((await post(inbox, DENY_ALL, b"")).json["denied"]) == 1
        assert (await post(inbox, DENY_ALL, {"runs": "r1"})).status == 400


async def test_grants_are_listed_and_forgotten() -> None:
    async with open_inbox() as inbox:
        await answer(inbox, await inbox.ask(), level="workspace")
        [grant] = (await get(inbox, "/v1/approvals/grants")).json["data"]
        assert (grant["tool"], grant["level"], grant["place"]) == ("delete_file", "workspace", "w")
        assert (await post(inbox, RESET, b"", "bob")).json["forgotten"] == 0
        assert (await post(inbox, RESET, {})).json["forgotten"] == 1
        assert (await get(inbox, "/v1/approvals/grants")).json["data"] == []


async def test_a_level_that_the_call_cannot_have_is_refused() -> None:
    async with open_inbox(terms=Terms()) as inbox:
        heard = await answer(inbox, await inbox.ask(), level="workspace")
        assert (heard.status, heard.json["error"]["param"]) == (400, "level")


async def test_an_unknown_state_is_refused() -> None:
    async with open_inbox() as inbox:
        assert (await get(inbox, "/v1/approvals?state=open")).status == 400


async def test_there_is_no_door_to_the_policy() -> None:
    """Every way in only reads, answers, denies or forgets (fault: A5)."""
    async with open_inbox() as inbox:
        before = msgspec.json.encode(inbox.desk.policy)
        for path in ("/v1/approvals", "/v1/approvals/policy", "/v1/approvals/grants"):
            heard = await post(inbox, path, {"decision": "approve", "level": "always"}, "root")
            assert heard.status in (404, 405)
        assert msgspec.json.encode(inbox.desk.policy) == before
        assert await inbox.desk.grants() == []


async def test_one_callers_flood_hides_nobodys_question() -> None:
    async with open_inbox(terms=Terms(max_pending_per_run=2000)) as inbox:
        lonely = await inbox.ask(caller="bob")
        for number in range(120):
            await inbox.ask(arguments={"number": number})
        first = (await get(inbox, "/v1/approvals?state=pending", "root")).json
        assert (len(first["data"]), first["has_more"]) == (20, True)
        seen, after = [one["id"] for one in first["data"]], first["last_id"]
        while after:
            page = (await get(inbox, f"/v1/approvals?state=pending&limit=50&after={after}", "root")).json
            seen += [one["id"] for one in page["data"]]
            after = page["last_id"] if page["has_more"] else None
        assert lonely in seen
        assert len(seen) == len(set(seen)) == 121
        fair = (await get(inbox, "/v1/approvals?state=pending&order=fair&limit=2", "root")).json
        assert lonely in [one["id"] for one in fair["data"]]
        named = (await get(inbox, "/v1/approvals?caller=bob", "root")).json
        assert [one["id"] for one in named["data"]] == [lonely]
        back = (await get(inbox, f"/v1/approvals?limit=30&before={seen[-1]}", "root")).json
        assert [one["id"] for one in back["data"]] == seen[-31:-1]
        assert back["has_more"]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=101", "order=odd", "after=mcpr_none", "before=mcpr_none", "after=a&before=b"]
)
@pytest.mark.parametrize("path", ["/v1/approvals", "/v1/approvals/grants"])
async def test_a_page_that_cannot_be_is_refused(path: str, query: str) -> None:
    async with open_inbox() as inbox:
        assert (await get(inbox, f"{path}?{query}")).status == 400


async def test_callers_cannot_list_for_others_nor_page_from_their_questions() -> None:
    async with open_inbox() as inbox:
        theirs = await inbox.ask(caller="bob")
        mine = await inbox.ask()
        assert [one["id"] for one in (await get(inbox, "/v1/approvals?caller=bob")).json["data"]] == [mine]
        assert (await get(inbox, f"/v1/approvals?after={theirs}")).status == 400
