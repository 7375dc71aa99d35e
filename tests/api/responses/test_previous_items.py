"""The past that a request continues is measured before it is read, and looked for in few statements."""

from typing import Any

import pytest

from tests.tools.execution.toolwork import Work, at_work
from toolgate.api.responses.previous_items import MAX_REFERENCES
from toolgate.config import Secret
from toolgate.config.settings import ResponsesApiSettings
from toolgate.storage import sql_engine
from toolgate.storage.database import Database
from toolgate.storage.database import Work as Statements

SMALL = ResponsesApiSettings(past_bytes=20_000, past_items=20)
LONG = "x" * 6000


class Reads:
    """Counts the pieces of work that only read, and what they read."""

    def __init__(self) -> None:
        self.count = 0
        self.largest = 0


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    counted, do = Reads(), Database.read

    async def counting(self: Database, work: Statements[Any]) -> Any:
        counted.count += 1
        found = await do(self, work)
        counted.largest = max(counted.largest, len(str(found)))
        return found

    monkeypatch.setattr(Database, "read", counting)
    return counted


async def respond(work: Work, text: str, **more: Any) -> Any:
    work.play("Yes.")
    payload = {"model": "openai_chat", "input": text, **more}
    return (await work.post("/v1/responses", payload)).json


def refused(answer: Any, limit: str, param: str) -> bool:
    error = answer["error"]
    return error["code"] == "context_length_exceeded" and limit in error["message"] and error["param"] == param


async def test_a_chain_that_is_too_large_is_refused_before_it_is_read(storage_url: str, reads: Reads) -> None:
    async with at_work(storage=Secret(storage_url), responses=SMALL) as work:
        last = None
        for _ in range(3):
            last = (await respond(work, LONG, previous_response_id=last))["id"]
        reads.largest = 0
        answer = await respond(work, "Hi", previous_response_id=last)
        assert refused(answer, "responses.past_bytes", "previous_response_id")
        assert reads.largest < len(LONG)


async def test_a_chain_of_too_many_items_is_refused(storage_url: str) -> None:
    async with at_work(storage=Secret(storage_url), responses=SMALL) as work:
        last, answer = None, {}
        for _ in range(11):
            answer = await respond(work, "Hi", previous_response_id=last)
            last = answer.get("id")
        assert refused(
            await respond(work, "Hi", previous_response_id=last), "responses.past_items", "previous_response_id"
        )
        listed = await work.get(f"/v1/responses/{last}/input_items?limit=100&order=asc")
        assert len(listed.json["data"]) == 21


async def test_a_conversation_that_is_too_large_is_refused_before_it_is_read(storage_url: str, reads: Reads) -> None:
    async with at_work(storage=Secret(storage_url), responses=SMALL) as work:
        items = [{"type": "message", "role": "user", "content": LONG} for _ in range(4)]
        made = (await work.post("/v1/conversations", {"items": items})).json
        reads.largest = 0
        answer = await respond(work, "Hi", conversation=made["id"])
        assert refused(answer, "responses.past_bytes", "conversation")
        assert reads.largest < len(LONG)


async def test_references_are_counted_before_any_is_looked_for(storage_url: str, reads: Reads) -> None:
    async with at_work(storage=Secret(storage_url), responses=SMALL) as work:
        many = [{"type": "item_reference", "id": f"msg_{number}"} for number in range(MAX_REFERENCES + 1)]
        before = reads.count
        answer = (await work.post("/v1/responses", {"model": "openai_chat", "input": many})).json
        assert answer["error"]["code"] == "array_above_max_length"
        assert reads.count < before + 20  # the server looks after its own things, too
        answer = (await work.post("/v1/responses", {"model": "openai_chat", "input": many[1:]})).json
        assert answer["error"]["param"].startswith("input")
        assert reads.count < before + 40


async def test_an_item_that_is_named_often_counts_as_often(storage_url: str) -> None:
    async with at_work(storage=Secret(storage_url), responses=SMALL) as work:
        items = [{"type": "message", "role": "user", "content": LONG}]
        made = (await work.post("/v1/conversations", {"items": items})).json
        [kept] = (await work.get(f"/v1/conversations/{made['id']}/items")).json["data"]
        named = {"type": "item_reference", "id": kept["id"]}
        work.play("Yes.", "Yes.")
        answer = (await work.post("/v1/responses", {"model": "openai_chat", "input": [named] * 3})).json
        assert answer["status"] == "completed"
        answer = (await work.post("/v1/responses", {"model": "openai_chat", "input": [named] * 4})).json
        assert refused(answer, "responses.past_bytes", "input")


async def test_a_page_of_large_items_is_shorter_than_asked_for(
    storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_engine, "PAGE_BYTES", 2 * len(LONG) + 1000)
    async with at_work(storage=Secret(storage_url)) as work:
        items = [{"type": "message", "role": "user", "content": LONG, "id": f"msg_{number}"} for number in range(5)]
        made = (await work.post("/v1/conversations", {"items": items})).json
        path, seen, after = f"/v1/conversations/{made['id']}/items?limit=100&order=asc", [], ""
        while True:
            page = (await work.get(path + after)).json
            seen.append([one["id"] for one in page["data"]])
            if not page["has_more"]:
                break
            after = f"&after={page['last_id']}"
        assert seen == [["msg_0", "msg_1"], ["msg_2", "msg_3"], ["msg_4"]]
