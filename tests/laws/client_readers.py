"""What clients of the four dialects make of an answer, read as strictly as simple clients do: nothing is mended here.

A stream is put together by the rules that the official clients follow, and whatever one of them would stumble over (an
event out of order, arguments that are not text, an item that was never announced) fails an assertion.
"""

import json
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from tests.api.http_client import HttpResponse
from toolgate.conversation.arguments import is_object


class Call(Struct, frozen=True):
    """A call as a client sees it."""

    name: str
    arguments: str
    id: str
    complete: bool = True


class Outcome(Struct, kw_only=True):
    """What an answer comes to."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: list[Call] = []
    reason: str = ""
    usage: tuple[int, int] = (0, 0)
    error: str = ""


def outcome(client: str, stream: bool, received: HttpResponse) -> Outcome:
    """The answer as a client of this dialect reads it."""
    assert not received.cut, "the connection broke off"
    if received.status != 200:
        return Outcome(error=_error(client, received.json))
    return (_STREAMED if stream else _WHOLE)[client](received.body)


def _read(text: bytes) -> Any:
    """JSON in which no fraction is rounded."""
    return json.loads(text, parse_float=str)


def _error(client: str, found: Any) -> str:
    message = found["error"] if client == "ollama" else found["error"]["message"]
    assert isinstance(message, str)
    assert message
    return message


def _frames(body: bytes) -> list[tuple[str, Any]]:
    """The events of a stream, each with its name."""
    found, name = [], ""
    for line in body.decode().split("\n"):
        field, _, value = line.partition(":")
        if field == "event":
            name = value.strip()
        elif field == "data":
            found.append((name, value.strip() if value.strip() == "[DONE]" else json.loads(value)))
            name = ""
    return found


def _chat_reason(word: Any) -> str:
    assert word in ("stop", "tool_calls", "length", "content_filter", "function_call"), word
    return "tool_calls" if word == "function_call" else str(word)


def _chat_whole(body: bytes) -> Outcome:
    answer = json.loads(body)
    assert answer["object"] == "chat.completion"
    assert all([answer["id"], answer["created"], answer["model"]])
    choice = answer["choices"][0]
    message, reason = choice["message"], _chat_reason(choice["finish_reason"])
    assert message["role"] == "assistant"
    legacy = message.get("function_call")
    entries = [{"id": "legacy", "type": "function", "function": legacy}] if legacy else message.get("tool_calls")
    assert entries != []
    return Outcome(
        text=_text(message["content"]),
        reasoning=_text(message.get("reasoning_content") or message.get("reasoning")),
        refusal=_text(message.get("refusal")),
        calls=[_chat_call(entry, reason) for entry in entries or ()],
        reason=reason,
        usage=(answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]),
    )


def _text(value: Any) -> str:
    assert value is None or isinstance(value, str), value
    return value or ""


def _chat_call(entry: dict[str, Any], reason: str) -> Call:
    assert entry["type"] == "function"
    return _cut(entry["function"]["name"], entry["function"]["arguments"], entry["id"], reason)


def _cut(name: Any, arguments: Any, id: Any, reason: str) -> Call:
    """A call of a dialect in which only the finish reason tells that it was cut off."""
    assert isinstance(name, str)
    assert isinstance(arguments, str)
    assert isinstance(id, str)
    assert name
    assert id
    return Call(name, arguments, id, reason not in ("length", "content_filter") or is_object(arguments))


def _chat_streamed(body: bytes) -> Outcome:
    frames, found, identities = _frames(body), Outcome(), set()
    assert frames[-1] == ("", "[DONE]")
    calls: dict[int, dict[str, Any]] = {}
    for _, chunk in frames[:-1]:
        if "error" in chunk:
            return Outcome(error=_error("openai_chat", chunk))
        assert chunk["object"] == "chat.completion.chunk"
        identities.add((chunk["id"], chunk["created"], chunk["model"]))
        if usage := chunk.get("usage"):
            found.usage = usage["prompt_tokens"], usage["completion_tokens"]
        for choice in chunk["choices"]:
            if choice["index"]:
                continue
            delta = choice["delta"]
            assert not found.reason or not any(delta.values()), "something follows the finish reason"
            found.text += _text(delta.get("content"))
            found.reasoning += _text(delta.get("reasoning_content") or delta.get("reasoning"))
            found.refusal += _text(delta.get("refusal"))
            if legacy := delta.get("function_call"):
                entry = {"index": 0, "function": legacy}
                _chat_delta(calls, entry if calls else {**entry, "id": "legacy", "type": "function"})
            for entry in delta.get("tool_calls") or ():
                _chat_delta(calls, entry)
            if choice.get("finish_reason"):
                assert not found.reason
                found.reason = _chat_reason(choice["finish_reason"])
    assert len(identities) == 1
    assert found.reason
    assert list(calls) == list(range(len(calls)))
    found.calls = [_chat_call(entry, found.reason) for entry in calls.values()]
    return found


def _chat_delta(calls: dict[int, dict[str, Any]], entry: dict[str, Any]) -> None:
    known, function = calls.get(entry["index"]), entry["function"]
    if known is None:
        calls[entry["index"]] = {**entry, "function": {"arguments": "", **function}}
        return
    known["function"]["name"] += function.get("name") or ""
    known["function"]["arguments"] += function["arguments"]


_MESSAGES_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
    "pause_turn": "pause",
}


def _messages_whole(body: bytes) -> Outcome:
    message = _read(body)
    assert message["type"] == "message"
    assert message["role"] == "assistant"
    return _messages(message, None)


def _messages(message: dict[str, Any], inputs: dict[int, str] | None) -> Outcome:
    reason = _MESSAGES_REASONS[message["stop_reason"]]
    usage = message["usage"]
    cached = (usage.get("cache_read_input_tokens") or 0) + (usage.get("cache_creation_input_tokens") or 0)
    found = Outcome(reason=reason, usage=(usage["input_tokens"] + cached, usage["output_tokens"]))
    for number, block in enumerate(message["content"]):
        match block["type"]:
            case "text":
                assert block["text"], "an empty text block"
                found.text += block["text"]
            case "thinking":
                assert isinstance(block["signature"], str)
                found.reasoning += block["thinking"]
            case "tool_use":
                assert type(block["input"]) is dict
                text = json.dumps(block["input"]) if inputs is None else inputs.get(number, "")
                if not text and reason != "length":
                    text = "{}"
                found.calls.append(_unwrapped(block["name"], text, block["id"], reason))
    return found


def _unwrapped(name: str, text: str, id: str, reason: str) -> Call:
    """A call of a dialect whose arguments are an object, with text that is none under one key."""
    try:
        value = json.loads(text)
    except ValueError:
        return _cut(name, text, id, reason)
    if type(value) is dict and set(value) == {"INVALID_JSON"}:
        text = value["INVALID_JSON"]
    return _cut(name, text, id, reason)


def _messages_streamed(body: bytes) -> Outcome:
    message: dict[str, Any] = {}
    inputs: dict[int, str] = {}
    open_block: int | None = None
    for name, event in _frames(body):
        assert name == event["type"]
        if name == "error":
            return Outcome(error=_error("anthropic", event))
        assert name in ("message_start", "ping") or message, "something precedes message_start"
        match name:
            case "message_start":
                assert not message
                message = event["message"]
                assert message["content"] == []
            case "content_block_start":
                assert open_block is None, "two blocks are open"
                open_block = event["index"]
                assert open_block == len(message["content"])
                message["content"].append(event["content_block"])
            case "content_block_delta":
                assert open_block == event["index"]
                _messages_delta(message["content"][open_block], event["delta"], inputs, event["index"])
            case "content_block_stop":
                assert open_block == event["index"]
                open_block = None
            case "message_delta":
                assert open_block is None
                message |= event["delta"]
                message["usage"] |= {key: value for key, value in event["usage"].items() if value is not None}
            case "message_stop":
                assert open_block is None
                return _messages(message, inputs)
    raise AssertionError("no message_stop")


def _messages_delta(block: dict[str, Any], delta: dict[str, Any], inputs: dict[int, str], index: int) -> None:
    match delta["type"]:
        case "text_delta":
            assert block["type"] == "text"
            block["text"] += delta["text"]
        case "thinking_delta":
            block["thinking"] += delta["thinking"]
        case "signature_delta":
            assert block["type"] == "thinking"
            block["signature"] = delta["signature"]
        case "input_json_delta":
            assert isinstance(delta["partial_json"], str)
            inputs[index] = inputs.get(index, "") + delta["partial_json"]


def _response(response: dict[str, Any]) -> Outcome:
    if response["status"] == "failed":
        return Outcome(error=response["error"]["message"])
    details, usage = response["incomplete_details"], response["usage"]
    found = Outcome(usage=(usage["input_tokens"], usage["output_tokens"]))
    for item in response["output"]:
        assert item["id"]
        match item["type"]:
            case "message":
                for part in item["content"]:
                    found.text += part["text"] if part["type"] == "output_text" else ""
                    found.refusal += part["refusal"] if part["type"] == "refusal" else ""
            case "reasoning":
                stated = item["summary"] or item.get("content") or ()
                found.reasoning += "\n\n".join([piece["text"] for piece in stated])
            case "function_call":
                assert item["status"] in ("completed", "incomplete")
                call = _cut(item["name"], item["arguments"], item["call_id"], "")
                found.calls.append(Call(call.name, call.arguments, call.id, item["status"] == "completed"))
    assert (response["status"] == "incomplete") == (details is not None), (response["status"], details)
    reasons = {"max_output_tokens": "length", "content_filter": "content_filter"}
    ended = "tool_calls" if found.calls else "stop"
    found.reason = reasons[details["reason"]] if details else ended
    return found


def _responses_whole(body: bytes) -> Outcome:
    return _response(json.loads(body))


def _responses_streamed(body: bytes) -> Outcome:
    items: dict[int, dict[str, Any]] = {}
    emitted: dict[str, str] = {}
    frames, failed = _frames(body), ""
    assert frames[-1] == ("", "[DONE]")
    for number, (name, event) in enumerate(frames[:-1]):
        assert name == event["type"]
        assert event["sequence_number"] == number
        kind = name.removeprefix("response.")
        if "item_id" in event:
            assert items[event["output_index"]]["id"] == event["item_id"]
        match kind:
            case "error":
                failed = event["message"]
            case "output_item.added":
                assert event["output_index"] == len(items)
                items[event["output_index"]] = event["item"]
            case "output_item.done":
                assert items[event["output_index"]]["id"] == event["item"]["id"]
                items[event["output_index"]] = event["item"]
            case _ if kind.endswith(".delta"):
                emitted[event["item_id"]] = emitted.get(event["item_id"], "") + event["delta"]
            case "function_call_arguments.done":
                assert emitted.get(event["item_id"], "") == event["arguments"], "deltas that do not make the arguments"
            case "completed" | "incomplete" | "failed":
                assert number == len(frames) - 2
                found = _response(event["response"])
                if found.error:
                    assert found.error == failed
                    return found
                assert event["response"]["output"] == list(items.values())
                _check_told(event["response"]["output"], emitted)
                return found
    raise AssertionError("no terminal event")


def _check_told(output: list[dict[str, Any]], emitted: dict[str, str]) -> None:
    """Clients that read deltas alone see the same."""
    for item in output:
        stated = emitted.get(item["id"], "")
        if item["type"] == "function_call":
            assert stated == item["arguments"]
        elif item["type"] == "message":
            assert stated == "".join([part.get("text") or part.get("refusal") or "" for part in item["content"]])


def _ollama_line(line: dict[str, Any], found: Outcome) -> None:
    message = line["message"]
    assert message["role"] == "assistant"
    assert isinstance(message["content"], str)
    assert all([line["model"], line["created_at"]])
    found.text += message["content"]
    found.reasoning += message.get("thinking") or ""
    for entry in message.get("tool_calls") or ():
        function = entry["function"]
        assert type(function["arguments"]) is dict
        text = json.dumps(function["arguments"])
        id = entry.get("id") or f"place {len(found.calls)}"  # older servers give none, and clients go by the place
        found.calls.append(_unwrapped(function["name"], text, id, ""))
    if line["done"]:
        reason = line["done_reason"]
        assert reason in ("stop", "length", "content_filter"), reason
        found.reason = "tool_calls" if reason == "stop" and found.calls else reason
        found.usage = line["prompt_eval_count"], line["eval_count"]


def _ollama_whole(body: bytes) -> Outcome:
    found = Outcome()
    _ollama_line(_read(body), found)
    assert found.reason
    return found


def _ollama_streamed(body: bytes) -> Outcome:
    found = Outcome()
    for text in body.splitlines():
        line = _read(text)
        if "error" in line:
            return Outcome(error=_error("ollama", line))
        assert not found.reason, "something follows the last line"
        _ollama_line(line, found)
    assert found.reason
    return found


_WHOLE: dict[str, Callable[[bytes], Outcome]] = {
    "openai_chat": _chat_whole,
    "openai_responses": _responses_whole,
    "anthropic": _messages_whole,
    "ollama": _ollama_whole,
}
_STREAMED: dict[str, Callable[[bytes], Outcome]] = {
    "openai_chat": _chat_streamed,
    "openai_responses": _responses_streamed,
    "anthropic": _messages_streamed,
    "ollama": _ollama_streamed,
}
