"""The mock upstream's answers, as bytes, in every dialect; knows no sockets and no pacing.

An answer is `words` times the word `lorem`, so that a load generator can count whether all of it arrived,
whatever a gateway did to the framing in between. With `tools` the words are the argument of a tool call.
With `rounds`, which Chat alone speaks, a call of a server's tool follows the words until its results are there.
Each word ends in a digit of its place, because LiteLLM breaks off a stream of more than a hundred equal chunks.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

TOOL = "write_note"
CALL_ID = "call_mockmockmockmockmockmock"

CLOCK, WAIT = "clock", "mock_wait"
WAIT_PATH, WAIT_SECONDS = "/wait", 0.2
WAITED = f"Waited {WAIT_SECONDS * 1000:.0f} ms"

Json = dict[str, Any]


class Call(NamedTuple):
    """A call of a server's tool behind the words, and the number of results that came before it."""

    tool: str
    number: int

    @property
    def arguments(self) -> str:
        """Other ones in every round, for the very same call would be taken for a model that turns in circles."""
        return json.dumps({"timezone": f"UTC+{self.number + 1}"} if self.tool == CLOCK else {})


class Script(NamedTuple):
    """What to answer: how many words, each its own chunk when streamed, as text or as a tool call's argument."""

    model: str
    words: int = 20
    tools: bool = False
    usage: bool = False
    call: Call | None = None


_CHUNKS = re.compile(r"-chunks-(\d+)")
_EVERY = re.compile(r"-every-(\d+)")
_ROUNDS = re.compile(r"-rounds-(\d+)")
_RESULT = re.compile(rb"ISO 8601|" + WAITED.encode())


def script(model: str, *, usage: bool = False, results: int = 0) -> Script:
    """Reads a model name: `mock`, `mock-tools`, `mock-chunks-1000`, `mock-slow`, `mock-rounds-4-waiting` and the like."""
    chunks = _CHUNKS.search(model)
    words = int(chunks[1]) if chunks else 3600 if "-slow" in model else 20
    call = Call(WAIT if "-waiting" in model else CLOCK, results) if results < rounds(model) else None
    return Script(model, words, "-tools" in model, usage, call)


def rounds(model: str) -> int:
    """How many results of tools the model wants before it calls no more."""
    found = _ROUNDS.search(model)
    return int(found[1]) if found else 0


def results_in(body: bytes) -> int:
    """How many results of the tools that it calls a request holds; failures of a tool are none."""
    return len(_RESULT.findall(body))


def pause(model: str) -> float:
    """Seconds between two chunks, from the model name: `…-every-5` means 5 ms, `mock-slow` a second, else none."""
    every = _EVERY.search(model)
    return int(every[1]) / 1000 if every else 1.0 if "-slow" in model else 0


def words(script: Script) -> tuple[str, ...]:
    """The answer's words, in order."""
    return tuple(f" lorem{at % 10}" for at in range(script.words))


def text(script: Script) -> str:
    """The answer as one text."""
    return "".join(words(script))


def chat_whole(script: Script) -> bytes:
    """One Chat Completions object."""
    message: Json = {"role": "assistant", "content": text(script)}
    if script.tools:
        function = {"name": TOOL, "arguments": "".join(_fragments(script))}
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": CALL_ID, "type": "function", "function": function}],
        }
    if script.call:
        message["tool_calls"] = [_chat_call(script.call)]
    finish = "tool_calls" if script.tools or script.call else "stop"
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return _bytes({**_chat_head(script, "chat.completion"), "choices": [choice], "usage": _chat_usage(script)})


def chat_frames(script: Script) -> Iterator[bytes]:
    """The events of a Chat Completions stream, one chunk a word, `[DONE]` last."""

    def chunk(delta: Json, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _data({**_chat_head(script, "chat.completion.chunk"), "choices": [choice]})

    if script.tools:
        function = {"name": TOOL, "arguments": ""}
        call = {"index": 0, "id": CALL_ID, "type": "function", "function": function}
        yield chunk({"role": "assistant", "content": None, "tool_calls": [call]})
        for fragment in _fragments(script):
            yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": fragment}}]})
    else:
        yield chunk({"role": "assistant", "content": ""})
        for word in words(script):
            yield chunk({"content": word})
    if script.call:
        yield chunk({"tool_calls": [{"index": 0, **_chat_call(script.call)}]})
    yield chunk({}, "tool_calls" if script.tools or script.call else "stop")
    if script.usage:
        yield _data({**_chat_head(script, "chat.completion.chunk"), "choices": [], "usage": _chat_usage(script)})
    yield b"data: [DONE]\n\n"


def messages_whole(script: Script) -> bytes:
    """One Anthropic message."""
    block: Json = {"type": "text", "text": text(script)}
    if script.tools:
        block = {"type": "tool_use", "id": "toolu_mock", "name": TOOL, "input": {"text": text(script)}}
    return _bytes(_message(script, [block], "tool_use" if script.tools else "end_turn", script.words))


def messages_frames(script: Script) -> Iterator[bytes]:
    """The events of an Anthropic stream, one delta a word, `message_stop` last."""
    yield _event({"type": "message_start", "message": _message(script, [], None, 1)})
    block: Json = {"type": "text", "text": ""}
    if script.tools:
        block = {"type": "tool_use", "id": "toolu_mock", "name": TOOL, "input": {}}
    yield _event({"type": "content_block_start", "index": 0, "content_block": block})
    for fragment in _fragments(script) if script.tools else words(script):
        delta = {"type": "text_delta", "text": fragment}
        if script.tools:
            delta = {"type": "input_json_delta", "partial_json": fragment}
        yield _event({"type": "content_block_delta", "index": 0, "delta": delta})
    yield _event({"type": "content_block_stop", "index": 0})
    end = {"stop_reason": "tool_use" if script.tools else "end_turn", "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": end, "usage": {"output_tokens": script.words}})
    yield _event({"type": "message_stop"})


