"""The lock law: no sequence of reloads, restarts, crashes and configurations serves a route with fewer checks than the last
valid configuration demanded.

A machine edits the file in every way an editor or a person may, and has the server read it. After each step every route of
the server's own table is asked without a key, with a wrong one and with every key that any file or answer ever held.
"""

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import httpx
import pytest
import yaml
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.auth import stored_key_cache
from toolgate.config import ConfigError, load
from toolgate.http.application import HttpRoute
from toolgate.http.listener import listening

SCOPES = ("chat", "tools", "admin")
NAMES = ("ann", "bob", "root")
LOST = ("", "# nothing\n", "server: {port: 0}\n", "keys: []\n", "keys:\n", "models:\n", "{}\n", "log: {level: error}\n")
BROKEN = ("keys: [", "nonsense: 1\n", "    auto_approve_urls: ['*.com']\n", "storage: 'ftp://x'\n")
THEN = st.sampled_from(["reload", "restart", "crash"])
Keyset: TypeAlias = Mapping[str, tuple[str, ...]]
Meaning: TypeAlias = Keyset | str
EXAMPLES = 300 if os.environ.get("TOOLGATE_LAW_CASES") == "all" else 15

keysets = st.dictionaries(
    st.sampled_from(NAMES), st.lists(st.sampled_from(SCOPES), min_size=1, unique=True).map(tuple), min_size=1
)


class Machine(RuleBasedStateMachine):
    """`demanded` is whether a key is needed, `rights` the most that each key may do; `meaning` is what the file says."""

    def __init__(self) -> None:
        super().__init__()
        self.before = Path.cwd()
        self.folder = Path(tempfile.mkdtemp(prefix="lock"))
        os.chdir(self.folder)  # a file that lost its storage has the default one, beside it
        self.path = self.folder / "toolgate.yaml"
        self.runner = asyncio.Runner()
        self.gates: list[Served] = []
        self.gate: Served | None = None
        self.demanded = False
        self.configured: dict[str, tuple[str, ...]] = {}
        self.made: dict[str, tuple[str, ...]] = {}
        self.secrets: set[str] = set()
        self.changed = False
        self.meaning: Meaning = "silent"
        self.written: Keyset = {}

    def teardown(self) -> None:
        for served in self.gates:
            self.runner.run(served.aclose())
        self.runner.close()
        os.chdir(self.before)
        shutil.rmtree(self.folder)
        super().teardown()

    @initialize(keys=keysets)
    def begin(self, keys: dict[str, tuple[str, ...]]) -> None:
        self._write(text(keys))
        self._read(keys, keys, "restart")

    # What is written into the file, and what the server does with it.

    @rule(keys=keysets, then=THEN)
    def write_keys(self, keys: dict[str, tuple[str, ...]], then: str) -> None:
        self._write(text(keys))
        self._read(keys, keys, then)

    @rule(lost=st.sampled_from(LOST), then=THEN)
    def lose_everything(self, lost: str, then: str) -> None:
        self._write(lost)
        self._read("silent", {}, then)

    @rule(keys=keysets, at=st.floats(0, 1), then=THEN)
    def cut(self, keys: dict[str, tuple[str, ...]], at: float, then: str) -> None:
        whole = text(keys)
        self._write(whole[: int(at * len(whole))])
        self._read("cut", keys, then)

    @rule(keys=keysets, broken=st.sampled_from(BROKEN), then=THEN)
    def break_it(self, keys: dict[str, tuple[str, ...]], broken: str, then: str) -> None:
        self._write(text(keys) + broken)
        self._read("bad", keys, then)

    @rule(then=THEN)
    def say_open(self, then: str) -> None:
        self._write("server: {port: 0, open: true}\nstorage: 'sqlite:///own.db'\nlog: {level: error}\n")
        self._read("open", {}, then)

    def _write(self, content: str) -> None:
        """Write the file as if that were long ago, so that a reload need not wait until it has stopped changing."""
        self.path.write_text(content)
        os.utime(self.path, (0, 0))

    def _read(self, meaning: Meaning, keys: Keyset, then: str) -> None:
        self.meaning, self.written = meaning, keys
        self.secrets |= {f"{name}-key" for name in keys}
        if then == "reload" and self.gate is not None:
            self.runner.run(self.gate.reload(self.path))
            self._take(restarted=False)
        elif self.gate is not None:
            if then == "crash":
                self.runner.run(self.gate.crash())
            else:
                self.gates.remove(self.gate)
                self.runner.run(self.gate.aclose())
            self._start()
        else:
            self._start()

    def _start(self) -> None:
        self.gate = self.runner.run(start(self.path))
        if self.gate is None:
            assert self.meaning in ("bad", "cut"), self.meaning
            return
        assert self.meaning != "bad"
        self.gates.append(self.gate)
        self._take(restarted=True)

    def _take(self, restarted: bool) -> None:
        """What is demanded now that the server has read the file."""
        self.changed = True
        match self.meaning:
            case "open":
                self.demanded, self.configured = False, {}
            case "cut":
                self._may_have(self.written)
            case "silent" if restarted:
                self.configured = {}  # nobody is let in, or those with a key of the database
            case dict(keys):
                self.demanded, self.configured = True, dict(keys)

    def _may_have(self, keys: Keyset) -> None:
        """A cut file may be read as a smaller one, or not at all."""
        for name, scopes in keys.items():
            self.configured[name] = tuple({*self.configured.get(name, ()), *scopes})

    # Keys of the database.

    @precondition(lambda self: self.gate is not None and "admin" in self.configured.get("root", ()))
    @rule(scope=st.sampled_from(SCOPES))
    def make_a_key(self, scope: str) -> None:
        assert self.gate is not None
        body = {"name": f"made{len(self.made)}", "scopes": [scope]}
        answer = self.runner.run(self.gate.manage("POST", "/v1/keys", body))
        if answer.status_code == 200:
            self.demanded = self.changed = True
            self.made[answer.json()["key"]] = (scope,)

    @precondition(lambda self: self.gate is not None and self.made and "admin" in self.configured.get("root", ()))
    @rule()
    def revoke_all(self) -> None:
        assert self.gate is not None
        for number in range(len(self.made)):
            answer = self.runner.run(self.gate.manage("DELETE", f"/v1/keys/made{number}"))
            if answer.status_code == 200:
                self.made[list(self.made)[number]] = ()
                self.changed = True

    # The law.

    @invariant()
    def no_route_has_fewer_checks(self) -> None:
        if self.gate is not None and self.demanded and self.changed:
            self.runner.run(self._ask_all(self.gate))
        self.changed = False

    async def _ask_all(self, served: "Served") -> None:
        rights = {f"{name}-key": scopes for name, scopes in self.configured.items()} | self.made
        knocks = [
            (endpoint, secret)
            for endpoint in served.gate.endpoints
            for secret in (None, "wrong", *self.secrets, *self.made)
            if endpoint.scope is not None and endpoint.scope not in rights.get(secret or "", ())
        ]
        for (endpoint, secret), status in zip(knocks, await served.refusals(knocks), strict=True):
            # Without a key it is let in as far as another proof, which no plain request has.
            refused = (426,) if endpoint.proves_itself and secret is None else (401, 403)
            assert status in refused, (endpoint.method, endpoint.path, secret, status)


