"""Reloads: of a file that is being written, that has lost checks (fault: Z1), or that cannot be used."""

import asyncio
import json
import os
import tracemalloc
from collections import deque
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import httpx
import pytest

from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import load, stable_read
from toolgate.http.application import Application
from toolgate.http.listener import listening
from toolgate.telemetry.log_writer import Logger

BEGINNING = """\
server: {port: 0}
storage: 'sqlite://'
log: {format: json}
tools:
  approvals:
    default: ask
"""
RULES = """\
    rules:
      - {stance: deny, tools: [delete_*]}
    never_auto: [send_mail]
"""
KEYS = """\
keys:
  - {name: ann, key: ann-key}
"""
REST = """\
  - {name: bob, key: bob-key}
"""


def write(path: Path, text: str, *, long_ago: bool = False) -> None:
    """Write the file, now or, as its date says, long ago."""
    path.write_text(text)
    if long_ago:
        os.utime(path, (1.0, 1.0))


async def reloaded(gate: Toolgate, path: Path) -> None:
    gate.reload_soon(path)
    assert gate._reloading is not None
    await gate._reloading


async def statuses(url: str) -> dict[str, int]:
    """What each key is answered."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        asked = {who: await http.get("/v1/models", headers={"x-api-key": f"{who}-key"}) for who in ("ann", "bob")}
        return {who: answer.status_code for who, answer in asked.items()}


def logged(capfd: pytest.CaptureFixture[str], event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]
    return [line for line in lines if event in line.values()]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENABLE_EMBEDDED_MODEL", "false")
    path = tmp_path / "toolgate.yaml"
    path.write_text(BEGINNING + RULES + KEYS + REST)
    return path


async def test_a_file_that_is_cut_at_a_line_break_is_read_when_it_is_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    waits = []

    def write_more(seconds: float) -> None:
        """The editor goes on while the server waits."""
        waits.append(seconds)
        if len(waits) == 1:
            write(path, BEGINNING + RULES + KEYS + REST)

    monkeypatch.setattr(stable_read, "sleep", write_more)
    async with listening(gate := Toolgate(load(path, os.environ))) as url:
        write(path, BEGINNING + RULES + KEYS)
        await reloaded(gate, path)
        assert await statuses(url) == {"ann": 200, "bob": 200}
    assert waits
    assert logged(capfd, "reload removed keys or rules") == []


async def test_a_file_that_has_not_changed_lately_is_read_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stable_read, "sleep", pytest.fail)
    async with listening(gate := Toolgate(load(path, os.environ))) as url:
        write(path, BEGINNING + RULES + KEYS, long_ago=True)
        await reloaded(gate, path)
        assert await statuses(url) == {"ann": 200, "bob": 401}


async def test_a_text_is_in_force_if_the_one_that_follows_at_once_is_refused(path: Path) -> None:
    """A worker that was still starting dropped the first, and went on with a key that was removed."""
    async with listening(gate := Toolgate(load(path, os.environ))) as url:
        in_force: list[str] = []
        gate.reload_soon(path, (BEGINNING + RULES + KEYS).encode(), lambda: in_force.append("without bob"))
        gate.reload_soon(path, b"nonsense: [\n", lambda: in_force.append("nonsense"))
        assert gate._reloading is not None
        await gate._reloading
        assert (await statuses(url), in_force) == ({"ann": 200, "bob": 401}, ["without bob"])


async def test_a_reload_logs_which_keys_and_rules_it_removed(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with listening(gate := Toolgate(load(path, os.environ))) as url:
        write(path, BEGINNING.replace("default: ask", "default: allow") + KEYS, long_ago=True)
        await reloaded(gate, path)
        assert await statuses(url) == {"ann": 200, "bob": 401}
    [line] = logged(capfd, "reload removed keys or rules")
    assert line["level"] == "warning"
    assert line["removed"] == [
        "keys.bob",
        "tools.approvals.rules: deny tools delete_*",
        "tools.approvals.never_auto: send_mail",
        "tools.approvals.default: ask, now allow",
    ]


Snapshot = dict[int, tuple[object, dict[str, object]]]


def fingerprint(value: object) -> object:
    """Return what changes when a value is replaced, or a container's content is."""
    if isinstance(value, dict):
        return [(id(key) if not isinstance(key, str) else key, id(one)) for key, one in value.items()]
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [id(one) for one in value]
    return value if isinstance(value, int | float | str | bytes | None) else id(value)


def snapshot(root: object) -> Snapshot:
    """Return every attribute of every object of ours that can be reached from this one, but for the log's own clock."""
    found: Snapshot = {}
    waiting, seen = [root], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list | tuple | set | frozenset | deque):
            waiting += one
        elif isinstance(one, MethodType):
            waiting.append(one.__self__)
        elif isinstance(one, FunctionType):
            waiting += [cell.cell_contents for cell in one.__closure__ or ()]
        elif type(one).__module__.startswith("toolgate.") and hasattr(one, "__dict__"):
            names = ("level", "redact") if isinstance(one, Logger) else vars(one)
            attributes = {name: getattr(one, name) for name in names}
            found[id(one)] = one, {name: fingerprint(value) for name, value in attributes.items()}
            waiting += attributes.values()
    return found


def changed(before: Snapshot, after: Snapshot) -> set[str]:
    """Return the attributes that differ, as `Class.attribute`."""
    return {
        f"{type(one).__name__}.{name}"
        for id, (one, attributes) in before.items()
        for name, value in attributes.items()
        if id in after and after[id][1][name] != value
    }


