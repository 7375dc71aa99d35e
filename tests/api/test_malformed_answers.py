"""Fields of an upstream's answer that are kept for a later reader, and have another type, spoil no answer and no run."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.api.http_client import CLIENTS, PATHS, HttpResponse, ask, body
from tests.laws.test_wrong_types import config_of
from tests.upstreams.transport.faulty import Faulty, Peer, head, whole
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.conversation.message import ReasoningSignature
from toolgate.conversation.reasoning_envelope import wrap_signature
from toolgate.http.listener import listening

WRONG: tuple[Any, ...] = (True, -1, 1.5, "x", {"a": 1}, [1], [None], ["x"], [[]], [{}, 1])
CALCULATE: dict[str, Any] = {"tool_execution": "auto", "use_server_tools": ["calculator"]}
ARGUMENTS = '{"expression":"1+1"}'


class AnsweringUpstream:
    """Sends one answer after the other, whole or as a stream of one event, and keeps what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.received: list[Any] = []
        self._answers: list[dict[str, Any]] = []

    def play(self, *answers: dict[str, Any]) -> None:
        """Send these answers next."""
        self._answers, self.received = list(answers), []

    async def serve(self, peer: Peer) -> None:
        """Answer the requests of one connection."""
        while (request := await peer.request()) is not None:
            self.received.append(json.loads(request.body))
            answer = self._answers.pop(0)
            if self.received[-1].get("stream") and "output" in answer:
                event = json.dumps({"type": "response.completed", "response": answer}).encode()
                stream = b"event: response.completed\ndata: " + event + b"\n\n"
                await peer.send(head("content-type: text/event-stream", "connection: close") + stream)
                return
            await peer.send(whole(json.dumps(answer).encode(), "content-type: application/json"))


@asynccontextmanager
async def answering_upstream() -> AsyncGenerator[AnsweringUpstream]:
    upstream = AnsweringUpstream()
    async with Faulty(upstream.serve) as server, listening(Toolgate(config_of(server.port))) as url:
        upstream.url = url
        yield upstream


async def answered(upstream: AnsweringUpstream, client: str, request: dict[str, Any], case: object) -> HttpResponse:
    """The answer, which is complete and has the upstream's text."""
    received = await ask(upstream.url, PATHS[client], request, "authorization: Bearer a-key")
    assert received.status == 200, (case, received.body)
    assert b"internal error" not in received.body, (case, received.body)
    assert b"Hello." in received.body, (case, received.body)
    return received


def response(*output: dict[str, Any]) -> dict[str, Any]:
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    return {"id": "r", "object": "response", "model": "m", "status": "completed", "output": [*output], "usage": usage}