def responses_whole(script: Script) -> bytes:
    """One Responses object."""
    return _bytes(_response(script, "completed", [_item(script, "completed")]))


def responses_frames(script: Script) -> Iterator[bytes]:
    """The events of a Responses stream, one delta a word, `response.completed` last."""
    for number, event in enumerate(_responses_events(script)):
        yield _event({**event, "sequence_number": number})


def _responses_events(script: Script) -> Iterator[Json]:
    yield {"type": "response.created", "response": _response(script, "in_progress", [])}
    yield {"type": "response.in_progress", "response": _response(script, "in_progress", [])}
    yield {"type": "response.output_item.added", "output_index": 0, "item": _item(script, "in_progress")}
    where = {"item_id": "item_mock", "output_index": 0}
    if script.tools:
        for fragment in _fragments(script):
            yield {"type": "response.function_call_arguments.delta", **where, "delta": fragment}
        whole = "".join(_fragments(script))
        yield {"type": "response.function_call_arguments.done", **where, "name": TOOL, "arguments": whole}
    else:
        part = {**where, "content_index": 0}
        yield {"type": "response.content_part.added", **part, "part": _output_text("")}
        for word in words(script):
            yield {"type": "response.output_text.delta", **part, "delta": word, "logprobs": []}
        yield {"type": "response.output_text.done", **part, "text": text(script), "logprobs": []}
        yield {"type": "response.content_part.done", **part, "part": _output_text(text(script))}
    item = _item(script, "completed")
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    yield {"type": "response.completed", "response": _response(script, "completed", [item])}


def ollama_whole(script: Script) -> bytes:
    """One Ollama chat object."""
    return _bytes(_ollama(script, text(script), done=True))


def ollama_frames(script: Script) -> Iterator[bytes]:
    """The lines of an Ollama stream; a tool call comes whole, as Ollama sends it."""
    if script.tools:
        yield _bytes(_ollama(script, "", done=False)) + b"\n"
    else:
        yield from (_bytes(_ollama(script, word, done=False)) + b"\n" for word in words(script))
    yield _bytes(_ollama(script._replace(tools=False), "", done=True)) + b"\n"


class Dialect(NamedTuple):
    """How one path answers, whole and streamed."""

    whole: Callable[[Script], bytes]
    frames: Callable[[Script], Iterator[bytes]]
    stream_type: str = "text/event-stream; charset=utf-8"
    streams_by_default: bool = False


DIALECTS = {
    "/v1/chat/completions": Dialect(chat_whole, chat_frames),
    "/v1/messages": Dialect(messages_whole, messages_frames),
    "/v1/responses": Dialect(responses_whole, responses_frames),
    "/api/chat": Dialect(ollama_whole, ollama_frames, "application/x-ndjson", streams_by_default=True),
}


def _fragments(script: Script) -> tuple[str, ...]:
    """A tool call's argument text in pieces: as many words as asked, with the JSON around them."""
    return ('{"text": "', *words(script), '"}')


def _bytes(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _data(value: Json) -> bytes:
    return b"data: " + _bytes(value) + b"\n\n"


def _event(value: Json) -> bytes:
    return f"event: {value['type']}\n".encode() + _data(value)


def _chat_head(script: Script, kind: str) -> Json:
    return {
        "id": "chatcmpl-mock",
        "object": kind,
        "created": 1_700_000_000,
        "model": script.model,
        "system_fingerprint": "fp_mock",
    }


def _chat_call(call: Call) -> Json:
    function = {"name": call.tool, "arguments": call.arguments}
    return {"id": f"{CALL_ID[:-1]}{call.number}", "type": "function", "function": function}


def _chat_usage(script: Script) -> Json:
    return {"prompt_tokens": 10, "completion_tokens": script.words, "total_tokens": 10 + script.words}


def _message(script: Script, content: list[Json], stop: str | None, output_tokens: int) -> Json:
    return {
        "id": "msg_mock",
        "type": "message",
        "role": "assistant",
        "model": script.model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": output_tokens},
    }


def _output_text(content: str) -> Json:
    return {"type": "output_text", "text": content, "annotations": [], "logprobs": []}


def _item(script: Script, status: str) -> Json:
    done = status == "completed"
    if script.tools:
        arguments = "".join(_fragments(script)) if done else ""
        call = {"type": "function_call", "id": "item_mock", "call_id": CALL_ID, "name": TOOL, "arguments": arguments}
        return {**call, "status": status}
    content = [_output_text(text(script))] if done else []
    return {"type": "message", "id": "item_mock", "role": "assistant", "status": status, "content": content}


def _response(script: Script, status: str, output: list[Json]) -> Json:
    tokens = {"input_tokens": 10, "output_tokens": script.words, "total_tokens": 10 + script.words}
    details: Json = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": "resp_mock",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": status,
        "model": script.model,
        "output": output,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": {**tokens, **details} if status == "completed" else None,
    }


def _ollama(script: Script, content: str, *, done: bool) -> Json:
    message: Json = {"role": "assistant", "content": content}
    if script.tools:
        arguments = {"text": text(script)}
        message = {**message, "content": "", "tool_calls": [{"function": {"name": TOOL, "arguments": arguments}}]}
    line: Json = {"model": script.model, "created_at": "2024-01-01T00:00:00Z", "message": message, "done": done}
    if done:
        line |= {"done_reason": "stop", "total_duration": 1, "load_duration": 1, "prompt_eval_duration": 1}
        line |= {"eval_duration": 1, "prompt_eval_count": 10, "eval_count": script.words}
    return line
