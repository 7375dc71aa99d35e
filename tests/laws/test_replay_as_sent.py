"""Replay law over raw upstreams: what a vendor's server sent, word for word, comes back to it on the next turn.

`test_replay.py` holds the law over upstreams that this project plays itself. Here the answers are those of real servers:
reasoning under several names, signatures beside calls, ids that other APIs refuse, blocks and items of the vendor's own.
Clients of all four dialects send the answer back as they received it, whole and put together from a stream. Where a
client's dialect has no place for something, `kept` says so (as docs/compatibility.md does), and the rest must come back.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import Struct, field

from tests.api.http_client import CLIENTS, PATHS, HttpConnection, HttpResponse, body
from tests.dialects import anthropic_cases, openai_responses_cases
from tests.stage import UPSTREAMS, gateway_config, in_a_thread
from tests.upstreams.transport.faulty import Faulty, Peer, chunked, whole
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.http.listener import listening

TOOL = "look_up"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
ROME, OSLO = '{"city":"Rome"}', '{"city":"Oslo"}'
ID1, ID2 = "call_" + "a" * 24, "call_" + "b" * 24
FREEFORM = "freeform call"  # upstreams are asked for these only where the client speaks their dialect
Json = dict[str, Any]


def chat_call(id: str = ID1, arguments: str = ROME, **more: Any) -> Json:
    return {"id": id, "type": "function", "function": {"name": TOOL, "arguments": arguments}, **more}


def responses_call(**more: Any) -> Json:
    return {"type": "function_call", "id": "fc_1", "call_id": ID1, "name": TOOL, "arguments": ROME, **more}


def stated(*parts: Json, id: str = "msg_1", **more: Any) -> Json:
    return {"type": "message", "id": id, "role": "assistant", "status": "completed", "content": list(parts), **more}


def output(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": []}


def tool_use(**more: Any) -> Json:
    return {"type": "tool_use", "id": "toolu_01" + "a" * 22, "name": TOOL, "input": {"city": "Rome"}, **more}


def text(value: str, **more: Any) -> Json:
    return {"type": "text", "text": value, **more}


DETAILS = [
    {"type": "reasoning.text", "text": "hm", "signature": "sig-1", "format": "anthropic-claude-v1", "index": 0},
    {"type": "reasoning.encrypted", "data": "opaque", "format": "anthropic-claude-v1", "index": 1},
]
GEMINI = {"google": {"thought_signature": "signature-g"}}
MCP_USE = {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "find", "server_name": "docs", "input": {"q": "x"}}
MCP_RESULT = {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "is_error": False, "content": [text("found")]}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "Rome"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
MCP_CALL = {
    "type": "mcp_call",
    "id": "mcp_1",
    "server_label": "docs",
    "name": "find",
    "arguments": "{}",
    "output": "found",
    "error": None,
    "status": "completed",
}
PATCH = {"type": "custom_tool_call", "id": "ctc_1", "call_id": ID1, "name": "patch", "input": "*** Begin"}
SEALED = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "proof"}

ANSWERS: dict[str, dict[str, Any]] = {
    "openai_chat": {
        "reasoning_content": {"content": "See.", "reasoning_content": "hm", "tool_calls": [chat_call()]},
        "reasoning": {"content": "See.", "reasoning": "hm", "tool_calls": [chat_call()]},
        "reasoning_details": {"reasoning": "hm", "reasoning_details": DETAILS, "tool_calls": [chat_call()]},
        "thought signature": {"tool_calls": [chat_call(extra_content=GEMINI), chat_call(ID2, OSLO)]},
        "thought signature on the second call": {
            "tool_calls": [chat_call(), chat_call(ID2, OSLO, extra_content=GEMINI)]
        },
        "reasoning and thought signature": {"reasoning_content": "hm", "tool_calls": [chat_call(extra_content=GEMINI)]},
        "kimi ids": {"tool_calls": [chat_call("functions.look_up:0"), chat_call("functions.look_up:1", OSLO)]},
        "short ids": {"content": "See.", "tool_calls": [chat_call("0"), chat_call("1", OSLO)]},
        "refusal": {"refusal": "No."},
        "text": {"content": "ü 😀"},
    },
    "ollama": {
        "thinking": {
            "content": "See.",
            "thinking": "hm",
            "tool_calls": [{"function": {"name": TOOL, "arguments": {"city": "Rome"}}}],
        },
        "two calls with ids": {
            "content": "",
            "tool_calls": [
                {"id": "call_1", "function": {"index": 0, "name": TOOL, "arguments": {"city": "Rome"}}},
                {"id": "call_2", "function": {"index": 1, "name": TOOL, "arguments": {"city": "Oslo"}}},
            ],
        },
    },
    "openai_responses": {
        "encrypted reasoning": [SEALED, responses_call()],
        "reasoning with a summary": [{**SEALED, "summary": [{"type": "summary_text", "text": "hm"}]}, responses_call()],
        "namespaced call": [responses_call(namespace="web")],
        "refusal": [stated({"type": "refusal", "refusal": "No."})],
        "two parts of one message": [stated(output("One. "), output("Two."))],
        "two messages": [stated(output("One.")), stated(output("Two."), id="msg_2"), responses_call()],
        "mcp call": [MCP_CALL, stated(output("Done."))],
        FREEFORM: [PATCH],
        "phases": [
            stated(output("Wait."), phase="commentary"),
            stated(output("Done."), id="msg_2", phase="final_answer"),
        ],
    },
    "anthropic": {
        "several texts": [text("One."), text("Two."), tool_use()],
        "mcp blocks": [MCP_USE, MCP_RESULT, text("Done.")],
        "search": [text("Let me see."), SEARCH, FOUND, text("Done.")],
        "short id": [tool_use(id="toolu_1")],
        "thinking": [{"type": "thinking", "thinking": "hm", "signature": "s1"}, tool_use()],
    },
}
CASES = [
    (upstream, name, client)
    for upstream in UPSTREAMS
    for name in ANSWERS[upstream]
    for client in CLIENTS
    if name != FREEFORM or client == upstream
]


class Place(Struct):
    """The gateway, what the server behind it sends next, and what it was asked."""

    url: str = ""
    answers: list[bytes] = field(default_factory=list)
    requests: list[Json] = field(default_factory=list)


@asynccontextmanager
async def _opened() -> AsyncIterator[Place]:
    place = Place()

    async def play(peer: Peer) -> None:
        while request := await peer.request():
            place.requests.append(json.loads(request.body))
            await peer.send(place.answers.pop(0))

    async with Faulty(play) as upstream:
        config = gateway_config(f"http://127.0.0.1:{upstream.port}")
        async with listening(Toolgate(config)) as place.url:
            yield place


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with in_a_thread(_opened()) as opened:
        yield opened


def sent(upstream: str, answer: Any, stream: bool) -> bytes:
    """The bytes of an upstream's answer."""
    made = _SENT[upstream](answer)
    if stream:
        return chunked(made[1])
    return whole(json.dumps(made[0]).encode(), "content-type: application/json")


