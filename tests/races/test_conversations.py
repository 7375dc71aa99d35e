"""Many clients in one conversation, through two processes: turns follow each other and never mix (spec: D4; fault: M5)."""

import asyncio
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.app.nodes import Node, nodes
from tests.races.pair import RUN, Pair, obeying
from toolgate.storage.database import Database

CLIENTS, TURNS = 8, 5
ROBBED = """
CREATE TRIGGER robbed AFTER INSERT ON conversation_locks BEGIN UPDATE conversation_locks SET holder = 'b/1'; END
"""


class Client:
    """Adds turns of its own, each under a word that nobody else has; remembers those that were acknowledged."""

    def __init__(self, pair: Pair, conversation: str, number: int) -> None:
        self._pair = pair
        self._conversation = conversation
        self._number = number
        self._chance = random.Random(number)
        self.acknowledged: list[str] = []
        self.refused = 0

    async def talk(self) -> None:
        for turn in range(TURNS):
            word = f"c{self._number}t{turn}"
            while not await self._turn(word):  # noqa: ASYNC110 - nobody tells when the conversation is free
                await asyncio.sleep(self._chance.uniform(0, 0.05))

    async def _turn(self, word: str) -> bool:
        body: dict[str, Any]
        node, adds = self._chance.randrange(2), self._chance.random() < 0.6
        if adds:
            call = {"type": "function_call", "call_id": word, "name": "mine", "arguments": "{}"}
            output = {"type": "function_call_output", "call_id": word, "output": word}
            path, body = f"/v1/conversations/{self._conversation}/items", {"items": [call, output]}
        else:
            asked = {"model": "m", "input": f"look_up {word}", "conversation": self._conversation}
            path, body = "/v1/responses", {**asked, **RUN}
        received = await self._pair.request(node, "POST", path, body)
        if received.status == 200:
            self.acknowledged.append(word)
            return True
        assert (received.status, received.json["error"]["code"]) == (409, "conversation_locked"), received.body
        self.refused += 1
        return False


def words(items: list[dict[str, Any]], known: set[str]) -> list[str]:
    """Whose each item is."""
    return [next(word for word in known if f"{word}" in str(_text_of(item)).split('"')) for item in items]


def _text_of(item: dict[str, Any]) -> str:
    text = str({name: value for name, value in item.items() if name != "id"})
    return '"'.join(text.replace("'", " ").replace("\\", " ").replace('"', " ").split())


async def test_turns_of_many_clients_stand_together_each_whole_and_once(pair: Pair) -> None:
    """fault: M5"""
    script = pair.play(obeying)
    id = str((await pair.request(0, "POST", "/v1/conversations", {})).json["id"])
    clients = [Client(pair, id, number) for number in range(CLIENTS)]
    await asyncio.gather(*[client.talk() for client in clients])
    items: list[dict[str, Any]] = []
    while True:
        after = f"&after={items[-1]['id']}" if items else ""
        page = (await pair.request(1, "GET", f"/v1/conversations/{id}/items?order=asc&limit=100{after}")).json
        items += page["data"]
        if not page["has_more"]:
            break
    known = {word for client in clients for word in client.acknowledged}
    owners = words(items, known)
    turns = [word for number, word in enumerate(owners) if number == 0 or owners[number - 1] != word]
    assert len(known) == CLIENTS * TURNS
    assert sorted(turns) == sorted(known), "a turn is lost, stands twice, or another's stands in its middle"
    assert all(2 <= owners.count(word) <= 4 for word in known)
    for request in script.requests:
        seen = set(re.findall(r"c\dt\d", str(request.messages)))
        asked = re.findall(r"look_up (c\dt\d)", str(request.messages))[-1]
        assert seen == set(turns[: turns.index(asked) + 1]), "an answer was made without what stands before it"
    calls = [number for number, item in enumerate(items) if item["type"] == "function_call"]
    assert all(items[number + 1].get("call_id") == items[number]["call_id"] for number in calls)
    assert sum(client.refused for client in clients) > 0, "nobody was ever in anybody's way"


@asynccontextmanager
async def robbed(tmp_path: Path) -> AsyncIterator[tuple[Node, str]]:
    """A conversation that another node takes over in the very moment in which it is taken here."""
    storage = f"sqlite:///{tmp_path}/t.db"
    async with nodes(1, storage, None) as [node]:
        id = str((await node.request("POST", "/v1/conversations", {})).json["id"])
        database = Database(storage)
        await database.change(lambda db: db.execute(ROBBED) and None)
        await database.aclose()
        yield node, id
        assert (await node.request("GET", f"/v1/conversations/{id}/items")).json["data"] == []


async def test_items_that_were_not_added_are_not_acknowledged(tmp_path: Path) -> None:
    """fault: M5"""
    async with robbed(tmp_path) as (node, id):
        items = {"items": [{"role": "user", "content": "Hello"}]}
        received = await node.request("POST", f"/v1/conversations/{id}/items", items)
    assert (received.status, received.json["error"]["code"]) == (409, "conversation_locked")


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_response_that_could_not_be_added_is_not_reported_as_complete(
    tmp_path: Path, stream: bool, store: bool
) -> None:
    """fault: M5: it would be missing from the conversation that it says it belongs to."""
    async with robbed(tmp_path) as (node, id):
        node.play("Hello.")
        body = {"model": "m", "input": "Hi", "conversation": id, "stream": stream, "store": store}
        received = await node.request("POST", "/v1/responses", body)
    assert received.status == (200 if stream else 409)
    assert b"conversation_locked" in received.body
    assert b"response.completed" not in received.body
    assert b"response.failed" in received.body or not stream


async def test_a_background_response_that_could_not_be_added_has_failed(tmp_path: Path) -> None:
    """fault: M5"""
    async with robbed(tmp_path) as (node, id):
        node.play("Hello.")
        body = {"model": "m", "input": "Hi", "conversation": id, "background": True}
        response = (await node.request("POST", "/v1/responses", body)).json
        while response["status"] in ("queued", "in_progress"):
            await asyncio.sleep(0.02)
            response = (await node.request("GET", f"/v1/responses/{response['id']}")).json
    assert response["status"] == "failed"
    assert "nothing was added" in response["error"]["message"]
