"""What clients do while the server dies: each does one thing, goes on until it is done, and knows what was acknowledged."""

import asyncio
import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from tests.chaos.oracle import Oracle
from tests.chaos.world import Violation, World

AUTO = {"tool_execution": "auto", "use_server_tools": True}
ENDINGS = ("did", "outcome-is-unknown")
"""What may come of a call: it ran, or nobody knows whether it did."""
OVER = ("completed", "failed", "incomplete", "cancelled")


class Session:
    """One client with a task of its own."""

    rounds: Sequence[Sequence[str]] = ()
    durable = True

    def __init__(self, world: World, oracle: Oracle, id: str) -> None:
        self.world = world
        self.oracle = oracle
        self.id = id

    def __str__(self) -> str:
        known = {name: value for name, value in vars(self).items() if name not in ("world", "oracle")}
        return str(known)[:1000]

    @abstractmethod
    async def run(self) -> None:
        """Do it, through all crashes."""

    async def verify(self) -> list[Violation]:
        """What of that which was acknowledged is not so."""
        return self.effects()

    def plan(self, part: str = "", rounds: Sequence[Sequence[str]] | None = None) -> str:
        """What the model is told to do."""
        return json.dumps({"id": self.id + part, "rounds": list(self.rounds if rounds is None else rounds)})

    def effects(self) -> list[Violation]:
        """Effects that happened more than once."""
        names = [f"{self.id}/{n}/{at}" for n, row in enumerate(self.rounds) for at in range(len(row))]
        return [Violation("twice", name) for name in names if self.oracle.effects(name) > 1]

    def received(self, text: str) -> list[Violation]:
        """What is wrong with the model's last words: each call must have run, or be of unknown outcome."""
        endings = text.partition("results=")[2].split(",")
        wanted = sum(len(row) for row in self.rounds)
        good = len(endings) == wanted and all(ending in ENDINGS for ending in endings)
        return [] if good or not wanted else [Violation("wrong", f"{self.id} ended with {text!r}")]


class Talk(Session):
    """Adds to a conversation, and has an answer made in it."""

    async def run(self) -> None:
        self.expected: list[str] = []
        self.conversation = (await self.world.insist("POST", "/v1/conversations", {})).json()["id"]
        await self._add("first")
        await self._add("second")
        await self._answer()
        await self._add("third")

    async def _add(self, word: str) -> None:
        text = f"{self.id} {word}"
        items = [{"type": "message", "role": "user", "content": text}]
        while True:
            received = await self.world.ask("POST", f"/v1/conversations/{self.conversation}/items", {"items": items})
            if (received is not None and received.status_code == 200) or text in await self._texts():
                self.expected.append(text)
                return
            await asyncio.sleep(0.05)

    async def _answer(self) -> None:
        body = {"model": "m", "input": self.plan(), "conversation": self.conversation, "store": True}
        while True:
            received = await self.world.ask("POST", "/v1/responses", body)
            texts = await self._texts()
            if (received is not None and received.status_code == 200) or self.plan() in texts:
                self.expected += [self.plan(), f"{self.id} users=3 results="]
                return
            await asyncio.sleep(0.05)

    async def _texts(self) -> list[str]:
        path = f"/v1/conversations/{self.conversation}/items?order=asc&limit=100"
        items = (await self.world.insist("GET", path)).json()["data"]
        return ["".join([part["text"] for part in item["content"]]) for item in items if item["type"] == "message"]

    async def verify(self) -> list[Violation]:
        return compared(self.id, self.expected, await self._texts())


class Chain(Session):
    """Responses that each go on from the one before."""

    async def run(self) -> None:
        self.kept: list[tuple[str, Any]] = []
        for number in range(1, 4):
            body = {"model": "m", "input": self.plan(f"-{number}"), "store": True}
            previous = {"previous_response_id": self.kept[-1][0]} if self.kept else {}
            received = (await self.world.insist("POST", "/v1/responses", {**body, **previous})).json()
            self.kept.append((received["id"], received["output"]))

    async def verify(self) -> list[Violation]:
        wrong: list[Violation] = []
        for number, (id, output) in enumerate(self.kept, 1):
            received = await self.world.insist("GET", f"/v1/responses/{id}")
            if received.status_code != 200 or received.json()["output"] != output:
                wrong.append(Violation("lost", f"{self.id}: response {number} is not as it was told"))
            elif f"users={number} " not in output[-1]["content"][0]["text"]:
                wrong.append(Violation("lost", f"{self.id}: the model saw another past than {number} turns"))
        return wrong


class Once(Session):
    """A request with a key that is sent until it is answered, and then once more."""

    rounds = (("unsafe",), ("idempotent", "read"))

    async def run(self) -> None:
        messages = [{"role": "user", "content": self.plan()}]
        self.body = {"model": "m", "messages": messages, **AUTO}
        received = await self.world.insist("POST", "/v1/chat/completions", self.body, **{"idempotency-key": self.id})
        self.answer = received.content

    async def verify(self) -> list[Violation]:
        again = await self.world.insist("POST", "/v1/chat/completions", self.body, **{"idempotency-key": self.id})
        wrong = [] if again.content == self.answer else [Violation("doubled", f"{self.id} was carried out again")]
        text = json.loads(self.answer)["choices"][0]["message"]["content"]
        return [*wrong, *self.effects(), *self.received(text)]


