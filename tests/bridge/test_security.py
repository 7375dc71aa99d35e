"""Attacks on the bridge that must fail (spec: V1)."""

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.api.http_client import CLIENTS, PATHS, body
from tests.bridge.gateway import WEATHER, ask, gateway
from tests.bridge.scripted_editor import (
    GPT,
    GUARD,
    PROTOCOL,
    Frame,
    ScriptedEditor,
    delta,
    dial,
    done,
    editor,
    greet,
    proof,
    text,
    token,
)
from toolgate.bridge.handshake import BridgeCredentials
from toolgate.bridge.proof import prove
from toolgate.bridge.session import EditorSession
from toolgate.bridge.token_file import load_token, token_path
from toolgate.bridge.windows import EditorWindows
from toolgate.config import VSCODE, KeySettings, ModelConfig, Secret, TargetConfig
from toolgate.config.settings import VscodeSettings

TOOLS = [{"name": "get_weather", "description": "", "input_schema": WEATHER, "tags": []}]


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with gateway() as client:
        yield client


def url(http: httpx.AsyncClient) -> str:
    return str(http.base_url)


async def close_code(socket: ClientConnection) -> int:
    async with asyncio.timeout(GUARD):
        await socket.wait_closed()
    return socket.close_code or 0


def test_the_proof_is_the_one_of_the_documented_example() -> None:
    secret = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
    nonces = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8", "Hx4dHBsaGRgXFhUUExIREA8ODQwLCgkIBwYFBAMCAQA"
    proofs = {side: prove(secret, side, *nonces, "127.0.0.1:8080") for side in ("editor", "gateway")}
    assert proofs == {
        "editor": "fc6dc7b4d428182ea953d270202e32bd68c5f9c8d7830fc89c3e86ffde3d77a3",
        "gateway": "373dd59ad74959f12786aa39087fb45c0a02f49d59b30b2dccb908cb74d08465",
    }


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://localhost:3000", "http://127.0.0.1:{port}", "null", "vscode-file://app"]
)
@pytest.mark.parametrize("has_key", [False, True])
async def test_no_web_page_opens_the_bridge(origin: str, has_key: bool) -> None:
    keys = (KeySettings(name="remote", key=Secret("remote-secret"), scopes=("bridge",)),) if has_key else ()
    async with gateway(keys=keys) as http:
        headers = {"origin": origin.format(port=http.base_url.port)}
        if has_key:
            headers["authorization"] = "Bearer remote-secret"
        with pytest.raises(InvalidStatus) as refused:
            await dial(url(http), additional_headers=headers)
        assert refused.value.response.status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "10.0.0.1"])