CHANGED = """\
  - {name: carl, key: carl-key, requests_per_minute: 5}
records: {chats: all, arguments: true, days: {chats: 3}}
upstreams:
  far: {dialect: openai_chat, base_url: "http://127.0.0.1:9"}
  chatty: {dialect: peer, base_url: "ws://127.0.0.1:9"}
models:
  - {name: talker, upstream: chatty, model: talker}
  - {name: other, upstream: far, model: other, price: {input: 1, output: 2}}
default_model: other
"""


def test_a_reload_that_fails_at_its_last_step_changes_nothing_that_serves(
    path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    gate = Toolgate(load(path, os.environ))
    config, endpoints, before = gate.config, gate.endpoints, snapshot(gate)

    class Unbuildable(Application):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            raise ValueError("the last step fails")

    write(path, BEGINNING.replace("default: ask", "default: deny") + RULES + KEYS + REST + CHANGED, long_ago=True)
    with monkeypatch.context() as patch:
        patch.setattr("toolgate.app.configured_site.Application", Unbuildable)
        gate.reload(path)
    assert logged(capfd, "reload refused")[0]["problems"] == ["the last step fails"]
    assert changed(before, snapshot(gate)) == set()
    assert (gate.config, gate.endpoints) == (config, endpoints)
    gate.reload(path)  # the same file is accepted without the failure, and what lives on learns of it
    assert logged(capfd, "reloaded")
    assert changed(before, snapshot(gate)) >= {
        *(
            "Toolgate._site",
            "ToolService._policies",
            "ApprovalService.policy",
            "LimitServices._limits",
            "StatefulChatConnections._peers",
        ),
        *(
            "ChatRecordingPolicy._stored",
            "InvocationRecorder._with_arguments",
            "RetentionJob._days",
            "UsageRecorder._price_of",
        ),
    }


@pytest.mark.parametrize(
    ("beginning", "rest"),
    [
        ("tools:\n  approvals:\n    default: ask\n", "    trusted: [builtin]\n"),
        ("tools:\n  approvals:\n    default: ask\n", "    self_approval: false\n"),
        ("tools:\n  limits:\n    seconds: 60\n", "    rounds: 2\n"),
        ("server:\n  port: 0\n", "  hosts: [gate.example]\n"),
        ("records:\n  requests: 1\n", "  chats: none\n"),
        ("keys:\n  - name: ann\n    key: ann-key\n", "    scopes: [tools]\n"),
        ("keys:\n  - name: ann\n    key: ann-key\n", "    keep_chats: false\n"),
    ],
)
async def test_a_file_that_is_cut_off_before_a_setting_that_checks_is_refused(
    path: Path, capfd: pytest.CaptureFixture[str], beginning: str, rest: str
) -> None:
    keys = "" if "keys:" in beginning else KEYS
    whole = f"storage: 'sqlite://'\nlog: {{format: json}}\n{keys}{beginning}{rest}"
    write(path, whole)
    gate = Toolgate(load(path, os.environ))
    write(path, whole.removesuffix(rest), long_ago=True)
    await reloaded(gate, path)
    [refused] = logged(capfd, "reload refused")
    assert "is the former one cut off" in refused["problems"][0]
    write(path, f"{whole.removesuffix(rest)}# meant\n", long_ago=True)
    await reloaded(gate, path)
    assert logged(capfd, "reloaded"), "a person can remove it all the same"


async def test_a_server_that_drains_is_not_ready_after_a_reload_either(path: Path) -> None:
    async with listening(gate := Toolgate(load(path, os.environ))) as url, httpx.AsyncClient(base_url=url) as http:
        assert (await http.get("/readyz")).status_code == 200
        gate.drain()
        gate.reload(path)
        assert (await http.get("/readyz")).status_code == 503


async def test_a_reload_waits_for_no_pipe_and_reads_no_more_than_a_file_may_have(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    gate = Toolgate(load(path, os.environ))
    os.unlink(path)
    os.mkfifo(path)
    held = os.open(path, os.O_RDWR)  # a writer that never writes
    try:
        async with asyncio.timeout(30):
            await reloaded(gate, path)
    finally:
        os.write(held, b"server: {")  # ends a read that waits
        os.close(held)
    os.unlink(path)
    write(path, BEGINNING)
    os.truncate(path, 256 * 1024**2)
    tracemalloc.start()
    try:
        await reloaded(gate, path)
        assert tracemalloc.get_traced_memory()[1] < 32 * 1024**2
    finally:
        tracemalloc.stop()
    refused = [line["problems"] for line in logged(capfd, "reload refused")]
    assert refused == [["cannot read the file: it is a pipe or a device"], ["the file is larger than 4 MiB"]]
    write(path, BEGINNING + RULES + KEYS)
    await reloaded(gate, path)
    assert logged(capfd, "reloaded")


async def test_a_reload_of_a_folder_in_place_of_the_file_leaves_no_descriptor_open(path: Path) -> None:
    async with listening(gate := Toolgate(load(path, os.environ))) as url:
        os.unlink(path)
        os.mkdir(path)
        await reloaded(gate, path)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            await reloaded(gate, path)
        assert len(os.listdir("/proc/self/fd")) == before
        assert (await statuses(url))["bob"] == 200
