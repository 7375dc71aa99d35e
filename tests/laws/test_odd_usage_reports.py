"""The ledger law where upstreams report their usage in odd ways: twice, lower at the end, in parts, beside an error.

Each report is answered to a client of the upstream's own API and to one of another, streamed and whole, through one gateway.
"""

import asyncio
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.laws.metered_upstream import INPUT, OUTPUT, Case
from tests.laws.test_ledger import AT_ONCE, COUNTED_AT_MOST, config_of, play, spent_of, used_of
from tests.upstreams.transport.faulty import Faulty, Peer, chunked, whole
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.http.listener import listening

CHAT = {"prompt_tokens": INPUT, "completion_tokens": OUTPUT}
OTHER = {"input_tokens": INPUT, "output_tokens": OUTPUT}
LINE = {"prompt_eval_count": INPUT, "eval_count": OUTPUT}
ERROR = {"error": {"message": "broken"}}


def events(*values: dict[str, Any], done: bool = True) -> bytes:
    frames = [f"data: {json.dumps(value)}\n\n".encode() for value in values]
    return chunked(*frames, *([b"data: [DONE]\n\n"] if done else []))


def lines(*values: dict[str, Any]) -> bytes:
    return chunked(*[json.dumps(value).encode() + b"\n" for value in values])


def text(**fields: Any) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "delta": {"content": "Well."}, "finish_reason": None}], **fields}


def stop(**fields: Any) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop", **fields}]}


def response(kind: str, status: str, **fields: Any) -> dict[str, Any]:
    item = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "Well."}]}
    output = [] if status == "in_progress" else [item]
    return {"type": f"response.{kind}", "response": {"id": "r", "status": status, "output": output, **fields}}


def messages(start: Any, end: Any) -> bytes:
    return events(
        {"type": "message_start", "message": {"id": "m", "type": "message", "content": [], "usage": start}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Well."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": end},
        {"type": "message_stop"},
        done=False,
    )


def failed(**usage: Any) -> bytes:
    return whole(json.dumps({**ERROR, **usage}).encode(), status="500 Oops")


ZEROS = {"prompt_tokens": 0, "completion_tokens": 0}
REPORTS: dict[str, tuple[str, bytes]] = {
    "zeros at the end of a chat": ("openai_chat", events(text(usage=CHAT), stop(), {"choices": [], "usage": ZEROS})),
    "one count at the end of a chat": (
        "openai_chat",
        events(text(usage=CHAT), stop(), {"choices": [], "usage": {"prompt_tokens": INPUT}}),
    ),
    "in the choice of a chat, as Moonshot does": ("openai_chat", events(text(), stop(usage=CHAT))),
    "beside an error in a chat": ("openai_chat", events(text(), {**ERROR, "usage": CHAT}, done=False)),
    "in a chat that is cut off": ("openai_chat", events(text(usage=CHAT), done=False)),
    "beside an error of a chat": ("openai_chat", failed(usage=CHAT)),
    "at the start of a response alone": (
        "openai_responses",
        events(response("created", "in_progress", usage=OTHER), response("completed", "completed", usage=None)),
    ),
    "zeros at the end of a response": (
        "openai_responses",
        events(
            response("created", "in_progress", usage=OTHER),
            response("completed", "completed", usage={"input_tokens": 0, "output_tokens": 0}),
        ),
    ),
    "beside an error of a response": ("openai_responses", failed(usage=OTHER)),
    "lower at the end of a message": ("anthropic", messages(OTHER, {"input_tokens": 3, "output_tokens": 5})),
    "beside an error of a message": ("anthropic", failed(usage=OTHER)),
    "beside an error in lines": (
        "ollama",
        lines({"message": {"role": "assistant", "content": "Well."}, "done": False}, {"error": "broken", **LINE}),
    ),
    "beside an error of Ollama": ("ollama", failed(**LINE)),
}


async def test_no_key_is_charged_less_however_usage_is_reported(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'toolgate.db'}"
    rows = list(product(REPORTS, (True, False), (True, False)))
    cases = []
    for number, (report, own, stream) in enumerate(rows):
        upstream, _ = REPORTS[report]
        client = upstream if own else "anthropic" if upstream != "anthropic" else "openai_chat"
        cases.append(Case(f"case-{number}", client, upstream, stream, False, "late", "complete", None))

    async def answer(peer: Peer) -> None:
        while (request := await peer.request()) is not None:
            number = int(request.body.partition(b"case-")[2].partition(b":")[0])
            cases[number].asked += 1
            await peer.send(REPORTS[rows[number][0]][1])

    async with Faulty(answer) as upstream_server:
        config = config_of(cases, upstream_server.port, storage)
        async with listening(Toolgate(config)) as url:
            room = asyncio.Semaphore(AT_ONCE)

            async def one(case: Case) -> None:
                async with room:
                    await play(url, case)

            await asyncio.gather(*[one(case) for case in cases])
    spent, wrong = await spent_of(storage), []
    for (report, *_), case in zip(rows, cases, strict=True):
        paid, reported = spent.get(case.name, 0.0), case.asked * (INPUT + OUTPUT)
        if not reported <= paid <= reported + case.asked * COUNTED_AT_MOST:
            wrong.append(f"{report}: {case.client}, stream={case.stream}: charged {paid}, reported {reported}")
    assert not wrong, "\n".join(wrong)
    assert await used_of(storage) == pytest.approx(spent)