async def test_another_host_name_is_refused(http: httpx.AsyncClient, host: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        # The name of a page whose address was changed to this machine's after it was loaded.
        await connect(f"ws://{host}/bridge", host="127.0.0.1", port=http.base_url.port, proxy=None)
    assert refused.value.response.status_code == 421


async def test_with_keys_another_host_name_needs_one() -> None:
    async with gateway(keys=(KeySettings(name="a", key=Secret("a-secret")),)) as http:
        with pytest.raises(InvalidStatus) as refused:
            await connect("ws://evil.example/bridge", host="127.0.0.1", port=http.base_url.port, proxy=None)
        assert refused.value.response.status_code == 401


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_page_on_this_machine_gets_nothing_that_is_lent(http: httpx.AsyncClient, client: str) -> None:
    page = {"origin": "http://localhost:3000"}
    async with editor(url(http), tools=TOOLS) as window:
        response = await http.post(PATHS[client], json=body(client, "gpt-4o", False), headers=page)
        assert response.status_code == 404
        models = (await http.get("/v1/models", headers=page)).json()["data"]
        tools = (await http.get("/v1/tools", headers=page)).json()["data"]
        windows = (await http.get("/v1/bridge", headers=page)).json()["data"]
        assert window.all("ask") == []
    assert [one["id"] for one in models] == ["echo"]
    assert "get_weather" not in [one["name"] for one in tools]
    assert windows == []


async def test_a_page_cannot_reach_the_editor_by_a_configured_model() -> None:
    lent = ModelConfig(name="mine", targets=(TargetConfig(upstream=VSCODE, model="gpt-4o"),))
    async with gateway(models=(lent,)) as http, editor(url(http)) as window:
        page = {"origin": "http://localhost:3000"}
        for more in ({}, {"background": True, "store": True}):
            sent = {**body("openai_responses", "mine", False), **more}
            response = await http.post("/v1/responses", json=sent, headers=page)
            assert (response.status_code, response.json()["error"]["code"]) == (403, "origin_not_allowed")
        assert window.all("ask") == []


async def test_a_page_cannot_have_lent_tools_run_in_the_background(http: httpx.AsyncClient) -> None:
    async with editor(url(http), tools=TOOLS) as window:
        order = 'call get_weather {"city": "Oslo"}'
        sent = {
            "model": "echo",
            "input": order,
            "background": True,
            "stream": True,
            "tool_execution": "auto",
            "use_server_tools": True,
        }
        read = await http.post("/v1/responses", json=sent, headers={"origin": "http://localhost:3000"})
        assert "response.completed" in read.text
        await http.post("/v1/responses", json={**sent, "metadata": {"from": "no page"}})
        assert len(window.all("invoke")) == 1


async def test_a_page_with_a_key_may_use_what_is_lent() -> None:
    async with gateway(keys=(KeySettings(name="a", key=Secret("a-secret-key")),)) as http, editor(url(http)):
        headers = {"origin": "http://localhost:3000", "authorization": "Bearer a-secret-key"}
        assert (await ask(http, "openai_chat", "gpt-4o", False, headers=headers)).status == 200


@pytest.mark.parametrize("secret", ["0" * 64, "", "not a token"])
async def test_an_impostor_editor_is_closed_and_told_nothing(http: httpx.AsyncClient, secret: str) -> None:
    async with await dial(url(http)) as socket:
        with pytest.raises(ConnectionClosed):
            await greet(socket, url(http), secret)
        assert await close_code(socket) == 4401
    assert (await http.get("/v1/bridge")).json()["data"] == []


async def test_an_editor_without_a_proof_is_closed(http: httpx.AsyncClient) -> None:
    async with await dial(url(http)) as socket:
        with pytest.raises(ConnectionClosed):
            await greet(socket, url(http), None)
        assert await close_code(socket) == 4401


async def test_a_replayed_proof_is_worthless(http: httpx.AsyncClient) -> None:
    async with await dial(url(http)) as socket:
        nonce, address = json.loads(await socket.recv())["nonce"], urlsplit(url(http)).netloc
        recorded = {
            "type": "hello",
            "protocol": PROTOCOL,
            "nonce": "n" * 43,
            "address": address,
            "proof": proof(token(), "editor", nonce, "n" * 43, address),
        }
        await socket.send(json.dumps(recorded))
        assert json.loads(await socket.recv())["type"] == "welcome"
    async with await dial(url(http)) as socket:
        await socket.send(json.dumps(recorded))
        assert await close_code(socket) == 4401


async def test_the_proof_of_one_side_is_none_of_the_other(http: httpx.AsyncClient) -> None:
    """A stranger that reflects what it receives gets nowhere."""
    async with await dial(url(http)) as socket:
        nonce, address = json.loads(await socket.recv())["nonce"], urlsplit(url(http)).netloc
        reflected = proof(token(), "gateway", nonce, nonce, address)
        hello = {"type": "hello", "protocol": PROTOCOL, "nonce": nonce, "address": address, "proof": reflected}
        await socket.send(json.dumps(hello))
        assert await close_code(socket) == 4401


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.2:{port}", "[::1]:{port}", "localhost:{port}", ""])
async def test_a_proof_that_was_made_for_another_address_is_refused(http: httpx.AsyncClient, address: str) -> None:
    """An impostor on another port, or on another address with the same port, cannot pass the editor's proof on."""
    async with await dial(url(http)) as socket:
        with pytest.raises(ConnectionClosed):
            await greet(socket, url(http), token(), address=address.format(port=http.base_url.port))
        assert await close_code(socket) == 4401


async def test_another_protocol_is_refused(http: httpx.AsyncClient) -> None:
    async with await dial(url(http)) as socket:
        await socket.send(json.dumps({"type": "hello", "protocol": "toolgate-bridge.v9", "nonce": "n" * 43}))
        assert await close_code(socket) == 4426


@pytest.mark.parametrize(
    "frame",
    [
        "not JSON",
        "[]",
        "{}",
        '{"type": 7}',
        '{"type": "models", "rev": 1, "items": 3}',
        '{"type": "delta", "id": "x", "parts": [7]}',
        '{"type": "register", "window": {"id": "x"}}',
        "[" * 100_000,
        '{"type": "unknown", "x": ' + "[" * 600 + "]" * 600 + "}",
    ],
)
async def test_what_is_no_frame_closes_the_connection(http: httpx.AsyncClient, frame: str) -> None:
    async with editor(url(http)) as window:
        await window.send_text(frame)
        assert await window.closed() == 4400


async def test_a_close_frame_fits_whatever_was_wrong(http: httpx.AsyncClient) -> None:
    async with editor(url(http)) as window:
        await window.send({"type": "answer", "id": "x", "decision": "\N{COLLISION SYMBOL}" * 100})
        assert await window.closed() == 4400


async def test_what_a_window_says_of_itself_is_kept_within_bounds(http: httpx.AsyncClient) -> None:
    long = "x" * 100_000
    schema = {"type": "object", "properties": {"a": {"description": long}}}
    tools = [{"name": f"tool_{number}", "input_schema": schema, "tags": [long]} for number in range(40)]
    models = [{**GPT, "name": long, "version": long}, {**GPT, "id": "endless", "max_input_tokens": 10**30}]
    described = {"id": "w", "remote": long, "folders": [long], "context": {"number": 10**30}}
    async with await dial(url(http)) as socket:
        await greet(socket, url(http), token())
        register = {"type": "register", "window": described, "editor": {"name": long, "version": long}}
        frames = [register, {"type": "tools", "rev": 1, "items": tools}, {"type": "models", "rev": 1, "items": models}]
        for frame in [*frames, {"type": "ping", "n": 1}]:
            await socket.send(json.dumps(frame))
        while json.loads(await socket.recv()) != {"type": "pong", "n": 1}:
            pass
        listed = await http.get("/v1/bridge")
        (window,) = listed.json()["data"]
        assert len(listed.content) < 1000
        assert window["tools"] == 20  # those that fit into 2 MiB
        assert window["models"] == ["copilot/gpt-4o"]


async def test_an_answer_whose_reader_is_slow_is_measured_with_all_its_fields(http: httpx.AsyncClient) -> None:
    """Ids and names count like text: an editor could fill the memory by them."""

    async def script(window: ScriptedEditor, asked: Frame) -> Any:
        yield delta({"type": "tool_call", "call_id": "c" * (5 * 2**20), "name": "get_weather", "input": {}})
        yield done()

    async with editor(url(http), script=script):
        answer = await ask(http, "openai_chat", "gpt-4o", False)
        assert answer.status == 502
        assert "did not read 4 MiB" in answer.raw


async def test_one_key_cannot_take_the_places_of_all_editors() -> None:
    keys = [KeySettings(name=name, key=Secret(f"{name}-secret"), scopes=("bridge",)) for name in ("greedy", "other")]
    async with gateway(keys=tuple(keys)) as http, AsyncExitStack() as sockets:
        greedy = {"authorization": "Bearer greedy-secret"}
        for _ in range(64):
            await sockets.enter_async_context(await dial(url(http), additional_headers=greedy))
        with pytest.raises(InvalidStatus) as refused:
            await dial(url(http), additional_headers=greedy)
        assert refused.value.response.status_code == 503
        async with editor(url(http), key="other-secret") as window:
            assert window.welcome["type"] == "welcome"


async def test_frames_and_parts_of_unknown_types_are_ignored(http: httpx.AsyncClient) -> None:
    async def script(window: ScriptedEditor, asked: Frame) -> Any:
        yield {"type": "hologram", "data": [1]}
        yield delta({"type": "smell", "of": "roses"}, *text("Hello"))
        yield done()

    async with editor(url(http), script=script):
        assert (await ask(http, "openai_chat", "gpt-4o", False)).text == "Hello"


async def test_an_oversized_frame_closes_the_connection(http: httpx.AsyncClient) -> None:
    async with editor(url(http)) as window:
        await window.send_text(json.dumps({"type": "models", "rev": 9, "items": [], "more": "x" * (17 * 2**20)}))
        assert await window.closed() == 1009


async def test_an_oversized_message_in_fragments_closes_the_connection(http: httpx.AsyncClient) -> None:
    async with editor(url(http)) as window:
        await window.send_fragments("x" * 2**20 for _ in range(20))
        assert await window.closed() == 1009


async def test_a_message_in_fragments_is_one_frame(http: httpx.AsyncClient) -> None:
    async with editor(url(http), models=[]) as window:
        whole = json.dumps({"type": "models", "rev": 9, "items": [GPT]})
        await window.send_fragments(whole[start : start + 7] for start in range(0, len(whole), 7))
        await window.round_trip()
        assert len((await http.get("/v1/models")).json()["data"]) == 2


async def test_a_flood_of_questions_waits_for_its_turn_at_the_window() -> None:
    running = 0
    most = 0
    goes_on = asyncio.Event()

    async def script(window: ScriptedEditor, asked: Frame) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await goes_on.wait()
        running -= 1
        yield delta(*text("Hello"))
        yield done()

    async with gateway(vscode=VscodeSettings(concurrency=4)) as http, editor(url(http), script=script):
        flood = [asyncio.ensure_future(ask(http, "openai_chat", "gpt-4o", False)) for _ in range(80)]
        refused, _ = await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
        assert {one.result().status for one in refused} == {503}
        goes_on.set()
        answers = await asyncio.gather(*flood)
    assert most == 4
    assert {one.status for one in answers} == {200, 503}
    assert sum(one.status == 200 for one in answers) == 68  # 4 at once, and 64 that wait


async def test_an_editor_elsewhere_joins_by_a_key_with_the_scope() -> None:
    keys = (
        KeySettings(name="laptop", key=Secret("laptop-secret"), scopes=("bridge",)),
        KeySettings(name="other", key=Secret("other-secret"), scopes=("chat", "tools", "admin")),
    )
    async with gateway(keys=keys) as http:
        async with editor(url(http), key="laptop-secret") as window:
            assert window.welcome["proof"] is None
            asked = await ask(http, "openai_chat", "gpt-4o", False, headers={"authorization": "Bearer other-secret"})
            assert asked.status == 200
        for key, status in (("other-secret", 403), ("wrong-secret", 401)):
            with pytest.raises(InvalidStatus) as refused:
                await dial(url(http), additional_headers={"authorization": f"Bearer {key}"})
            assert refused.value.response.status_code == status


async def test_the_bridge_can_be_turned_off() -> None:
    async with gateway(vscode=VscodeSettings(enabled=False)) as http:
        with pytest.raises(InvalidStatus) as refused:
            await dial(url(http))
        assert refused.value.response.status_code == 404


async def test_an_editor_gets_its_own_models_not_back(http: httpx.AsyncClient) -> None:
    async with editor(url(http)) as window:
        headers = {"x-toolgate-editor": window.window["id"]}
        assert (await ask(http, "openai_chat", "gpt-4o", False, headers=headers)).status == 404
        assert window.all("ask") == []


def test_the_token_file_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "toolgate" / "bridge.token"
    made = load_token(path)
    assert load_token(path) == made
    assert len(made) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == ["bridge.token"]


def test_a_token_file_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "bridge.token"
    load_token(path)
    path.chmod(0o644)
    with pytest.raises(PermissionError):
        load_token(path)


def test_a_token_file_behind_a_link_is_not_used(tmp_path: Path) -> None:
    load_token(tmp_path / "real.token")
    (tmp_path / "bridge.token").symlink_to(tmp_path / "real.token")
    with pytest.raises(OSError, match="symbolic links"):
        load_token(tmp_path / "bridge.token")


def test_the_token_file_is_in_the_folder_for_state() -> None:
    assert token_path({"XDG_STATE_HOME": "/state"}) == Path("/state/toolgate/bridge.token")
    assert token_path({}) == Path.home() / ".local/state/toolgate/bridge.token"
    assert token_path({"TOOLGATE_BRIDGE_TOKEN_FILE": "/my/token"}) == Path("/my/token")


class UnreadSocket:
    """A socket whose editor sends a hundred pings and reads no pong; `begun` is set when a pong or nothing waits."""

    gone = False
    has_messages = True

    def __init__(self) -> None:
        window: Frame = {"id": "w", "folders": [], "remote": None, "focused": True, "context": {}}
        register = {"type": "register", "editor": {"name": "e", "version": "1"}, "extension": {"version": "1"}}
        frames: list[Frame] = [
            {"type": "hello", "protocol": PROTOCOL, "nonce": "n" * 32, "address": ""},
            {**register, "window": window, "lends": {}, "max_frame": 1024},
            *[{"type": "ping", "n": number} for number in range(100)],
        ]
        self.messages = [json.dumps(frame).encode() for frame in frames]
        self.begun = asyncio.Event()
        self.sent = 0

    def handle_at_once(self, handle: Any) -> None:
        """Offer nothing."""

    async def receive(self) -> bytes | None:
        """Return the next message at once."""
        if not self.messages:
            self.begun.set()
            await asyncio.Event().wait()
        return self.messages.pop(0)

    async def send(self, *texts: bytes) -> None:
        """Wait for an editor that does not read."""
        self.sent += 1
        self.begun.set()
        await asyncio.Event().wait()

    def write(self, *texts: bytes) -> None:
        """Send frames of the handshake."""

    def wake(self) -> None:
        """Do nothing."""

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Do nothing."""


async def test_nothing_is_received_while_the_editor_does_not_read_its_pongs() -> None:
    socket = UnreadSocket()
    session = EditorSession(socket, BridgeCredentials(owner="ann"), EditorWindows())
    serving = asyncio.ensure_future(session.serve())
    await asyncio.wait_for(socket.begun.wait(), GUARD)
    await asyncio.sleep(0)
    assert (socket.sent, len(socket.messages)) == (1, 99)
    serving.cancel()
    await asyncio.wait({serving})
