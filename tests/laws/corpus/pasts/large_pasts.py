"""Requests of a hundred bytes that continue, name or list megabytes."""

from typing import Any

from tests.laws.gateway import Gateway

LONG = "x" * 5_000_000
VARIANTS = ("chain", "many turns", "many items", "conversation", "references", "too large")


async def respond(gateway: Gateway, input: Any, **more: Any) -> Any:
    response = await gateway.post("/v1/responses", {"model": "openai_chat", "input": input, **more})
    return response.json


async def chain(gateway: Gateway, text: str, turns: int) -> str | None:
    last: str | None = None
    for _ in range(turns):
        last = (await respond(gateway, text, previous_response_id=last))["id"]
    return last


async def conversation(gateway: Gateway) -> str:
    made = (await gateway.post("/v1/conversations", {})).json["id"]
    items = [{"type": "message", "role": "user", "content": "y" * 200_000} for _ in range(20)]
    for _ in range(3):
        assert (await gateway.post(f"/v1/conversations/{made}/items", {"items": items})).status == 200
    return str(made)


async def play(gateway: Gateway, what: str) -> None:
    match what:
        case "chain":
            last = await chain(gateway, LONG, 2)
            answer = await respond(gateway, "Hi", previous_response_id=last)
            assert answer["status"] == "completed"
            assert (await gateway.get(f"/v1/responses/{answer['id']}/input_items")).status == 200
        case "many turns":
            last = await chain(gateway, "x", 30)
            assert (await respond(gateway, "Hi", previous_response_id=last))["status"] == "completed"
        case "many items":
            items = [{"role": "user", "content": f"{number}"} for number in range(9_000)]
            first = (await respond(gateway, items))["id"]
            answer = await respond(gateway, "Hi", previous_response_id=first)
            assert answer["status"] == "completed"
            assert (await gateway.get(f"/v1/responses/{answer['id']}/input_items")).status == 200
        case "conversation":
            made = await conversation(gateway)
            assert (await respond(gateway, "Hi", conversation=made))["status"] == "completed"
            assert (await gateway.get(f"/v1/conversations/{made}/items?limit=100")).status == 200
        case "references":
            made = await conversation(gateway)
            [one] = (await gateway.get(f"/v1/conversations/{made}/items?limit=1")).json["data"]
            named = [{"type": "item_reference", "id": one["id"]}]
            assert (await respond(gateway, named * 40))["status"] == "completed"
            assert (await respond(gateway, named * 1000))["error"]["code"] == "context_length_exceeded"
        case _:
            last = await chain(gateway, LONG, 4)
            answer = await respond(gateway, "Hi", previous_response_id=last)
            assert answer["error"]["code"] == "context_length_exceeded"
