"""A field that the server looks into, and that has another type, is refused by name, whichever upstream would answer."""

import json
from typing import Any

import pytest

from tests.api.http_client import ask, body
from tests.stage import UPSTREAMS, Stage

WRONG: tuple[Any, ...] = ("x", 1, True, ["a"], [{}])


def shown(answer: bytes) -> tuple[str | None, str | None]:
    """The field that an error of OpenAI's APIs names, and its code."""
    error = json.loads(answer)["error"]
    return error["param"], error["code"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("model", UPSTREAMS)
async def test_stream_options_of_a_chat_request_must_be_an_object(stage: Stage, model: str, stream: bool) -> None:
    for wrong in WRONG:
        received = await ask(
            stage.url, "/v1/chat/completions", body("openai_chat", model, stream, stream_options=wrong)
        )
        assert (received.status, shown(received.body)) == (400, ("stream_options", "invalid_type")), wrong
    for right in (None, {}, {"include_usage": True}):
        stage.play("Hello.")
        received = await ask(
            stage.url, "/v1/chat/completions", body("openai_chat", model, stream, stream_options=right)
        )
        assert received.status == 200, right


@pytest.mark.parametrize("model", UPSTREAMS)
async def test_the_namespace_of_a_call_must_be_a_string(stage: Stage, model: str) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "Done."}
    for wrong in ({}, {"a": 1}, *WRONG[1:]):
        request = {**body("openai_responses", model, False), "input": [{**call, "namespace": wrong}, result]}
        received = await ask(stage.url, "/v1/responses", request)
        assert (received.status, shown(received.body)) == (400, ("input[0].namespace", "invalid_type")), wrong
    for right in (None, "mail"):
        stage.play("Hello.")
        request = {**body("openai_responses", model, False), "input": [{**call, "namespace": right}, result]}
        assert (await ask(stage.url, "/v1/responses", request)).status == 200, right


@pytest.mark.parametrize("model", UPSTREAMS)
@pytest.mark.parametrize("kind", ["image", "document"])
async def test_the_media_type_of_a_source_must_be_a_string(stage: Stage, kind: str, model: str) -> None:
    for wrong in ({"a": 1}, *WRONG[1:]):
        block = {"type": kind, "source": {"type": "base64", "data": "AAAA", "media_type": wrong}}
        request = {**body("anthropic", model, False), "messages": [{"role": "user", "content": [block]}]}
        received = await ask(stage.url, "/v1/messages", request)
        assert received.status == 400, wrong
        assert "messages[0].content[0].source.media_type must be a string" in received.json["error"]["message"]


async def test_a_number_of_rounds_with_thousands_of_digits_is_refused(stage: Stage) -> None:
    """It was an error 500: Python refuses to convert more than 4300 digits."""
    request, digits = body("openai_chat", UPSTREAMS[0], False), "0" * 5000
    in_the_body = await ask(stage.url, "/v1/chat/completions", {**request, "max_tool_rounds": digits})
    in_a_header = await ask(stage.url, "/v1/chat/completions", request, f"x-toolgate-max-tool-rounds: {digits}")
    for received in (in_the_body, in_a_header):
        assert (received.status, shown(received.body)[0]) == (400, "max_tool_rounds")
