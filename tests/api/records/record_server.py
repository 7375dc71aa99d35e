"""A gateway that stores records, over scripted upstreams, with requests for what it has stored."""

import json
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError

from tests.stage import Stage, on_stage
from toolgate.config import KeySettings, Secret
from toolgate.config.settings import RecordSettings

ANN = KeySettings(name="ann", key=Secret("ann-key"), scopes=("chat",))
BOB = KeySettings(name="bob", key=Secret("bob-key"), scopes=("chat",))
EVE = KeySettings(name="eve", key=Secret("eve-key"), scopes=("chat", "tools", "admin"))
ALL = RecordSettings(chats="all")


class RecordServer:
    """A stage whose records can be read."""

    def __init__(self, stage: Stage) -> None:
        self.url = stage.url
        self.play = stage.play
        self.gate = stage.gate

    def ask(self, path: str, *, who: str = "ann", method: str = "GET", body: Any = None) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        headers = {"authorization": f"Bearer {who}-key", "content-type": "application/json"}
        sent = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, sent, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, json.loads(response.read())
        except HTTPError as error:
            return error.code, json.loads(error.read())

    def listed(self, path: str, who: str = "ann") -> list[dict[str, Any]]:
        """The items of a list."""
        status, answer = self.ask(path, who=who)
        assert status == 200, answer
        rows: list[dict[str, Any]] = answer["data"]
        return rows

    def chats(self, who: str = "ann") -> list[list[dict[str, Any]]]:
        """The messages of each chat, in the order in which the chats began."""
        ids = [chat["id"] for chat in self.listed("/v1/chats?order=asc", who)]
        return [self.listed(f"/v1/chats/{id}/messages?order=asc&limit=100", who) for id in ids]


@contextmanager
def record_server(*sources: Any, records: RecordSettings = ALL, **changes: Any) -> Generator[RecordServer]:
    """A gateway with the keys of Ann, Bob and Eve, who may see everything."""
    with on_stage(*sources, records=records, **{"keys": (ANN, BOB, EVE), **changes}) as stage:
        yield RecordServer(stage)
