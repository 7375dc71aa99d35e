"""Background responses whose database is away while they are made, over both engines (spec: D3; fault: K-K)."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from tests.chaos.proxy import FaultProxy, spoilt
from tests.chaos.test_lines import over, socket_of
from tests.laws.test_ledger import PER_TOKEN, spent_of, used_of
from tests.stage import Player, gateway_config, upstream_config
from tests.tools.execution.toolwork import TRUSTING, Oracle, Source, Work, call, soon
from toolgate.api.responses import stream_recorder
from toolgate.api.responses.stream_recorder import WriteClaim
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import KeySettings, Secret
from toolgate.config.settings import DurableRunSettings, KeyBudgetSettings
from toolgate.conversation.errors import GatewayOverloaded
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.message import Reasoning, Text
from toolgate.http.listener import listening
from toolgate.runs import dbos_executor
from toolgate.runs.scheduler import LeasedRunScheduler, RunAttempt
from toolgate.storage.database import CommitUncertain
from toolgate.storage.responses import ResponseStore, StoredResponse
from toolgate.storage.sql_engine import unavailable

BUDGET = KeyBudgetSettings(amount=100, period="total")
KEYS = (KeySettings(name="ann", key=Secret("ann-key"), scopes=("chat", "tools"), budget=BUDGET),)
# A lease that outlasts what a busy machine holds a node up for: another attempt would ask the model once more.
SOON = DurableRunSettings(lease_seconds=8, look_seconds=0.05)
ANSWER = ModelResponse((Text("Done."),), "stop", Usage(1))
CALL = ModelResponse((call(),), "tool_calls", Usage(1))

Save: TypeAlias = Callable[[], Awaitable[None]]


class StorageOutage:
    """A database that can be taken away: a file that is moved, or the line to a PostgreSQL that is cut."""

    def __init__(self, url: str, line: FaultProxy | None) -> None:
        self.url = url
        self.storage = Secret(url) if line is None else over(line, url)
        self._line = line
        self._file = Path(url.removeprefix("sqlite:///"))

    def begin(self) -> None:
        if self._line is None:
            self._file.rename(self._file.with_suffix(".away"))
        else:
            self._line.refusing = True
            self._line.cut()

    def end(self) -> None:
        if self._line is None:
            self._file.with_suffix(".away").rename(self._file)
        else:
            self._line.refusing = False


@pytest.fixture
async def outage(storage_url: str) -> AsyncIterator[StorageOutage]:
    if urlsplit(storage_url).scheme == "sqlite":
        yield StorageOutage(storage_url, None)
        return
    async with spoilt(socket_of(storage_url)) as line:
        yield StorageOutage(storage_url, line)


@asynccontextmanager
async def gateway(outage: StorageOutage, *tools: Oracle) -> AsyncIterator[Work]:
    """A gateway whose database can be taken away; a token of its models costs 1."""
    player = Player()
    async with listening(Toolgate(upstream_config(), {"played": player})) as upstream:
        config = gateway_config(upstream, keys=KEYS, storage=outage.storage, runs=SOON, tools=TRUSTING)
        config = replace(config, models=tuple([replace(model, price=PER_TOKEN) for model in config.models]))
        async with listening(gate := Toolgate(config, sources=[Source(*tools)])) as url:
            yield Work(url, player, gate)


async def accepted(work: Work) -> str:
    made = await work.ask("openai_responses", key="ann-key", background=True, store=True)
    return str(made.json["id"])


async def ended(work: Work, id: str) -> tuple[str, str]:
    """How the response has ended, and its text."""

    async def over() -> Any:
        found = (await work.get(f"/v1/responses/{id}", key="ann-key")).json
        return found if found.get("status") not in (None, "queued", "in_progress") else None

    response = await soon(over)
    parts = [part for item in response["output"] for part in item.get("content") or ()]
    return response["status"], "".join([part["text"] for part in parts])


async def is_recorded(work: Work, id: str, cost: float) -> bool:
    """Whether there is one record of the response, with this cost."""
    records = (await work.get("/v1/requests?status=200", key="ann-key")).json["data"]
    return [one["cost"] for one in records if one["run"] == id] == [cost]


async def until_refused(work: Work, id: str) -> None:
    """Wait until a request finds the database away."""

    async def refused() -> bool:
        return (await work.get(f"/v1/responses/{id}/input_items", key="ann-key")).status == 503

    await soon(refused)


async def charged(outage: StorageOutage) -> dict[str, float]:
    """What each key has spent, which is also what the records of usage say."""
    spent = await spent_of(outage.url)
    assert await used_of(outage.url) == spent
    return spent


def replace_save(monkeypatch: pytest.MonkeyPatch, instead: Callable[[Save], Awaitable[None]]) -> None:
    """Have the ends of responses saved by `instead`, which gets the real way to save."""
    save = ResponseStore.save

    async def save_response(store: ResponseStore, response: StoredResponse, *also: Any) -> None:
        if response.body["status"] == "queued":
            await save(store, response, *also)
        else:
            await instead(lambda: save(store, response, *also))

    monkeypatch.setattr(ResponseStore, "save", save_response)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[RunAttempt]:
    """The attempts that were begun, in their order."""
    begun: list[RunAttempt] = []
    init = RunAttempt.__init__

    def note(attempt: RunAttempt, *values: Any) -> None:
        init(attempt, *values)
        begun.append(attempt)

    monkeypatch.setattr(RunAttempt, "__init__", note)
    return begun


async def test_a_response_is_completed_whose_end_could_not_be_stored_at_first(
    outage: StorageOutage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed if the database came back just before its failure was stored; its first item could not be stored either."""
    answering, failed = asyncio.Event(), asyncio.Event()

    async def save_and_end_outage(save: Save) -> None:
        try:
            await save()
        except GatewayOverloaded:
            if not failed.is_set():
                failed.set()
                outage.end()
            raise

    replace_save(monkeypatch, save_and_end_outage)
    async with gateway(outage) as work:
        played = work.play(ModelResponse((Reasoning("Hm."), Text("Done.")), "stop", Usage(1)), pace=answering.wait)
        following = asyncio.create_task(
            work.ask("openai_responses", stream=True, key="ann-key", background=True, store=True)
        )
        await soon(lambda: played.answers)
        outage.begin()
        answering.set()
        events = (await following).body
        assert failed.is_set()
        assert (events.count(b"event: response.completed"), b"response.failed" in events) == (1, False)
        assert len(played.requests) == 1
    assert await charged(outage) == {"ann": 1.0}


