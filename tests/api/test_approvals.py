"""Approvals over HTTP: who sees them, who answers them, and what a late answer gets (spec: A2)."""

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest

from tests.api.approval_server import ApprovalServer, open_approval_server
from tests.api.http_client import HttpConnection, HttpResponse, ask
from tests.approvals.builders import Clock, call, tool
from toolgate.approvals import ApprovalLimits, ApprovalPolicy

DENY_ALL, RESET = "/v1/approvals/deny_all", "/v1/approvals/reset"


async def get(server: ApprovalServer, path: str, who: str = "ann") -> HttpResponse:
    async with HttpConnection(server.url) as caller:
        host = server.url.removeprefix("http://")
        head = f"GET {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {who}-key\r\n\r\n"
        caller.writer.write(head.encode())
        return await caller.response()


async def post(server: ApprovalServer, path: str, body: Any, who: str = "ann") -> HttpResponse:
    return await ask(server.url, path, body, f"authorization: Bearer {who}-key")


async def answer(
    server: ApprovalServer, id: str, who: str = "ann", decision: str = "approve", **more: Any
) -> HttpResponse:
    return await post(server, f"/v1/approvals/{id}", {"decision": decision, **more}, who)


async def test_what_waits_is_listed_shown_and_approved() -> None:
    async with open_approval_server() as server:
        id = await server.ask(arguments={"path": "/tmp/\u202egnp"})
        [listed] = (await get(server, "/v1/approvals?state=pending")).json["data"]
        shown = (await get(server, f"/v1/approvals/{id}")).json
        assert listed == shown
        assert shown["arguments"] == '{"path":"/tmp/\\u202egnp"}'
        received = await answer(server, id, level="session", reason="fine", arguments={"path": "/tmp/png"})
        assert received.status == 200
        assert (received.json["state"], received.json["level"], received.json["answered_by"]) == (
            "approved",
            "session",
            "ann",
        )
        assert (await get(server, "/v1/approvals?state=pending")).json["data"] == []
        assert [one["id"] for one in (await get(server, "/v1/approvals")).json["data"]] == [id]
        verdict = await server.approvals.decide(call(arguments={"path": "/tmp/\u202egnp"}))
        assert (verdict.stance, verdict.arguments) == ("allow", '{"path":"/tmp/png"}')


async def test_a_second_answer_gets_the_first_back() -> None:
    """(fault: M1)"""
    async with open_approval_server() as server:
        id = await server.ask()
        assert (await answer(server, id, decision="deny", reason="no")).status == 200
        late = await answer(server, id)
        assert late.status == 409
        assert late.json["error"]["code"] == "already_denied"
        assert (late.json["approval"]["state"], late.json["approval"]["reason"]) == ("denied", "no")


async def test_of_fifty_answers_at_once_one_wins_and_the_rest_get_a_conflict() -> None:
    """(fault: M1)"""
    async with open_approval_server() as server:
        id = await server.ask()
        received = await asyncio.gather(*[answer(server, id, decision=("approve", "deny")[n % 2]) for n in range(50)])
        assert Counter(one.status for one in received) == {200: 1, 409: 49}
        [won] = [one.json["state"] for one in received if one.status == 200]
        assert {one.json["approval"]["state"] for one in received if one.status == 409} == {won}


async def test_an_approval_does_not_exist_for_other_callers() -> None:
    """(fault: A2, Z2)"""
    async with open_approval_server() as server:
        id = await server.ask()
        for foreign, absent in (
            (await get(server, f"/v1/approvals/{id}", "bob"), await get(server, "/v1/approvals/mcpr_x", "bob")),
            (await answer(server, id, "bob"), await answer(server, "mcpr_x", "bob")),
        ):
            assert foreign.status == absent.status == 404
            assert foreign.json["error"]["code"] == absent.json["error"]["code"]
        assert (await get(server, "/v1/approvals", "bob")).json["data"] == []
        assert (await post(server, DENY_ALL, {}, "bob")).json["denied"] == []
        assert (await get(server, f"/v1/approvals/{id}")).json["state"] == "pending"