def message(**fields: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": "Hello.", "annotations": [], **fields}]
    return {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}


def completion(reason: str, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hello.", **fields}, "finish_reason": reason}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


CALL = {"id": "c1", "type": "function", "function": {"name": "calculator", "arguments": ARGUMENTS}}
FUNCTION_CALL = {"type": "function_call", "id": "f", "call_id": "c1", "name": "calculator", "arguments": ARGUMENTS}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("client", CLIENTS)
async def test_malformed_annotations_spoil_no_answer(client: str, stream: bool) -> None:
    async with answering_upstream() as upstream:
        for wrong in WRONG:
            upstream.play(response(message(annotations=wrong)))
            await answered(upstream, client, body(client, "openai_responses", stream), wrong)
        if client == "openai_chat" and not stream:
            upstream.play(response(message(annotations=[1])))
            received = await answered(upstream, client, body(client, "openai_responses", stream), [1])
            assert "annotations of the answer's text" in received.headers["x-toolgate-warning"]


async def test_an_answer_that_is_nested_as_deeply_as_it_may_be_is_relayed_and_stored() -> None:
    deep: list[Any] = []
    for _ in range(507):  # with this list and the four levels around it: 512
        deep = [deep]
    async with answering_upstream() as upstream:
        upstream.play(completion("stop", x=deep))
        request = body("openai_chat", "openai_chat", False, store=True)
        sent = await answered(upstream, "openai_chat", request, "deep")
        async with httpx.AsyncClient(base_url=upstream.url, headers={"authorization": "Bearer a-key"}) as caller:
            stored = await caller.get(f"/v1/chat/completions/{sent.json['id']}")
        assert stored.status_code == 200, stored.text


@pytest.mark.parametrize("client", CLIENTS)
async def test_encrypted_reasoning_that_is_no_text_spoils_no_answer(client: str) -> None:
    async with answering_upstream() as upstream:
        for wrong in WRONG:
            thought = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": wrong}
            upstream.play(response(thought, {**FUNCTION_CALL}), response(message()))
            await answered(upstream, client, body(client, "openai_responses", False, **CALCULATE), wrong)


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_malformed_namespace_of_a_call_ends_no_run(client: str) -> None:
    async with answering_upstream() as upstream:
        for wrong in WRONG:
            upstream.play(response({**FUNCTION_CALL, "namespace": wrong}), response(message()))
            await answered(upstream, client, body(client, "openai_responses", False, **CALCULATE), wrong)
            assert len(upstream.received) == 2


@pytest.mark.parametrize("client", CLIENTS)
async def test_malformed_reasoning_details_end_no_run(client: str) -> None:
    async with answering_upstream() as upstream:
        for wrong in WRONG:
            upstream.play(
                completion("tool_calls", reasoning_content="Hm.", reasoning_details=wrong, tool_calls=[CALL]),
                completion("stop"),
            )
            await answered(upstream, client, body(client, "openai_chat", False, **CALCULATE), wrong)
            (past,) = [one for one in upstream.received[1]["messages"] if one["role"] == "assistant"]
            assert past.get("reasoning_details", [{}]) == [{}], wrong


async def test_reasoning_details_are_sent_back_as_they_came() -> None:
    details = [{"type": "reasoning.text", "text": "Hm.", "signature": "s"}]
    async with answering_upstream() as upstream:
        upstream.play(completion("tool_calls", reasoning_details=details, tool_calls=[CALL]), completion("stop"))
        await answered(upstream, "openai_chat", body("openai_chat", "openai_chat", False, **CALCULATE), details)
        (past,) = [one for one in upstream.received[1]["messages"] if one["role"] == "assistant"]
        assert past["reasoning_details"] == details


@pytest.mark.parametrize("name", ["field", "next_call", "reasoning_details", "encrypted_content", "signature", "data"])
@pytest.mark.parametrize("model", ["openai_chat", "openai_responses", "anthropic"])
async def test_a_forged_envelope_of_reasoning_changes_no_other_field(model: str, name: str) -> None:
    plain = {
        "openai_chat": completion("stop"),
        "openai_responses": response(message()),
        "anthropic": {
            "id": "a",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": "Hello."}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 1, "output_tokens": 1},
        },
    }
    async with answering_upstream() as upstream:
        for forged in (*WRONG, "role", "content", "tool_calls"):
            envelope = wrap_signature(ReasoningSignature(model, {name: forged}))
            past = [{"type": "thinking", "thinking": "Hm.", "signature": envelope}, {"type": "text", "text": "Yes."}]
            call = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
            result = {"type": "tool_result", "tool_use_id": "t1", "content": "Done."}
            request = body("anthropic", model, False)
            request["messages"] += [
                {"role": "assistant", "content": [*past, call]},
                {"role": "user", "content": [result]},
            ]
            upstream.play(plain[model])
            await answered(upstream, "anthropic", request, forged)
            if model == "openai_chat":
                (sent,) = [one for one in upstream.received[0]["messages"] if one["role"] == "assistant"]
                assert sent["content"] == "Yes.", forged
                assert [one["id"] for one in sent["tool_calls"]] == ["t1"], forged
