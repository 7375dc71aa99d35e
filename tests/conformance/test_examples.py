"""Every documented example over every upstream: a status of 200 and an answer of the documented form."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.clients.obliging import oblige
from tests.conformance.examples import SOURCES, Example, NotOffered
from tests.stage import UPSTREAMS, Stage

DONE = "[DONE]"
CASES = [
    pytest.param(example, upstream, id=f"{source}-{upstream}-{example.name}")
    for source, found in SOURCES.items()
    for example in found.examples
    for upstream in UPSTREAMS
]
ABSENT = [
    pytest.param(path, one, id=f"{source}-{path}")
    for source, found in SOURCES.items()
    for path, one in found.not_offered.items()
]


@pytest.fixture
def http(whole_stage: Stage) -> Iterator[httpx.Client]:
    whole_stage.play(*itertools.repeat(oblige, 10))
    with httpx.Client(base_url=whole_stage.url, timeout=60) as http:
        yield http


def made(http: httpx.Client, kind: str, model: str) -> str:
    """The id of something that the example asks for."""
    match kind:
        case "model":
            return model
        case "response":
            return str(
                http.post("/v1/responses", json={"model": model, "input": "Hi", "background": True}).json()["id"]
            )
        case "conversation" | "item":
            message = {"type": "message", "role": "user", "content": "Hi"}
            return str(http.post("/v1/conversations", json={"items": [message]}).json()["id"])
        case _:
            body = {"model": model, "store": True, "messages": [{"role": "user", "content": "Hi"}]}
            return str(http.post("/v1/chat/completions", json=body).json()["id"])


def ids(http: httpx.Client, example: Example, model: str) -> dict[str, str]:
    """The ids that the path needs; an item is the first one of its conversation."""
    found = {kind: made(http, kind, model) for kind in example.needs if kind != "item"}
    if "item" in example.needs:
        items = http.get(f"/v1/conversations/{found['conversation']}/items").json()["data"]
        found["item"] = items[0]["id"]
    return found


def send(http: httpx.Client, example: Example, model: str) -> httpx.Response:
    """Send it as curl would."""
    headers = dict(example.headers)
    content = None
    if example.body is not None:
        content = json.dumps(example.body).replace('"{model}"', json.dumps(model)).encode()
        headers["content-type"] = str(example.content_type)
    path = example.path.format(**ids(http, example, model))
    return http.request(example.method, path, content=content, headers=headers)


def values(answer: httpx.Response, stream: str | None) -> list[Any]:
    """The JSON values of an answer, in order; `[DONE]` stays text."""
    match stream:
        case None:
            return [answer.json()]
        case "ndjson":
            return [json.loads(line) for line in answer.text.splitlines() if line]
        case _:
            output = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
            return [line if line == DONE else json.loads(line) for line in output]


def at(value: Any, path: str) -> Any:
    """What stands at a dotted path; a missing step is a `KeyError` or an `IndexError`."""
    for step in path.split("."):
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


def texts(value: Any) -> str:
    """All text that the answer's values give the user, joined."""
    match value:
        case {"response": str(text)} | {"message": {"content": str(text)}} | {"type": "output_text", "text": str(text)}:
            return text
        case {"type": "text", "text": str(text)} | {"text": str(text), "type": "message"}:
            return text
        case {"choices": [{"message": {"content": str(text)}}]}:
            return text
        case {"output": list(parts)} | {"content": list(parts)}:
            return "".join([texts(part) for part in parts])
        case _:
            return ""


@pytest.mark.parametrize(("example", "upstream"), CASES)
def test_a_documented_example(http: httpx.Client, example: Example, upstream: str) -> None:
    answer = send(http, example, upstream)
    wanted = example.answer
    assert answer.status_code == 200, answer.text
    emitted = values(answer, wanted.stream)
    last = emitted[-1] if wanted.ends == DONE else [value for value in emitted if value != DONE][-1]
    for path in wanted.holds:
        at(last, path)
    if wanted.ends:
        assert (last if last == DONE else last["type"]) == wanted.ends
    if wanted.calls:
        assert '"get_' in answer.text
    if wanted.json:
        assert isinstance(json.loads("".join([texts(value) for value in emitted])), dict)
    if wanted.loads:
        assert last["done_reason"] in ("load", "unload")


@pytest.mark.parametrize(("path", "one"), ABSENT)
def test_an_example_that_is_not_offered_is_refused_in_words(http: httpx.Client, path: str, one: NotOffered) -> None:
    answer = http.request(one.method, path.replace("{model}", "openai_chat"), content=b"{}")
    assert answer.status_code in (404, 405)
    assert answer.json()["error"]