async def test_an_admin_sees_and_answers_all() -> None:
    async with open_approval_server(ApprovalPolicy(self_approval=False)) as server:
        id = await server.ask()
        refused = await answer(server, id)
        assert (refused.status, refused.json["error"]["code"]) == (403, "self_approval_forbidden")
        assert [one["id"] for one in (await get(server, "/v1/approvals", "root")).json["data"]] == [id]
        assert (await answer(server, id, "root", level="always")).json["answered_by"] == "root"
        assert len((await get(server, "/v1/approvals/grants", "root")).json["data"]) == 1
        assert len((await get(server, "/v1/approvals/grants")).json["data"]) == 1
        assert (await get(server, "/v1/approvals/grants", "bob")).json["data"] == []


@pytest.mark.parametrize("path", ["", "/grants", "/mcpr_x"])
async def test_a_key_without_the_scope_is_turned_away(path: str) -> None:
    async with open_approval_server() as server:
        assert (await get(server, f"/v1/approvals{path}", "talker")).status == 403
        assert (await get(server, f"/v1/approvals{path}", "nobody")).status == 401


@pytest.mark.parametrize("path", [DENY_ALL, RESET, "/v1/approvals/mcpr_x"])
async def test_nothing_is_changed_without_the_scope(path: str) -> None:
    """(fault: A5)"""
    async with open_approval_server() as server:
        assert (await post(server, path, {}, "talker")).status == 403
        assert (await post(server, path, {}, "nobody")).status == 401


async def test_an_expired_approval_is_gone() -> None:
    clock = Clock()
    async with open_approval_server(now=clock) as server:
        id = await server.ask()
        clock.time += 3600
        received = await answer(server, id)
        assert (received.status, received.json["error"]["code"]) == (410, "approval_expired")
        assert received.json["approval"]["state"] == "expired"


async def test_an_approval_whose_tool_has_changed_is_out_of_scope() -> None:
    """(fault: A1)"""
    async with open_approval_server(definition=lambda _: tool(description="changed")) as server:
        received = await answer(server, await server.ask())
        assert (received.status, received.json["error"]["code"]) == (409, "out_of_scope")


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
    async with open_approval_server() as server:
        id = await server.ask()
        received = await post(server, f"/v1/approvals/{id}", body)
        assert (received.status, received.json["error"]["param"]) == (400, param)
        assert (await get(server, f"/v1/approvals/{id}")).json["state"] == "pending"


async def test_a_key_that_stands_twice_in_edited_arguments_is_refused() -> None:
    async with open_approval_server() as server:
        id = await server.ask()
        body = b'{"decision":"approve","arguments":{"path":"/a","path":"/b"}}'
        assert (await post(server, f"/v1/approvals/{id}", body)).status == 400


async def test_a_run_can_be_denied_whole() -> None:
    """(fault: A4)"""
    async with open_approval_server() as server:
        for number in range(3):
            await server.ask(arguments={"n": number}, run="r1" if number else "r2")
        assert len((await post(server, DENY_ALL, {"run": "r1", "reason": "enough"})).json["denied"]) == 2
        assert len((await post(server, DENY_ALL, b"")).json["denied"]) == 1
        assert (await post(server, DENY_ALL, {"runs": "r1"})).status == 400


async def test_grants_are_listed_and_forgotten() -> None:
    async with open_approval_server() as server:
        await answer(server, await server.ask(), level="workspace")
        [grant] = (await get(server, "/v1/approvals/grants")).json["data"]
        assert (grant["tool"], grant["level"], grant["place"]) == ("delete_file", "workspace", "w")
        assert (await post(server, RESET, b"", "bob")).json["forgotten"] == 0
        assert (await post(server, RESET, {})).json["forgotten"] == 1
        assert (await get(server, "/v1/approvals/grants")).json["data"] == []


async def test_a_level_that_the_call_cannot_have_is_refused() -> None:
    async with open_approval_server(options=ApprovalLimits()) as server:
        received = await answer(server, await server.ask(), level="workspace")
        assert (received.status, received.json["error"]["param"]) == (400, "level")


async def test_an_unknown_state_is_refused() -> None:
    async with open_approval_server() as server:
        assert (await get(server, "/v1/approvals?state=open")).status == 400


async def test_no_endpoint_changes_the_policy() -> None:
    """Every way in only reads, answers, denies or forgets (fault: A5)."""
    async with open_approval_server() as server:
        before = msgspec.json.encode(server.approvals.policy)
        for path in ("/v1/approvals", "/v1/approvals/policy", "/v1/approvals/grants"):
            received = await post(server, path, {"decision": "approve", "level": "always"}, "root")
            assert received.status in (404, 405)
        assert msgspec.json.encode(server.approvals.policy) == before
        assert await server.approvals.grants() == []