def _chat(message: Json) -> tuple[Json, bytes]:
    message = {"role": "assistant", "content": None, **message}
    reason = "tool_calls" if "tool_calls" in message else "stop"
    common = {"id": "chatcmpl-up", "created": 7, "model": "up"}
    numbered = [{"index": index, **entry} for index, entry in enumerate(message.get("tool_calls") or ())]
    delta = {**message, **({"tool_calls": numbered} if numbered else {})}
    chunks = [
        {**common, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**common, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
    ]
    choice = {"index": 0, "message": message, "finish_reason": reason}
    stream = b"".join([b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]) + b"data: [DONE]\n\n"
    return {**common, "object": "chat.completion", "choices": [choice]}, stream


def _messages(content: list[Json]) -> tuple[Json, bytes]:
    cases = anthropic_cases
    reason = "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"
    events = [cases.start()]
    for index, block in enumerate(content):
        match block["type"]:
            case "text":
                events += [cases.block(index, **{**block, "text": ""}), cases.delta(index, text=block["text"])]
            case "thinking":
                empty = {"type": "thinking", "thinking": "", "signature": ""}
                deltas = [cases.delta(index, **{name: block[name]}) for name in ("thinking", "signature")]
                events += [cases.block(index, **empty), *deltas]
            case kind if kind.endswith("tool_use"):
                arguments = cases.delta(index, partial_json=json.dumps(block["input"]))
                events += [cases.block(index, **{**block, "input": {}}), arguments]
            case _:
                events.append(cases.block(index, **block))
        events.append(cases.stop(index))
    stream = cases.wire(*events, cases.ending(reason), cases.STOP)
    message = {"id": "msg_up", "type": "message", "role": "assistant", "model": "up", "content": content}
    return {**message, "stop_reason": reason, "stop_sequence": None, "usage": cases.USAGE}, stream


def _responses(items: list[Json]) -> tuple[Json, bytes]:
    cases = openai_responses_cases
    done = b"".join([cases.done(item, index) for index, item in enumerate(items)])
    response = {"id": "resp_up", "object": "response", "model": "up", "status": "completed", "output": items}
    return {**response, "usage": cases.USAGE}, cases.created() + done + cases.completed(*items)


def _ollama(message: Json) -> tuple[Json, bytes]:
    line = {"model": "up", "created_at": "2026-01-01T00:00:00Z", "message": {"role": "assistant", **message}}
    end = {"done": True, "done_reason": "stop", "prompt_eval_count": 5, "eval_count": 7}
    last = {**line, "message": {"role": "assistant", "content": ""}, **end}
    return {**line, **end}, json.dumps({**line, "done": False}).encode() + b"\n" + json.dumps(last).encode() + b"\n"


_SENT: dict[str, Callable[[Any], tuple[Json, bytes]]] = {
    "openai_chat": _chat,
    "openai_responses": _responses,
    "anthropic": _messages,
    "ollama": _ollama,
}
DONE: dict[str, Any] = {
    "openai_chat": {"content": "Done."},
    "openai_responses": [stated(output("Done."))],
    "anthropic": [text("Done.")],
    "ollama": {"content": "Done."},
}


def asked(client: str, upstream: str, stream: bool) -> Json:
    """The first request of a client."""
    function = {"name": TOOL, "description": "A tool.", "parameters": SCHEMA}
    more: Json = {}
    match client:
        case "openai_responses":
            more["tools"] = [{"type": "function", **function}, {"type": "custom", "name": "patch"}]
            more["include"] = ["reasoning.encrypted_content"]
        case "anthropic":
            more["tools"] = [{"name": TOOL, "description": "A tool.", "input_schema": SCHEMA}]
        case _:
            more["tools"] = [{"type": "function", "function": function}]
    return body(client, upstream, stream, "How is the weather?", **more)


def next_request(client: str, request: Json, stream: bool, received: HttpResponse) -> Json:
    """The request that sends an answer back as it was received, with results for its calls."""
    match client:
        case "openai_chat":
            message = _chat_message(received.body) if stream else received.json["choices"][0]["message"]
            calls = message.get("tool_calls") or ()
            results = [{"role": "tool", "tool_call_id": call["id"], "content": "sunny"} for call in calls]
            return _further(request, "messages", [message], results)
        case "openai_responses":
            items = _events(received.body)[-1]["response"]["output"] if stream else received.json["output"]
            calls = [item for item in items if item["type"] in ("function_call", "custom_tool_call")]
            results = [{"type": f"{one['type']}_output", "call_id": one["call_id"], "output": "sunny"} for one in calls]
            return _further(request, "input", items, results)
        case "anthropic":
            content = _blocks(received.body) if stream else received.json["content"]
            ids = [block["id"] for block in content if block["type"] == "tool_use"]
            answers = [{"type": "tool_result", "tool_use_id": id, "content": "sunny"} for id in ids]
            results = [{"role": "user", "content": answers}] if answers else []
            return _further(request, "messages", [{"role": "assistant", "content": content}], results)
        case _:
            message = _ollama_message(received.body) if stream else received.json["message"]
            calls = message.get("tool_calls") or ()
            results = [{"role": "tool", "tool_name": TOOL, "content": "sunny"} for _ in calls]
            return _further(request, "messages", [message], results)


def _further(request: Json, name: str, answer: list[Json], results: list[Json]) -> Json:
    return {**request, name: [*request[name], *answer, *(results or [{"role": "user", "content": "And then?"}])]}


def _events(stream: bytes) -> list[Json]:
    lines = [line.removeprefix(b"data: ") for line in stream.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


def _chat_message(stream: bytes) -> Json:
    message: Json = {"role": "assistant", "content": ""}
    calls: dict[int, Json] = {}
    for chunk in _events(stream):
        for choice in chunk["choices"]:
            for name, value in choice["delta"].items():
                if name == "tool_calls":
                    for entry in value:
                        _add_call(calls, dict(entry))
                elif name == "reasoning_details":
                    message.setdefault(name, []).extend(value)
                elif name != "role" and value:
                    message[name] = (message.get(name) or "") + value
    return {**message, **({"tool_calls": list(calls.values())} if calls else {})}


def _add_call(calls: dict[int, Json], entry: Json) -> None:
    index = entry.pop("index")
    if index not in calls:
        calls[index] = entry
        return
    if "function" in entry:
        calls[index]["function"]["arguments"] += entry.pop("function")["arguments"]
    calls[index] |= entry


def _blocks(stream: bytes) -> list[Json]:
    blocks: list[Json] = []
    inputs: dict[int, str] = {}
    for event in _events(stream):
        match event:
            case {"type": "content_block_start", "content_block": block}:
                blocks.append(block)
            case {"type": "content_block_delta", "index": index, "delta": delta}:
                for name, value in delta.items():
                    if name == "partial_json":
                        inputs[index] = inputs.get(index, "") + value
                    elif name != "type":
                        blocks[index][name] = blocks[index].get(name, "") + value
    for index, arguments in inputs.items():
        blocks[index]["input"] = json.loads(arguments)
    return blocks


def _ollama_message(stream: bytes) -> Json:
    message: Json = {"role": "assistant", "content": ""}
    for line in stream.splitlines():
        for name, value in json.loads(line)["message"].items():
            if name != "role" and value:
                message[name] = message[name] + value if name in message else value
    return message


def returned(upstream: str, request: Json) -> Any:
    """What an upstream is told of its own answer, as it would say it."""
    items = request["input"] if upstream == "openai_responses" else request["messages"]
    if upstream == "openai_responses":
        return [item for item in items if item.get("role") != "user" and not item["type"].endswith("_output")]
    turns = [item for item in items if item["role"] == "assistant"]
    assert len(turns) == 1, turns
    return turns[0]["content"] if upstream == "anthropic" else turns[0]


def essence(upstream: str, answer: Any) -> Any:
    """What must come back: everything that is said, without what only frames it."""
    match upstream:
        case "openai_chat":
            content = answer.get("content")
            refused = content[0] if isinstance(content, list) else {}  # the two forms of a refusal mean the same
            if refused:
                answer = {"refusal": refused["refusal"]}
            return _without(answer, "role")
        case "anthropic":
            blocks = [text(answer)] if isinstance(answer, str) else answer
            return [_without(block, "cache_control") for block in blocks]
        case "openai_responses":
            items = [_in_parts(item) for item in answer]
            return [_without(item, "id", "status", "annotations", "logprobs", "role") for item in items]
        case _:
            calls = [_without(call["function"], "index") for call in answer.get("tool_calls") or ()]
            return {**_without(answer, "role"), "tool_calls": calls}


def _in_parts(item: Json) -> Json:
    """A message with its text as a part, which means the same."""
    return {**item, "content": [output(item["content"])]} if isinstance(item.get("content"), str) else item


def kept(upstream: str, client: str, went: Any) -> Any:
    """What a client of this dialect has a place for, of an answer as its upstream would say it."""
    if client == upstream:
        return went
    if upstream == "openai_chat":
        return _kept_of_chat(client, went)
    if upstream == "ollama":
        return went
    own = ("mcp_call", "mcp_tool_use", "mcp_tool_result", "server_tool_use", "web_search_tool_result")
    hidden = (*own, "reasoning", "thinking") if client == "ollama" else own
    parts = [_without(part, "namespace", "phase") for part in went if part["type"] not in hidden]
    if upstream == "openai_responses":
        parts = _kept_messages(client, parts)
    return _joined(parts) if client in ("openai_chat", "ollama") else parts


def _kept_of_chat(client: str, went: Json) -> Json:
    if client == "ollama":
        went = _without(went, "reasoning", "reasoning_content", "reasoning_details", "extra_content")
    if client in ("anthropic", "ollama") and "refusal" in went:
        went = {"content": went["refusal"]}
    return went


def _kept_messages(client: str, items: list[Json]) -> list[Json]:
    """Messages of one part each; where there are no refusals, they are text."""
    found: list[Json] = []
    for item in items:
        for part in item.get("content") or [None]:
            if part is not None and part["type"] == "refusal" and client in ("anthropic", "ollama"):
                part = {"type": "output_text", "text": part["refusal"]}
            found.append(item if part is None else {**item, "content": [part]})
    return found


def _joined(parts: list[Json]) -> list[Json]:
    """Texts that follow each other as one: a message of these clients has one text."""
    found: list[Json] = []
    for part in parts:
        before = found[-1] if found else {}
        if part["type"] == before.get("type") == "text":
            found[-1] = text(before["text"] + part["text"])
        elif part["type"] == before.get("type") == "message":
            found[-1] = {"type": "message", "content": [_glued(before["content"][0], part["content"][0])]}
        else:
            found.append(part)
    return found


def _glued(one: Json, other: Json) -> Json:
    return {**one, "text": one["text"] + other["text"]}


def _without(value: Any, *names: str) -> Any:
    """A value without some fields, and without those that are empty."""
    if isinstance(value, list):
        return [_without(inner, *names) for inner in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _without(inner, *names) for name, inner in value.items() if name not in names and inner not in (None, "")
    }


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("upstream", "name", "client"), CASES)
async def test_what_a_server_sent_comes_back_to_it(
    place: Place, upstream: str, name: str, client: str, stream: bool
) -> None:
    answer = ANSWERS[upstream][name]
    place.answers = [sent(upstream, answer, stream), sent(upstream, DONE[upstream], stream)]
    place.requests = []
    request = asked(client, upstream, stream)
    headers = ("anthropic-beta: mcp-client-2025-11-20",) if client == "anthropic" else ()
    async with HttpConnection(place.url) as caller:
        await caller.post(PATHS[client], request, *headers)
        first = await caller.response()
        assert first.status == 200, first.body
        await caller.post(PATHS[client], next_request(client, request, stream, first), *headers)
        second = await caller.response()
    assert second.status == 200, second.body
    came = essence(upstream, returned(upstream, place.requests[1]))
    assert came == kept(upstream, client, essence(upstream, answer))
