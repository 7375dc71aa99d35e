"""The growth law: what is written to the database is at most `FACTOR` times what was received and produced.

Received is the body of a request and what it names of the past; produced is what the upstream, the tools and the server
gave. Written is every value of every statement that changes the database, so that rewriting the same row counts each time;
the steps of runs, which DBOS writes to tables of its own, are counted with the rest and by themselves.
A request with `store: false` leaves none of its content in the database in readable form.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from tests.tools.execution.toolwork import CANARY, Oracle, Work, at_work, call, soon, tool
from toolgate.config import Secret
from toolgate.config.settings import RecordSettings
from toolgate.storage.database import Database, SqlConnection
from toolgate.storage.database import Work as Statements

FACTOR = 4
ALLOWANCE = 4096
"""Bytes for each request and each call, whatever their size: ids, keys, digests, counters."""

SIZE = 60_000
TEXT = "x" * SIZE
_NAMED = re.compile(r":(\w+)")


class Meter:
    """Counts the bytes that are written to any database; `steps` are those that DBOS writes."""

    def __init__(self) -> None:
        self.written = 0
        self.steps = 0

    def step(self, _connection: Any, _cursor: Any, sql: str, values: Any, _context: Any, many: bool) -> None:
        """Count a statement of DBOS, before SQLAlchemy executes it."""
        if not sql.lstrip().upper().startswith("SELECT"):
            rows = values if many else [values]
            size = sum(_size(row.values() if isinstance(row, dict) else row) for row in rows)
            self.steps += size
            self.written += size

    def measured(self, work: Statements[Any]) -> Statements[Any]:
        """The same work; what it writes is counted, once if its transaction is repeated."""
        former = 0

        def counted(db: SqlConnection) -> Any:
            nonlocal former
            self.written -= former  # rolled back
            counting = _Counting(db)
            try:
                return work(counting)
            finally:
                former = counting.written
                self.written += former

        return counted


class _Counting:
    def __init__(self, db: SqlConnection) -> None:
        self.written = 0
        self._db = db

    def execute(self, sql: str, values: Any = ()) -> Any:
        if not sql.lstrip().upper().startswith("SELECT"):
            named = isinstance(values, dict)
            self.written += _size([values[one] for one in _NAMED.findall(sql)] if named else values)
        return self._db.execute(sql, values)

    def executemany(self, sql: str, rows: Iterable[Any]) -> Any:
        given = list(rows)
        self.written += sum(map(_size, given))
        return self._db.executemany(sql, given)


def _size(values: Any) -> int:
    return sum(len(one) if isinstance(one, (bytes, str)) else 8 for one in values)


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Meter]:
    meter, change = Meter(), Database.change

    async def counted(self: Database, work: Statements[Any]) -> Any:
        return await change(self, meter.measured(work))

    monkeypatch.setattr(Database, "change", counted)
    event.listen(Engine, "before_cursor_execute", meter.step)
    yield meter
    event.remove(Engine, "before_cursor_execute", meter.step)


Case = Callable[[Work], Awaitable[int]]
"""Uses an endpoint; how many bytes were received and produced."""


async def respond(work: Work) -> int:
    work.play("y" * SIZE)
    response = await work.ask("openai_responses", TEXT, store=True)
    return SIZE + len(response.body)


async def background(work: Work, text: str) -> None:
    made = (await work.ask("openai_responses", text, store=True, background=True)).json
    await ended(work, made["id"])


async def ended(work: Work, response: str) -> None:
    async def found() -> Any:
        now = (await work.get(f"/v1/responses/{response}")).json
        return now if now["status"] not in ("queued", "in_progress") else None

    assert (await soon(found, seconds=30))["status"] == "completed"


async def respond_in_background(work: Work) -> int:
    work.play("y" * SIZE)
    await background(work, TEXT)
    return SIZE + 2 * SIZE  # the text is produced as deltas, and once more as a whole


async def compact(work: Work) -> int:
    work.play("y" * SIZE)
    response = await work.post("/v1/responses/compact", {"model": "openai_chat", "input": TEXT})
    return SIZE + len(response.body)


async def chat(work: Work) -> int:
    work.play("y" * SIZE)
    response = await work.ask("openai_chat", TEXT, store=True)
    return SIZE + len(response.body)


async def messages(work: Work) -> int:
    work.play("y" * SIZE)
    response = await work.ask("anthropic", TEXT)
    return SIZE + len(response.body)


async def ollama_chat(work: Work) -> int:
    work.play("y" * SIZE)
    response = await work.ask("ollama", TEXT)
    return SIZE + len(response.body)


async def generate(work: Work) -> int:
    work.play("y" * SIZE)
    response = await work.post("/api/generate", {"model": "openai_chat", "prompt": TEXT, "stream": False})
    return SIZE + len(response.body)


async def start_conversation(work: Work) -> int:
    items = [{"type": "message", "role": "user", "content": TEXT}]
    assert (await work.post("/v1/conversations", {"items": items})).status == 200
    return SIZE


async def add_to_conversation(work: Work) -> int:
    made = (await work.post("/v1/conversations", {})).json
    items = [{"type": "message", "role": "user", "content": TEXT}]
    assert (await work.post(f"/v1/conversations/{made['id']}/items", {"items": items})).status == 200
    return SIZE


async def note_conversation(work: Work) -> int:
    made = (await work.post("/v1/conversations", {})).json
    notes = {f"note{number}": "z" * 500 for number in range(16)}
    assert (await work.post(f"/v1/conversations/{made['id']}", {"metadata": notes})).status == 200
    return 16 * 500


async def note_completion(work: Work) -> int:
    work.play("y" * SIZE)
    made = await work.ask("openai_chat", TEXT, store=True)
    response = await work.post(f"/v1/chat/completions/{made.json['id']}", {"metadata": {"topic": "tea"}})
    assert response.status == 200
    return SIZE + len(made.body)


async def register(work: Work) -> int:
    schema = {"type": "object", "properties": {"a": {"type": "string", "description": "z" * 8000}}}
    emitted = {"type": "http", "name": "far", "description": "Far.", "inputSchema": schema}
    emitted["url"] = "https://tools.example.org/far"
    assert (await work.post("/v1/tools", emitted)).status in (200, 201)
    return 8000


async def ask_a_person(work: Work) -> int:
    work.play([call("guarded", f'{{"text":"{TEXT}"}}')], "Done.")
    response = await work.ask("openai_responses", "Go.", store=True)
    asked = (await work.get("/v1/approvals?state=pending")).json["data"][0]
    assert (await work.decide(asked["id"])).status == 200
    return SIZE + len(response.body)


async def fork(work: Work) -> int:
    work.play("y" * SIZE, "z" * SIZE)
    made = await work.ask("openai_responses", TEXT, store=True)
    run = (await work.get("/v1/runs")).json["data"][0]["id"]
    forked = (await work.post(f"/v1/runs/{run}/fork", {})).json["id"]
    await ended(work, forked)
    return 2 * SIZE + len(made.body) + 2 * SIZE


CASES: dict[str, Case] = {
    "POST /v1/responses": respond,
    "POST /v1/responses in the background": respond_in_background,
    "POST /v1/responses/compact": compact,
    "POST /v1/chat/completions": chat,
    "POST /chat/completions": chat,
    "POST /v1/messages": messages,
    "POST /api/chat": ollama_chat,
    "POST /api/generate": generate,
    "POST /v1/conversations": start_conversation,
    "POST /v1/conversations/{}/items": add_to_conversation,
    "POST /v1/conversations/{}": note_conversation,
    "POST /v1/chat/completions/{}": note_completion,
    "POST /v1/tools": register,
    "POST /v1/approvals/{}": ask_a_person,
    "POST /v1/runs/{}/fork": fork,
}
SMALL = {
    "POST /v1/messages/count_tokens": "nothing",
    "POST /api/show": "nothing",
    "POST /v1/responses/{}/cancel": "the end of a response that is stored already",
    "POST /v1/runs/{}/cancel": "the end of a run that is stored already",
    "POST /v1/tools/{}/accept": "the definition of a tool that its source brought",
    "POST /v1/approvals/deny_all": "a reason of at most 2,000 characters",
    "POST /v1/approvals/reset": "nothing",
    "POST /mcp": "what a run of a tool is recorded by",
    "POST /v1/keys": "a digest, a name and rights",
    "POST /v1/keys/{}": "the rights of a key",
    "POST /v1/keys/{}/rotate": "a digest",
}
"""Endpoints that store nothing, or nothing that grows with what they are sent, and what they store."""


async def test_every_endpoint_that_changes_anything_is_under_the_law() -> None:
    async with at_work() as work:
        changing = {f"{one.method} {one.path}" for one in work.gate.endpoints if one.method in ("POST", "PUT", "PATCH")}
    known = {name.partition(" in the ")[0] for name in CASES} | SMALL.keys()
    assert changing - known == set(), "say in CASES how much a new endpoint stores"
    assert known - changing == set()


@pytest.mark.parametrize("name", CASES)
async def test_what_is_written_is_a_small_multiple_of_what_was_moved(
    name: str, storage_url: str, meter: Meter, tmp_path: Path
) -> None:
    guarded = Oracle(tmp_path / "ran", "guarded", approval="ask")
    async with at_work(guarded, storage=Secret(storage_url), records=RecordSettings(chats="all")) as work:
        before = meter.written
        moved = await CASES[name](work)
        await work.rest()
        assert 0 < meter.written - before <= FACTOR * moved + 4 * ALLOWANCE


async def test_a_run_of_many_calls_is_written_once(storage_url: str, meter: Meter, tmp_path: Path) -> None:
    """However many calls a run makes, and in however many rounds, what is written grows as they do."""

    async def give(_: object) -> str:
        return TEXT

    written: dict[int, int] = {}
    numbers = count()
    oracle = Oracle(tmp_path / "ran", "write", give)
    async with at_work(oracle, storage=Secret(storage_url)) as work:
        for calls in (8, 16):
            rounds = [
                [call(number=next(numbers), arguments=f'{{"text":"{calls} {n}"}}') for n in range(4)]
                for _ in range(calls // 4)
            ]
            before = meter.written
            work.play(*rounds, "Done.")
            response = await work.ask("openai_responses", f"Go {calls}.", store=True)
            assert response.body.count(b"mcp_call") >= calls
            written[calls] = meter.written - before
            assert written[calls] <= FACTOR * (calls * SIZE + len(response.body)) + calls * ALLOWANCE
    assert written[16] <= 2.2 * written[8]


async def test_the_steps_of_a_background_run_are_written_once(storage_url: str, meter: Meter, tmp_path: Path) -> None:
    """What DBOS writes of a run grows with its calls, each of which is a step, and with what they bring."""

    async def give(_: object) -> str:
        return TEXT

    steps: dict[int, int] = {}
    numbers = count()
    async with at_work(Oracle(tmp_path / "ran", "write", give), storage=Secret(storage_url)) as work:
        for calls in (4, 8):
            rounds = [[call(number=next(numbers), arguments=f'{{"text":"{calls} {n}"}}')] for n in range(calls)]
            written, before = meter.written, meter.steps
            work.play(*rounds, "Done.")
            await background(work, f"Go {calls}.")
            steps[calls] = meter.steps - before
            moved = calls * SIZE
            assert moved <= meter.written - written <= FACTOR * moved + calls * ALLOWANCE
    assert 0 < steps[8] <= 2.2 * steps[4]


@pytest.mark.parametrize("client", ["openai_responses", "openai_chat"])
async def test_store_false_leaves_no_content_behind(client: str, tmp_path: Path) -> None:
    """Neither of the question, nor of the answer, nor of arguments, nor of results: beside the client's own tools, too."""

    async def give(_: object) -> str:
        return f"result-{CANARY}"

    arguments = f'{{"text":"{CANARY}"}}'
    oracle, place = Oracle(tmp_path / "ran", "write", give), tmp_path / "store"
    async with at_work(oracle, storage=Secret(f"sqlite:///{place / 'toolgate.db'}")) as work:
        theirs = tool(client, "theirs")
        script = work.play([call(arguments=arguments), call("theirs", "{}", 2)], f"The end. {CANARY}")
        response = await work.ask(client, f"Ask {CANARY}.", store=False, tools=[theirs])
        assert response.status == 200
        assert oracle.runs
        back = _coming_back(client, response.json, f"Ask {CANARY}.")
        response = await work.ask(client, "", store=False, tools=[theirs], **back)
        assert CANARY in response.body.decode()
        assert f"result-{CANARY}" in str(script.requests[1].messages), "the model sees what the client does not"
        kept = b"".join([path.read_bytes() for path in place.iterdir()])
    assert len(kept) > 1000
    assert CANARY.encode() not in kept
    assert CANARY.encode() not in b"".join([path.read_bytes() for path in place.iterdir()])


def _coming_back(client: str, answer: Any, question: str) -> dict[str, Any]:
    if client == "openai_chat":
        message = answer["choices"][0]["message"]
        done = [{"role": "tool", "tool_call_id": one["id"], "content": "done"} for one in message["tool_calls"]]
        return {"messages": [{"role": "user", "content": question}, message, *done]}
    calls = [one for one in answer["output"] if one["type"] == "function_call"]
    done = [{"type": "function_call_output", "call_id": one["call_id"], "output": "done"} for one in calls]
    return {"input": [{"role": "user", "content": question}, *answer["output"], *done]}