async def test_many_approvals_of_one_caller_hide_none_of_the_others() -> None:
    async with open_approval_server(options=ApprovalLimits(max_pending_per_run=2000)) as server:
        lonely = await server.ask(caller="bob")
        for number in range(120):
            await server.ask(arguments={"number": number})
        first = (await get(server, "/v1/approvals?state=pending", "root")).json
        assert (len(first["data"]), first["has_more"]) == (20, True)
        seen, after = [one["id"] for one in first["data"]], first["last_id"]
        while after:
            page = (await get(server, f"/v1/approvals?state=pending&limit=50&after={after}", "root")).json
            seen += [one["id"] for one in page["data"]]
            after = page["last_id"] if page["has_more"] else None
        assert lonely in seen
        assert len(seen) == len(set(seen)) == 121
        fair = (await get(server, "/v1/approvals?state=pending&order=fair&limit=2", "root")).json
        assert lonely in [one["id"] for one in fair["data"]]
        named = (await get(server, "/v1/approvals?caller=bob", "root")).json
        assert [one["id"] for one in named["data"]] == [lonely]
        back = (await get(server, f"/v1/approvals?limit=30&before={seen[-1]}", "root")).json
        assert [one["id"] for one in back["data"]] == seen[-31:-1]
        assert back["has_more"]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=101", "order=odd", "after=mcpr_none", "before=mcpr_none", "after=a&before=b"]
)
@pytest.mark.parametrize("path", ["/v1/approvals", "/v1/approvals/grants"])
async def test_an_impossible_page_is_refused(path: str, query: str) -> None:
    async with open_approval_server() as server:
        assert (await get(server, f"{path}?{query}")).status == 400


async def test_callers_cannot_list_approvals_of_others_nor_use_their_ids_as_cursors() -> None:
    async with open_approval_server() as server:
        theirs = await server.ask(caller="bob")
        mine = await server.ask()
        assert [one["id"] for one in (await get(server, "/v1/approvals?caller=bob")).json["data"]] == [mine]
        assert (await get(server, f"/v1/approvals?after={theirs}")).status == 400


async def test_a_page_of_long_arguments_is_short_and_the_rest_is_reached_from_both_sides() -> None:
    async with open_approval_server() as server:
        made = [await server.ask(arguments={"path": f"{number}" + "\u0430b" * 120_000}) for number in range(20)]
        for order, cursor, wanted in (("asc", "after", made), ("desc", "before", made)):
            found: list[str] = []
            place, more = "" if cursor == "after" else f"&before={made[0]}", True
            while more:
                page = (await get(server, f"/v1/approvals?limit=100&order={order}{place}")).json
                ids = [one["id"] for one in page["data"]]
                assert 0 < len(ids) < 10
                found += ids if cursor == "after" else ids[::-1]
                place, more = f"&{cursor}={page['last_id' if cursor == 'after' else 'first_id']}", page["has_more"]
            assert found == (wanted if cursor == "after" else wanted[1:])


async def test_edited_arguments_are_no_longer_than_a_tool_may_get() -> None:
    async with open_approval_server() as server:
        id = await server.ask()
        received = await answer(server, id, arguments={"path": "x" * 300_000})
        assert (received.status, received.json["error"]["param"]) == (400, "arguments")


async def test_a_request_waits_until_something_else_waits_for_a_person() -> None:
    """spec: A2"""
    async with open_approval_server() as server:
        empty = (await get(server, "/v1/approvals?state=pending")).json
        path = f"/v1/approvals?state=pending&wait=30&version={empty['version']}"
        waiting = asyncio.ensure_future(get(server, path))
        others = asyncio.ensure_future(get(server, path, "bob"))
        await server.ask(caller="ann")
        listed = (await waiting).json
        assert [one["caller"] for one in listed["data"]] == ["ann"]
        assert not others.done()
        waiting = asyncio.ensure_future(get(server, path.replace(empty["version"], listed["version"])))
        assert (await answer(server, listed["data"][0]["id"], decision="deny")).status == 200
        assert (await waiting).json == empty
        assert (await get(server, "/v1/approvals?wait=31")).status == 400
        others.cancel()
