"""Requests of tools that are lured elsewhere or let out too much, through the whole server (fault: T11, S4, S6, J4)."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.api.http_client import CLIENTS, ask
from tests.mcp.client.scripted_server import ReceivedRequest, ScriptedResponse, serving
from tests.tools.execution.toolwork import CANARY, TRUSTING, Work, at_work, call, output, quiet, results, soon
from toolgate.config import KeySettings, Secret
from toolgate.config.settings import OpenApiSettings, RunLimitSettings, ServerToolSettings
from toolgate.tools.egress.name_lookup import SHARE

DIALECTS = pytest.mark.parametrize("client", CLIENTS)
NEAR = ("127.0.0.1",)

SHOP: Mapping[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Shop", "version": "1"},
    "paths": {
        "/price": {"get": {"operationId": "get_price", "responses": {}}},
        "/order": {
            "post": {
                "operationId": "order",
                "requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}},
                "responses": {},
            }
        },
    },
}


def tools(**changes: Any) -> ServerToolSettings:
    return ServerToolSettings(approvals=TRUSTING.approvals, **changes)


def shop(place: Path, url: str, document: Any = SHOP) -> Mapping[str, OpenApiSettings]:
    """The shop's tools, with a secret in its headers."""
    (place / "shop.json").write_text(document if isinstance(document, str) else json.dumps(document))
    headers = {"authorization": Secret(f"Bearer {CANARY}"), "x-key": Secret(CANARY)}
    return {"shop": OpenApiSettings(openapi=str(place / "shop.json"), base_url=url, headers=headers)}


async def _has(work: Work, name: str) -> bool:
    return name in [one["name"] for one in (await work.get("/v1/tools")).json["data"]]


class Leading:
    """A server that redirects every request, with a cookie."""

    def __init__(self, status: int, to: str) -> None:
        self.status, self.to = status, to

    async def __call__(self, asked: ReceivedRequest) -> ScriptedResponse:
        return ScriptedResponse(
            self.status, headers={"location": f"{self.to}/there", "set-cookie": f"session={CANARY}"}
        )


async def hello(asked: ReceivedRequest) -> ScriptedResponse:
    return ScriptedResponse(200, {"said": "hello"})


@DIALECTS
@pytest.mark.parametrize("status", [302, 307])
async def test_a_redirect_to_another_origin_takes_no_credential_and_no_cookie_along(
    tmp_path: Path, client: str, status: int
) -> None:
    """fault: T11"""
    async with serving(hello) as other, serving(Leading(status, other.url)) as web:
        setup = tools(http=shop(tmp_path, web.url), reach=NEAR)
        async with at_work(tools=setup) as work:
            await soon(lambda: _has(work, "shop_get_price"))
            script = work.play(*[[call("shop_get_price", "{}", number)] for number in (1, 2)], "Done.")
            assert output(client, await work.ask(client)).endswith("Done.")
            assert all("hello" in one for one in results(script.requests[2]))
        assert [asked.headers.get("x-key") for asked in web.asked] == [CANARY, CANARY]
        assert len(other.asked) == 2
        assert all(CANARY not in str(asked) for asked in other.asked)
        assert all("cookie" not in asked.headers for asked in (*web.asked, *other.asked))


@DIALECTS
@pytest.mark.parametrize("status", [307, 308])
async def test_an_order_that_is_redirected_to_another_origin_is_not_placed_there(
    tmp_path: Path, client: str, status: int
) -> None:
    """fault: T11"""
    async with serving(hello) as other, serving(Leading(status, other.url)) as web:
        setup = tools(http=shop(tmp_path, web.url), reach=NEAR)
        async with at_work(tools=setup) as work:
            await soon(lambda: _has(work, "shop_order"))
            script = work.play([call("shop_order", '{"body":{"n":1}}')], "Not placed.")
            assert output(client, await work.ask(client)) == "Not placed."
            assert "not repeated" in results(script.requests[1])[0]
        assert [asked.method for asked in web.asked] == ["POST"]
        assert other.asked == []


