"""What the clients of a soak do: one coroutine for each kind of traffic, which raises `Unmeant` when something fails
that was not meant to."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import httpx
from websockets.asyncio.client import connect

from tests.soak.server import KEY

PATHS = {
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "ollama": "/api/chat",
}
ENDS = {
    "openai_chat": "data: [DONE]",
    "openai_responses": '"type":"response.completed"',
    "anthropic": '"type":"message_stop"',
    "ollama": '"done":true',
}
AUTO = {"tool_execution": "auto", "use_server_tools": True}
CALLS = {
    "python": 'call look {"at": "the sky"}',
    "command": 'call run_command {"command": ["echo", "hello"]}',
    "mcp": 'call pipe_send {"text": "hello ", "count": 100}',
}
SLOW = 'call run_command {"command": ["sleep", "1"]}'
FINAL = ("completed", "failed", "cancelled", "incomplete")


class Unmeant(Exception):
    """A request failed that was not meant to fail."""


class Clients:
    """Everybody who calls the server."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.random = random.Random(seed)  # so that a soak can be repeated
        headers = {"authorization": f"Bearer {KEY}"}
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=60.0)
        self._count = 0
        self.kinds: dict[str, Callable[[], Awaitable[None]]] = {
            **{f"stream {client}": partial(self._stream, client) for client in PATHS},
            **{f"whole {client}": partial(self._whole, client) for client in PATHS},
            **{f"tool {kind}": partial(self._tool, kind) for kind in CALLS},
            "leave stream": lambda: self._leave("Say something long."),
            **{f"leave {kind} tool": partial(self._leave, CALLS[kind]) for kind in CALLS},
            "leave slow tool": lambda: self._leave(SLOW),
            "approve": lambda: self._approval("approve"),
            "deny": lambda: self._approval("deny"),
            "leave approval": self._leave_approval,
            "background": self._background,
            "cancel": self._cancel,
            "websocket": lambda: self._websocket(leave=False),
            "leave websocket": lambda: self._websocket(leave=True),
            "bad request": self._bad,
        }

    async def aclose(self) -> None:
        """Close the connections that are kept."""
        await self._http.aclose()

    def _body(self, client: str, text: str, **more: Any) -> dict[str, Any]:
        upstream = self.random.choice(list(PATHS))
        if client == "openai_responses":
            return {"model": upstream, "input": text, "store": self.random.random() < 0.5, **more}
        body = {"model": upstream, "messages": [{"role": "user", "content": text}], **more}
        return {**body, "max_tokens": 1000} if client == "anthropic" else body

    async def _stream(self, client: str) -> None:
        text = ""
        async with self._http.stream("POST", PATHS[client], json=self._body(client, "Hi", stream=True)) as response:
            async for piece in response.aiter_text():
                text += piece
        _expect(response.status_code == 200 and ENDS[client] in text, f"{response.status_code} {text[-300:]}")

    async def _whole(self, client: str) -> None:
        response = await self._http.post(PATHS[client], json=self._body(client, "Hi", stream=False))
        _expect(
            response.status_code == 200 and "words of the model" in response.text,
            f"{response.status_code} {response.text[:300]}",
        )

    async def _tool(self, kind: str) -> None:
        client = self.random.choice(("openai_chat", "openai_responses", "anthropic"))
        body = self._body(client, CALLS[kind], stream=self.random.random() < 0.5, **AUTO)
        response = await self._http.post(PATHS[client], json=body)
        _expect(
            response.status_code == 200 and "model" in response.text, f"{response.status_code} {response.text[:300]}"
        )
        _expect("words" in response.text and '"type":"error"' not in response.text, response.text[-300:])

    async def _leave(self, text: str) -> None:
        client = self.random.choice(list(PATHS))
        patience = self.random.choice((0.0, 0.005, 0.02, 0.1, 0.3)) * self.random.random()
        body = self._body(client, text, stream=self.random.random() < 0.7, **AUTO)
        asking = asyncio.ensure_future(self._once(PATHS[client], body))
        await asyncio.wait({asking}, timeout=patience)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    async def _once(self, path: str, body: Any) -> httpx.Response:
        """Ask on a connection of its own, which is closed when the caller stops waiting."""
        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(base_url=self.url, headers=headers, timeout=60.0) as client:
            return await client.post(path, json=body)

    def _question(self) -> tuple[str, dict[str, Any]]:
        self._count += 1
        mark = f"mark-{self._count}-end"
        return mark, self._body("openai_chat", f'call change {{"what": "{mark}"}}', stream=True, **AUTO)

    async def _pending(self, mark: str) -> dict[str, Any]:
        for _ in range(600):
            listed = (await self._http.get("/v1/approvals?state=pending")).json()["data"]
            mine = [one for one in listed if mark in one["arguments"]]
            if mine:
                return dict(mine[0])
            await asyncio.sleep(0.05)
        raise Unmeant(f"nobody was asked about {mark}")

    async def _approval(self, decision: str) -> None:
        mark, body = self._question()
        asking = asyncio.ensure_future(self._once(PATHS["openai_chat"], body))
        try:
            question = await self._pending(mark)
            answered = await self._http.post(f"/v1/approvals/{question['id']}", json={"decision": decision})
            _expect(answered.status_code in (200, 409), f"{answered.status_code} {answered.text[:300]}")
            response = await asking
            _expect(response.status_code == 200 and "data: [DONE]" in response.text, response.text[-300:])
        finally:
            asking.cancel()

    async def _leave_approval(self) -> None:
        mark, body = self._question()
        asking = asyncio.ensure_future(self._once(PATHS["openai_chat"], body))
        await self._pending(mark)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    async def _background(self) -> None:
        body = self._body("openai_responses", CALLS["python"], background=True, stream=True, **AUTO, store=True)
        id, last = await self._events(f"{PATHS['openai_responses']}", body, self.random.randrange(1, 12))
        if id is None:
            return  # it was over before we left
        path = f"/v1/responses/{id}?stream=true&starting_after={last}"
        async with self._http.stream("GET", path) as response:
            text = "".join([piece async for piece in response.aiter_text()])
        _expect(
            response.status_code == 200 and '"type":"response.completed"' in text,
            f"{response.status_code} {text[-300:]}",
        )

    async def _events(self, path: str, body: Any, count: int) -> tuple[str | None, int]:
        """Read so many events of a response and leave; its id, or None if it ended before, and the last number."""
        id, last = "", 0
        async with self._http.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                raise Unmeant(f"{response.status_code} {(await response.aread())[:300]!r}")
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                id, last = event.get("response", {}).get("id", id), event["sequence_number"]
                if event["type"] == "response.completed":
                    return None, last
                if last >= count and id:
                    return id, last
        raise Unmeant(f"the stream of {id} broke off")

    async def _cancel(self) -> None:
        body = self._body("openai_responses", SLOW, background=True, **AUTO, store=True)
        made = await self._http.post(PATHS["openai_responses"], json=body)
        _expect(made.status_code == 200, f"{made.status_code} {made.text[:300]}")
        path = f"/v1/responses/{made.json()['id']}"
        await asyncio.sleep(self.random.random() * 0.3)
        cancelled = await self._http.post(f"{path}/cancel")
        _expect(cancelled.status_code == 200, f"{cancelled.status_code} {cancelled.text[:300]}")
        for _ in range(600):
            if (await self._http.get(path)).json()["status"] in FINAL:
                return
            await asyncio.sleep(0.05)
        raise Unmeant("a cancelled response never ended")

    async def _websocket(self, leave: bool) -> None:
        url = self.url.replace("http", "ws") + PATHS["openai_responses"]
        headers = {"authorization": f"Bearer {KEY}"}
        async with connect(url, additional_headers=headers, ping_interval=None, proxy=None) as socket:
            for _ in range(self.random.randrange(1, 4)):
                body = self._body("openai_responses", "Hi") | {"store": False}
                await socket.send(json.dumps({"type": "response.create", **body}))
                if leave:
                    await socket.recv()
                    return
                while (event := json.loads(await socket.recv()))["type"] != "response.completed":
                    _expect(event["type"] not in ("error", "response.failed"), str(event)[:300])

    async def _bad(self) -> None:
        bad: tuple[tuple[int, Callable[[], Awaitable[httpx.Response]]], ...] = (
            (400, lambda: self._http.post(PATHS["openai_chat"], content=b'{"model": ', headers=_JSON)),
            (
                404,
                lambda: self._http.post(PATHS["anthropic"], json=self._body("anthropic", "Hi") | {"model": "no"}),
            ),
            (405, lambda: self._http.delete("/v1/chat/completions")),
            (404, lambda: self._http.get("/v1/responses/resp_absent")),
            (401, lambda: self._http.get("/v1/models", headers={"authorization": "Bearer wrong"})),
            (400, lambda: self._http.post(PATHS["ollama"], json={"model": "ollama", "messages": 7})),
        )
        meant, response = self.random.choice(bad)
        answered = await response()
        _expect(answered.status_code == meant, f"{answered.status_code} in place of {meant}: {answered.text[:300]}")


_JSON = {"content-type": "application/json"}


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Unmeant(otherwise)
