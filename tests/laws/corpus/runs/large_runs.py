"""Runs with many large results and a large input: shown, followed and forked."""

import json

from tests.laws.gateway import Gateway, call_answer, chat_answer, size

VARIANTS = ("many calls", "large results", "large input", "edited results")


async def play(gateway: Gateway, kind: str) -> None:
    calls, length = (120, 16_000) if kind in ("many calls", "edited results") else (8, size(250_000, 1_000_000))
    rounds = 1 if kind == "large input" else 4
    arguments = {"text": '\n"', "count": length // 2}
    gateway.play(*[call_answer("repeat", arguments, calls // 4) for _ in range(rounds)], chat_answer())
    words = "x" * 500
    input = [{"role": "user", "content": words} for _ in range(size(4_000, 9_000))] if kind == "large input" else "Go."
    body = {"model": "openai_chat", "input": input, "tool_execution": "auto", "use_server_tools": True}
    made = await gateway.post("/v1/responses", body)
    assert made.status == 200
    listed = await gateway.get("/v1/runs?limit=1")
    id = listed.json["data"][0]["id"]
    shown = await gateway.get(f"/v1/runs/{id}")
    assert shown.status == 200
    assert b"event: end" in (await gateway.get(f"/v1/runs/{id}?stream=true")).body
    gateway.play()
    fork: dict[str, object] = {"step": 1}
    if kind == "edited results":
        entries = [one for one in shown.json["timeline"] if one["type"] == "call" and one["step"] == 1]
        fork["results"] = {one["call"]: "y\n" * 50_000 for one in entries}
    forked = await gateway.post(f"/v1/runs/{id}/fork", json.dumps(fork).encode())
    assert forked.status == 201, forked.body
    assert b"event: end" in (await gateway.get(f"/v1/runs/{forked.json['id']}?stream=true")).body