class Names:
    """The resolver of this machine, as an attacker has it: each question gets the next answer, the last one for ever."""

    def __init__(self, *answers: Iterable[str]) -> None:
        self.asked = 0
        self._answers = list(answers)
        self._true = socket.getaddrinfo

    def __call__(self, host: str, port: int, **_: Any) -> list[Any]:
        if not host.endswith(".example"):
            return self._true(host, port, **_)
        addresses = list(self._answers[min(self.asked, len(self._answers) - 1)])
        self.asked += 1
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]


@DIALECTS
async def test_a_name_is_looked_up_once_and_only_the_address_that_was_checked_is_opened(
    client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fault: S4: the second answer of the name leads inside."""
    names = Names(["127.0.0.1"], ["127.0.0.2"])
    async with serving(hello) as web:
        monkeypatch.setattr(socket, "getaddrinfo", names)
        async with at_work(tools=tools(reach=NEAR)) as work:
            url = web.url.replace("127.0.0.1", "flip.example")
            script = work.play(*[[call("fetch", json.dumps({"url": url}), number)] for number in (1, 2)], "Done.")
            assert output(client, await work.ask(client)).endswith("Done.")
            first, second = results(script.requests[2])
            assert "hello" in first
            assert "hello" not in second
        assert [asked.headers["host"] for asked in web.asked] == [url.removeprefix("http://")]
        assert names.asked == 2


@pytest.mark.parametrize("mixed", [["127.0.0.1", "10.0.0.1"], ["127.0.0.1", "::1"], ["fe80::1%eth0"], ["nonsense"]])
async def test_one_address_that_is_not_open_spoils_a_name(mixed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """fault: S4"""
    async with serving(hello) as web:
        monkeypatch.setattr(socket, "getaddrinfo", Names(mixed))
        async with at_work(tools=tools(reach=NEAR)) as work:
            url = web.url.replace("127.0.0.1", "mixed.example")
            script = work.play([call("fetch", json.dumps({"url": url}))], "Done.")
            assert output("openai_chat", await work.ask()) == "Done."
            assert "hello" not in results(script.requests[1])[0]
        assert web.asked == []


async def test_a_run_lets_out_so_many_requests_and_each_is_in_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    """fault: S6: a page is fetched over a thousand times; another session has an allowance of its own."""
    async with serving(hello) as web:
        limits = RunLimitSettings(calls=2000, parallel=32, repeats=0)
        async with at_work(tools=tools(reach=NEAR, limits=limits), log=quiet()) as work:
            many = [call("fetch", json.dumps({"url": f"{web.url}/{number}"}), number) for number in range(1010)]
            script = work.play(many, "Done.", [call("fetch", json.dumps({"url": web.url}))], "Done.")
            assert output("openai_chat", await work.ask()) == "Done."
            refused = [one for one in results(script.requests[1]) if "no more requests for now" in one]
            assert (len(refused), len(web.asked)) == (10, 1000)
            other = {"tool_execution": "auto", "use_server_tools": True}
            assert (await work.post("/v1/chat/completions", _plain(other))).status == 200
            assert "no more requests" in results(script.requests[3])[0]  # the same caller, the same allowance
    lines = [line for line in capfd.readouterr().err.splitlines() if '"egress"' in line]
    assert len(lines) == 1000
    assert {key for key in ("host", "port", "status", "sent", "account") if key in json.loads(lines[0])} == {
        "host",
        "port",
        "status",
        "sent",
        "account",
    }


async def test_callers_with_equal_session_names_share_no_allowance(capfd: pytest.CaptureFixture[str]) -> None:
    keys = tuple(KeySettings(name=name, key=Secret(f"{name}-key"), scopes=("chat", "tools")) for name in ("ann", "bob"))
    async with serving(hello) as web, at_work(tools=tools(reach=NEAR), keys=keys, log=quiet()) as work:
        for name in ("ann", "bob"):
            work.play([call("fetch", json.dumps({"url": web.url}))], "Done.")
            headers = (f"authorization: Bearer {name}-key", "x-toolgate-session: ann")
            body = _plain({"tool_execution": "auto", "use_server_tools": True})
            assert (await ask(work.url, "/v1/chat/completions", body, *headers)).status == 200
        long = await ask(work.url, "/v1/chat/completions", body, headers[0], f"x-toolgate-session: {'x' * 257}")
        assert (long.status, long.json["error"]["param"]) == (400, "x-toolgate-session")  # names are held in memory
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if '"egress"' in line]
    assert [line["account"] for line in lines] == ["ann/ann", "bob/ann"]


def _plain(more: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": "openai_chat", "messages": [{"role": "user", "content": "Again."}], **more}


def _operation(parameter: Any) -> dict[str, Any]:
    get = {"operationId": "a", "parameters": [parameter], "responses": {}}
    return {**SHOP, "paths": {"/a": {"get": get}}}


BOMBS: Mapping[str, str] = {
    "code in YAML": "openapi: !!python/object/apply:os.system ['touch {marker}']",
    "a new object": "openapi: !!python/object/new:subprocess.Popen [['touch', '{marker}']]",
    "laughs": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join([f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(9)]),
    "an entity": '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><x>&e;</x>',
    "depth": "[" * 100_000,
    "references in circles": json.dumps(_operation({"$ref": "#/paths/~1a/get/parameters/0"})),
    "a foreign reference": json.dumps(_operation({"$ref": "file:///etc/passwd#/x"})),
}


@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_malicious_document_brings_no_tools_runs_nothing_and_delays_no_other_request(
    tmp_path: Path, bomb: str
) -> None:
    """fault: J4"""
    marker = tmp_path / "marker"
    document = BOMBS[bomb].replace("{marker}", str(marker))
    async with serving(hello) as web:
        async with at_work(tools=tools(http=shop(tmp_path, web.url, document), reach=NEAR)) as work:
            troubles = await soon(lambda: _troubles(work))
            assert "root:" not in json.dumps(troubles)
            script = work.play([call("calculate", '{"expression":"1+1"}')], "Two.")
            assert output("openai_chat", await work.ask()) == "Two."
            assert not [one for one in script.requests[0].tools if one.name.startswith("shop")]
        assert web.asked == []
    assert not marker.exists()


async def _troubles(work: Work) -> Any:
    return (await work.get("/v1/tools")).json["troubles"]


class SilentNames(Names):
    """A resolver that does not answer for `.slow.example` until `go` is set."""

    def __init__(self) -> None:
        super().__init__(["127.0.0.1"])
        self.go = threading.Event()
        self.waiting = 0

    def __call__(self, host: str, port: int, **options: Any) -> list[Any]:
        if host.endswith(".slow.example"):
            self.waiting += 1
            self.go.wait(60)
        return super().__call__(host, port, **options)


async def test_names_that_are_never_resolved_delay_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """One caller fetches pages whose name server is silent; the tools of another work as ever, lookups included."""
    keys = tuple(KeySettings(name=name, key=Secret(f"{name}-key"), scopes=("tools",)) for name in ("flood", "other"))

    async def run(work: Work, who: str, name: str, **arguments: str) -> Any:
        params = {"name": name, "arguments": arguments}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        return (await work.post("/mcp", message, f"{who}-key")).json["result"]

    names = SilentNames()
    monkeypatch.setattr(socket, "getaddrinfo", names)
    async with serving(hello) as web, at_work(tools=tools(reach=NEAR), keys=keys) as work:
        urls = [web.url.replace("127.0.0.1", f"{number}.slow.example") for number in range(50)]
        flood = [asyncio.ensure_future(run(work, "flood", "fetch", url=url)) for url in urls]
        try:
            await soon(lambda: names.waiting >= 2)
            async with asyncio.timeout(30):
                assert "42" in str(await run(work, "other", "calculator", expression="6 * 7"))
                page = web.url.replace("127.0.0.1", "good.example")
                assert "hello" in str(await run(work, "other", "fetch", url=page))
            assert names.waiting <= SHARE
        finally:
            names.go.set()
            await asyncio.gather(*flood)