class Repeated(Session):
    """A chat with tools that is sent again until its answer is whole; the first answer that is whole is the end."""

    rounds = (("unsafe",), ("idempotent", "read"))

    async def run(self) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": self.plan()}], **AUTO, "stream": True}
        self.text = ""
        while "results=" not in self.text:
            pieces, finished = [], False
            async for event in self.world.events("POST", "/v1/chat/completions", body):
                for choice in event.get("choices", ()):
                    pieces.append(choice["delta"].get("content") or "")
                    finished = finished or choice.get("finish_reason") == "stop"
            self.text = "".join(pieces) if finished else ""
            await asyncio.sleep(0.02)

    async def verify(self) -> list[Violation]:
        return [*self.effects(), *self.received(self.text)]


class Behind(Session):
    """A response in the background, followed by its events from where the last connection broke."""

    rounds = (("unsafe",), ("idempotent", "read"))

    async def run(self) -> None:
        person = asyncio.create_task(self._decline())
        try:
            await self._follow()
        finally:
            person.cancel()
            await asyncio.wait({person})

    async def _decline(self) -> None:
        """A person who will not have a call run again of which nobody knows whether it did."""
        while True:
            waiting = (await self.world.insist("GET", "/v1/approvals?state=pending")).json()["data"]
            for one in [one for one in waiting if f"{self.id}/" in one["arguments"]]:
                await self.world.ask("POST", f"/v1/approvals/{one['id']}", {"decision": "deny"})
            await asyncio.sleep(0.1)

    async def _follow(self) -> None:
        body = {"model": "m", "background": True, "stream": True, "store": True, **AUTO}
        self.response, self.last = "", ""
        while not self.response:  # one whose id was never heard may run all the same: the next is another
            self.id, self.numbers = f"{self.id}+", list[int]()
            await self._hear("POST", "/v1/responses", {**body, "input": self.plan()})
        while self.last not in OVER:
            after = self.numbers[-1] if self.numbers else -1
            await self._hear("GET", f"/v1/responses/{self.response}?stream=true&starting_after={after}")
            if self.last not in OVER and not await self._is_kept():
                return

    async def _hear(self, method: str, path: str, body: Any = None) -> None:
        async for event in self.world.events(method, path, body):
            self.response = self.response or event.get("response", {}).get("id", "")
            self.numbers.append(event["sequence_number"])
            kind = event["type"].removeprefix("response.")
            self.last = kind if kind in OVER else self.last
        await asyncio.sleep(0.02)

    async def _is_kept(self) -> bool:
        """Whether a response whose first event was heard is there; it was acknowledged, so it must be."""
        return (await self.world.insist("GET", f"/v1/responses/{self.response}")).status_code == 200

    async def verify(self) -> list[Violation]:
        received = await self.world.insist("GET", f"/v1/responses/{self.response}")
        if received.status_code != 200:
            return [Violation("lost", f"{self.id}: the response {self.response} is gone")]
        wrong = compared(f"{self.id} events", list(range(len(self.numbers))), self.numbers)
        status = received.json()["status"]
        if status not in OVER or (self.durable and status != "completed"):
            wrong.append(Violation("stuck", f"{self.id}: the response is {status}"))
        elif status == "completed":
            wrong += self.received(received.json()["output"][-1]["content"][0]["text"])
        return [*wrong, *self.effects()]


class Asked(Session):
    """A chat with a call that a person must approve, and the person."""

    rounds = (("asked",),)

    async def run(self) -> None:
        self.approval: dict[str, Any] = {}
        async with asyncio.TaskGroup() as both:
            both.create_task(self._approve())
            both.create_task(self._chat())

    async def _chat(self) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": self.plan()}], **AUTO}
        self.text = ""
        while "results=" not in self.text:
            received = await self.world.insist("POST", "/v1/chat/completions", body)
            self.text = received.json()["choices"][0]["message"]["content"]

    async def _approve(self) -> None:
        while not self.approval:
            waiting = (await self.world.insist("GET", "/v1/approvals?state=pending")).json()["data"]
            mine = [one for one in waiting if f"{self.id}/" in one["arguments"]]
            self.approval = mine[0] if mine else {}
            await asyncio.sleep(0.02)
        path = f"/v1/approvals/{self.approval['id']}"
        while True:
            received = await self.world.ask("POST", path, {"decision": "approve"})
            if received is not None:
                return

    async def verify(self) -> list[Violation]:
        path = f"/v1/approvals/{self.approval['id']}"
        found = (await self.world.insist("GET", path)).json()
        wrong: list[Violation] = []
        if found.get("digest") != self.approval["digest"] or found["state"] in ("pending", "denied"):
            wrong.append(Violation("lost", f"{self.id}: the approval is {found.get('state')}"))
        again = await self.world.ask("POST", path, {"decision": "deny"})
        if again is not None and again.status_code != 409:
            wrong.append(Violation("doubled", f"{self.id}: a second decision was taken with {again.status_code}"))
        return [*wrong, *self.effects(), *self.received(self.text)]


KINDS: tuple[type[Session], ...] = (Talk, Chain, Once, Repeated, Behind, Asked)


def compared(whose: str, expected: Iterable[Any], found: Sequence[Any]) -> list[Violation]:
    """What is lost, doubled, or out of order."""
    wanted, there = Counter(expected), Counter(found)
    wrong = [Violation("lost", f"{whose}: {one!r}") for one in wanted - there]
    wrong += [Violation("doubled", f"{whose}: {one!r}") for one in there - wanted]
    if not wrong and list(wanted.elements()) != list(found):
        wrong.append(Violation("doubled", f"{whose}: the order is another"))
    return wrong