async def test_a_response_is_charged_whose_end_was_stored_when_the_outage_began(
    outage: StorageOutage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither its commit was confirmed, nor could anything be asked for a while; no other attempt charges its step."""
    saves: list[int] = []

    async def save_unconfirmed(save: Save) -> None:
        await save()
        outage.begin()
        saves.append(1)
        raise CommitUncertain

    replace_save(monkeypatch, save_unconfirmed)
    async with gateway(outage, oracle := Oracle(tmp_path / "runs")) as work:
        played = work.play(CALL, ANSWER)
        id = await accepted(work)
        await soon(lambda: saves)
        await until_refused(work, id)
        outage.end()
        assert await ended(work, id) == ("completed", "Done.")
        assert (len(saves), len(played.requests), len(oracle.runs)) == (1, 2, 1)

        # Its row was there before its attempt knew of that; a server that stops in between charges the last answer only.
        await soon(lambda: is_recorded(work, id, 2))
    assert await charged(outage) == {"ann": 2.0}


async def test_a_response_is_charged_whose_end_is_found_by_the_scheduler_first(
    outage: StorageOutage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler took it for a run that another node has, and what the attempt had asked in the outage failed then."""
    polled, polls = asyncio.Event(), list[int]()
    ask, poll = WriteClaim.has_ended_run, LeasedRunScheduler._poll

    async def save_unconfirmed(save: Save) -> None:
        await save()
        raise CommitUncertain

    async def fail_after_a_poll(claim: WriteClaim) -> bool:
        if polled.is_set():
            return await ask(claim)
        polls.append(0)
        await polled.wait()
        raise unavailable("it was away")

    async def note_poll(scheduler: LeasedRunScheduler) -> None:
        is_asked = bool(polls)
        await poll(scheduler)
        if is_asked:
            polled.set()

    replace_save(monkeypatch, save_unconfirmed)
    monkeypatch.setattr(WriteClaim, "has_ended_run", fail_after_a_poll)
    monkeypatch.setattr(LeasedRunScheduler, "_poll", note_poll)
    async with gateway(outage) as work:
        work.play(ANSWER)
        id = await accepted(work)
        await soon(lambda: is_recorded(work, id, 1))
    assert await charged(outage) == {"ann": 1.0}


@pytest.mark.parametrize("how", ["cancelled", "unconfirmed"])
async def test_a_response_is_charged_that_was_stored_though_its_request_failed(
    outage: StorageOutage, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its key was rotated, or the database went away, while it was stored: what it had reserved was given back."""
    save, saves = ResponseStore.save, list[str]()

    async def save_queued(store: ResponseStore, response: StoredResponse, *also: Any) -> None:
        await save(store, response, *also)
        saves.append(response.id)
        if len(saves) > 1:
            return
        if how == "unconfirmed":
            raise CommitUncertain
        for exchange, *_ in work.gate.services.keys.active_requests.by_id.values():
            exchange.cancel()
        await asyncio.sleep(0)

    monkeypatch.setattr(ResponseStore, "save", save_queued)
    async with gateway(outage) as work:
        work.play(ANSWER)
        assert (await work.ask("openai_responses", key="ann-key", background=True, store=True)).status == 503
        assert await ended(work, saves[0]) == ("completed", "Done.")
    assert await charged(outage) == {"ann": 1.0}


async def test_a_response_whose_end_is_refused_again_and_again_is_made_again(
    outage: StorageOutage, monkeypatch: pytest.MonkeyPatch, attempts: list[RunAttempt]
) -> None:
    """Both answers are charged."""

    async def refuse_the_first_attempt(save: Save) -> None:
        if len(attempts) == 1:
            raise unavailable("it is read-only")
        await save()

    monkeypatch.setattr(stream_recorder, "_MOST_SAVES", 2)
    replace_save(monkeypatch, refuse_the_first_attempt)
    async with gateway(outage) as work:
        played = work.play(ANSWER, ANSWER)
        id = await accepted(work)
        assert await ended(work, id) == ("completed", "Done.")
        assert len(played.requests) == 2
    assert await charged(outage) == {"ann": 2.0}


async def test_an_answer_that_could_not_be_stored_as_a_step_is_charged_with_the_one_in_its_place(
    outage: StorageOutage, monkeypatch: pytest.MonkeyPatch, attempts: list[RunAttempt], tmp_path: Path
) -> None:
    """The response is made again: that its storage was away is no failure of it."""
    write = dbos_executor._write_step

    def refuse_the_first_attempt(name: str, value: str) -> None:
        if len(attempts) == 1:
            raise unavailable("a step could not be stored")
        write(name, value)

    monkeypatch.setattr(dbos_executor, "_write_step", refuse_the_first_attempt)
    async with gateway(outage, oracle := Oracle(tmp_path / "runs")) as work:
        played = work.play(CALL, CALL, ANSWER)
        id = await accepted(work)
        assert await ended(work, id) == ("completed", "Done.")
        assert (len(played.requests), len(oracle.runs)) == (3, 1)
    assert await charged(outage) == {"ann": 3.0}


@pytest.mark.parametrize("how", ["release", "lose"])
async def test_stored_steps_are_charged_once_and_so_is_an_answer_that_was_broken_off(
    outage: StorageOutage, monkeypatch: pytest.MonkeyPatch, attempts: list[RunAttempt], tmp_path: Path, how: str
) -> None:
    """The first attempt stores a step, and is interrupted when the storage does not take the end."""

    async def interrupt_the_first_attempt(save: Save) -> None:
        if len(attempts) == 1:
            getattr(attempts[0], how)()
            raise unavailable("it is away")
        await save()

    replace_save(monkeypatch, interrupt_the_first_attempt)
    async with gateway(outage, oracle := Oracle(tmp_path / "runs")) as work:
        played = work.play(CALL, ANSWER, ANSWER)
        id = await accepted(work)
        assert await ended(work, id) == ("completed", "Done.")
        assert (len(played.requests), len(oracle.runs)) == (3, 1)
        records = (await work.get("/v1/requests", key="ann-key")).json["data"]
        assert [(one["run"], one["code"], one["cost"]) for one in records] == [
            (id, "run_interrupted", 1),
            (id, None, 2),
        ]
    assert await charged(outage) == {"ann": 3.0}


async def test_a_step_that_is_stored_while_its_attempt_is_interrupted_is_charged_once(
    outage: StorageOutage, monkeypatch: pytest.MonkeyPatch, attempts: list[RunAttempt], tmp_path: Path
) -> None:
    loop, write = asyncio.get_running_loop(), dbos_executor._write_step

    def interrupt_and_write(name: str, value: str) -> None:
        if len(attempts) == 1:
            interrupted = threading.Event()
            loop.call_soon_threadsafe(attempts[0].release)
            loop.call_soon_threadsafe(interrupted.set)
            assert interrupted.wait(30)
        write(name, value)

    monkeypatch.setattr(dbos_executor, "_write_step", interrupt_and_write)
    rounds = 0
    async with gateway(outage, oracle := Oracle(tmp_path / "runs")) as work:
        while not oracle.runs and rounds < 10:  # the next attempt may be faster than the write, which is then refused
            rounds += 1
            attempts.clear()
            played = work.play(CALL, ANSWER)
            id = await accepted(work)
            assert await ended(work, id) == ("completed", "Done.")
            assert len(played.requests) == 2
        assert len(oracle.runs) == 1
    assert await charged(outage) == {"ann": 2.0 * rounds}