def text(keys: Keyset) -> str:
    """A configuration of several lines, so that it can be cut anywhere."""
    entries = [{"name": name, "key": f"{name}-key", "scopes": list(scopes)} for name, scopes in keys.items()]
    parts: list[dict[str, Any]] = [{"log": {"level": "error"}}, {"server": {"port": 0}}]
    parts += [{"keys": entries}] if entries else []
    parts += [{"storage": "sqlite:///own.db"}, {"tools": {"approvals": {"read_only": "ask"}}}]
    return "".join([yaml.safe_dump(part) for part in parts])


async def start(path: Path) -> "Served | None":
    """A server that reads the file, None if it does not start."""
    try:
        served = Served(Toolgate(load(path, os.environ)))
    except (ConfigError, ValueError):
        return None
    await served.open()
    return served


class Served:
    """A server on a socket of its own."""

    def __init__(self, gate: Toolgate) -> None:
        self.gate = gate
        self._listening = listening(gate)

    async def open(self) -> None:
        self._url = urlsplit(await self._listening.__aenter__())

    async def reload(self, path: Path) -> None:
        self.gate.reload_soon(path)
        assert self.gate._reloading is not None
        await self.gate._reloading

    async def crash(self) -> None:
        """Let it write nothing more about keys; it is closed when all is over."""
        tasks = [task for task in asyncio.all_tasks() if "StoredKeyCache" in repr(task.get_coro())]
        assert tasks
        for task in tasks:
            task.cancel()

    async def aclose(self) -> None:
        await self._listening.__aexit__(None, None, None)

    async def refusals(self, knocks: Sequence[tuple[HttpRoute, str | None]]) -> list[int]:
        """The statuses of all these requests; what is let in may break off the rest."""
        reader, writer = await asyncio.open_connection(self._url.hostname, self._url.port)
        statuses: list[int] = []
        for number in range(0, len(knocks), 30):
            some = knocks[number : number + 30]
            writer.write(b"".join([self._request(endpoint, secret) for endpoint, secret in some]))
            for _ in some:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
                statuses.append(int(head[9:12]))
                length = re.search(rb"content-length: (\d+)", head)
                assert length is not None, head
                await reader.readexactly(int(length[1]))
        writer.close()
        await writer.wait_closed()
        return statuses

    def _request(self, endpoint: HttpRoute, secret: str | None) -> bytes:
        path = endpoint.path.replace("{}", "nothing")
        key = f"x-api-key: {secret}\r\n" if secret else ""
        body = "content-type: application/json\r\ncontent-length: 2\r\n\r\n{}" if endpoint.method == "POST" else "\r\n"
        return f"{endpoint.method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{key}{body}".encode()

    async def manage(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """Look after keys, as root."""
        async with httpx.AsyncClient(
            base_url=self._url.geturl(), headers={"x-api-key": "root-key"}, timeout=30
        ) as http:
            return await http.request(method, path, json=body)


def test_no_sequence_of_files_reloads_and_restarts_takes_a_check_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENABLE_EMBEDDED_MODEL", "false")
    monkeypatch.setattr(
        stored_key_cache, "LOOK_SECONDS", 0.0
    )  # each of a thousand requests has a key that is not known
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=8,
            deadline=None,
            phases=(Phase.generate,),  # a sequence is short enough to read as it is
            suppress_health_check=list(HealthCheck),
        ),
    )
