"""Old records are deleted as configured, and a server that stops writes what is queued (spec: D2)."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import httpx

from tests.api.records.record_server import ALL, record_server
from toolgate.api.records.retention_job import RetentionJob, retention_days
from toolgate.config import Secret
from toolgate.config.settings import RecordSettings, RetentionSettings
from toolgate.conversation.errors import GatewayOverloaded
from toolgate.storage.database import Database
from toolgate.storage.retention import AT_ONCE, RetentionStore
from toolgate.telemetry.log_writer import Logger
from toolgate.telemetry.redaction import Redactor

LOG = Logger("error", "json", Redactor(()))


class Counting(RetentionStore):
    """Has so many old rows of each kind, and notes what was asked."""

    def __init__(self, **old: int) -> None:
        super().__init__(Database(None))
        self.old = old
        self.asked: list[tuple[str, int]] = []
        self.is_away = False
        self.swept = asyncio.Event()

    async def sweep(self, kind: str, days: int) -> int:
        self.asked.append((kind, days))
        self.swept.set()
        if self.is_away:
            raise GatewayOverloaded("The storage is not available.")
        some = min(self.old.get(kind, 0), AT_ONCE)
        self.old[kind] = self.old.get(kind, 0) - some
        return some

    async def expire(self) -> int:
        return await self.sweep("expired", 0)


async def test_each_kind_is_deleted_after_its_own_time_and_kinds_without_one_stay() -> None:
    retention = Counting(responses=AT_ONCE * 2 + 1, usage=3, expired=AT_ONCE + 1)
    settings = RecordSettings(days=RetentionSettings(responses=7, chats=0, conversations=0, approvals=5), requests=3)
    sweeper = RetentionJob(retention, LOG, retention_days(settings))
    assert await sweeper.sweep() == {"responses": AT_ONCE * 2 + 1, "usage": 3, "expired": AT_ONCE + 1}
    kinds = [("responses", 7)] * 4 + [("invocations", 90), *[("usage", 400)] * 2, ("hours", 35), ("runs", 30)]
    kinds += [("approvals", 5), ("requests", 3), *[("expired", 0)] * 3]
    assert retention.asked == kinds


async def test_old_records_are_deleted_after_the_database_was_away() -> None:
    retention = Counting(chats=1)
    retention.is_away = True
    sweeper = RetentionJob(retention, LOG, retention_days(RecordSettings()), first=0.0, every=0.0)
    sweeper.start()
    await retention.swept.wait()
    retention.is_away = False
    while retention.old["chats"]:
        retention.swept.clear()
        await retention.swept.wait()
    await sweeper.aclose()


def test_a_server_that_stops_writes_what_is_queued(tmp_path: Path) -> None:
    file = tmp_path / "toolgate.db"
    with record_server(records=ALL, storage=Secret(f"sqlite:///{file}")) as kept:
        kept.play(*["Yes."] * 20)
        with httpx.Client(headers={"authorization": "Bearer ann-key"}) as client:
            for number in range(20):
                body: Any = {"model": "openai_chat", "messages": [{"role": "user", "content": str(number)}]}
                assert client.post(f"{kept.url}/v1/chat/completions", json=body).status_code == 200
    database = sqlite3.connect(file)
    assert database.execute("SELECT count(*) FROM chats").fetchone() == (20,)
    assert database.execute("SELECT sum(requests) FROM usage_sums WHERE key = 'ann'").fetchone() == (20,)
    database.close()
