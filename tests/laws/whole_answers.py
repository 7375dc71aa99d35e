"""Streams of wire quirks as the whole answers that the same servers would give, with the same oddities.

None of this mends anything: pieces are put together as a careless server would, and what has no form as a whole answer
(framing, streams that break off) gives None.
"""

import json
from collections.abc import Callable
from typing import Any

from toolgate.wire.sse_decoder import SseDecoder

Body = dict[str, Any]


def chat_answer(stream: bytes) -> Body | None:
    """The chat completion that the chunks of a stream make."""
    events = _events(stream)
    if events is None:
        return None
    whole: Body = {"object": "chat.completion", "usage": None}
    choices: dict[int, Body] = {}
    for event, chunk in events:
        if event == "error" or (chunk.get("error") and not chunk.get("choices")):
            return {"error": chunk.get("error") or chunk}
        given = {name: value for name, value in chunk.items() if name not in ("choices", "object") and value}
        whole |= {name: value for name, value in given.items() if name not in whole or not whole[name]}
        for choice in chunk.get("choices") or ():
            index = choice.get("index") or 0
            known = choices.setdefault(index, {"index": index, "message": {}, "finish_reason": None})
            _add_delta(known["message"], choice.get("delta") or {})
            known["finish_reason"] = known["finish_reason"] or choice.get("finish_reason")
    if not choices or not choices[0]["finish_reason"]:
        return None
    return {**whole, "choices": list(choices.values())}


def _add_delta(message: Body, delta: Body) -> None:
    for name, value in delta.items():
        match name:
            case "tool_calls":
                for entry in value or ():
                    _add_call(message.setdefault("tool_calls", []), entry)
            case "function_call":
                _join(message.setdefault(name, {}), value)
            case _:
                _join(message, {name: value})


def _add_call(calls: list[Body], entry: Body) -> None:
    index, function = entry.get("index"), entry.get("function") or {}
    known = next((call for call in reversed(calls) if index is not None and call.get("index") == index), None)
    begins = (
        function.get("name") and entry.get("id") and known is not None and known.get("id") not in (None, entry["id"])
    )
    if known is None or begins:
        calls.append({**entry, "function": dict(function)})
        return
    known |= {name: value for name, value in entry.items() if name != "function" and not known.get(name)}
    if function.get("name") == known["function"].get("name"):
        function = {name: value for name, value in function.items() if name != "name"}
    _join(known["function"], function)


def _join(known: Body, more: Body) -> None:
    for name, value in more.items():
        if type(value) in (str, list) and type(known.get(name)) is type(value):
            known[name] = known[name] + value if name != "role" else value
        elif value not in (None, "") or name not in known:
            known[name] = value


def anthropic_answer(stream: bytes) -> Body | None:
    """The message that the events of a stream make."""
    events = _events(stream)
    if events is None:
        return None
    message: Body = {"type": "message", "role": "assistant", "content": [], "stop_reason": None}
    early: list[Body] = []
    blocks: dict[Any, Body] = {}
    pieces: dict[int, list[Any]] = {}
    for _, event in events:
        match event:
            case {"type": "error"}:
                return event
            case {"type": "message_start", "message": dict(start)}:
                early = start.get("content") or []
                message |= {name: value for name, value in start.items() if name != "content" and value is not None}
            case {"type": "content_block_start", "content_block": dict(block)}:
                index = event.get("index")
                if index in blocks and blocks[index].get("id") == block.get("id") and block.get("id"):
                    continue
                blocks[index] = dict(block)
                message["content"].append(blocks[index])
            case {"type": "content_block_delta", "delta": dict(delta)}:
                index = event.get("index")
                if index not in blocks:
                    if "partial_json" in delta:
                        return None
                    blocks[index] = {"type": "text", "text": ""}
                    message["content"].append(blocks[index])
                if "partial_json" in delta:
                    pieces.setdefault(id(blocks[index]), []).append(delta["partial_json"])
                elif delta["type"] == "thinking_delta" and blocks[index]["type"] == "text":
                    message["content"].insert(-1, {"type": "thinking", "thinking": delta["thinking"], "signature": ""})
                else:
                    _join(blocks[index], {name: value for name, value in delta.items() if name != "type"})
            case {"type": "message_delta"}:
                message |= {name: value for name, value in event["delta"].items() if value is not None}
                message["usage"] = {**(message.get("usage") or {}), **(event.get("usage") or {})}
    message["content"] = message["content"] or early
    for block in message["content"]:
        if output := pieces.get(id(block)):
            block["input"] = _input(output)
    return message if message["stop_reason"] else None


def _input(pieces: list[Any]) -> Any:
    """What a server that collects the pieces of an input says: the value, or the text where that is none."""
    if not all(type(piece) is str for piece in pieces):
        return pieces[-1]
    text = "".join(pieces)
    try:
        return json.loads(text)
    except ValueError:
        return text


_ITEMS = {
    "response.output_text.delta": ("message", "output_text", "text"),
    "response.refusal.delta": ("message", "refusal", "refusal"),
    "response.reasoning.delta": ("reasoning", "reasoning_text", "text"),
    "response.reasoning_text.delta": ("reasoning", "reasoning_text", "text"),
    "response.function_call_arguments.delta": ("function_call", "", ""),
}


def responses_answer(stream: bytes) -> Body | None:
    """The response that the last event of a stream holds, with the items of earlier events if it has none."""
    items: list[tuple[Any, Body]] = []
    for event, value in _events(stream) or ():
        kind = value.get("type") or event
        if kind == "error" or value.get("error"):
            return {"error": value.get("error") or value}
        if kind in ("response.output_item.added", "response.output_item.done"):
            _add_item(items, value, value["item"], ends=kind.endswith("done"))
        elif kind in _ITEMS:
            _add_piece(items, value, *_ITEMS[kind])
        elif kind == "response.output_text.done":
            if not any(item.get("content") for place, item in items if place == value.get("output_index")):
                _add_piece(items, {**value, "delta": value["text"]}, *_ITEMS["response.output_text.delta"])
        elif kind == "response.failed" or "output" in value.get("response", {}):
            response = {"object": "response", **value["response"]}
            if not response.get("output") and not response.get("error"):
                places = [place for place, _ in items if type(place) is int]
                ordered = sorted(items, key=lambda item: item[0]) if len(places) == len(items) else items
                response["output"] = [item for _, item in ordered]
            return response
    return None


def _add_item(items: list[tuple[Any, Body]], event: Body, item: Body, ends: bool) -> None:
    for place, known in items:
        same = place == event.get("output_index") and known["type"] == item["type"]
        if same and known.get("call_id") in (None, item.get("call_id")):
            if ends:
                known |= item
            return
    items.append((event.get("output_index"), {**item}))


def _add_piece(items: list[tuple[Any, Body]], event: Body, kind: str, part: str, field: str) -> None:
    places = [item for place, item in items if place == event.get("output_index") and item["type"] == kind]
    if not places:
        items.append((event.get("output_index"), {"type": kind}))
        places = [items[-1][1]]
    item = next((one for one in places if one.get("id") == event.get("item_id")), places[-1])
    if kind == "function_call":
        item["arguments"] = (item.get("arguments") or "") + event["delta"]
        return
    content = item["content"] = [dict(piece) for piece in item.get("content") or [{"type": part, field: ""}]]
    content[-1][field] += event["delta"]


def ollama_answer(stream: bytes) -> Body | None:
    """The answer that the lines of a stream make."""
    answer: Body = {}
    message: Body = {}
    decoder, text = json.JSONDecoder(), stream.decode()
    while text := text.strip():
        try:
            line, end = decoder.raw_decode(text)
        except ValueError:
            return None
        text = text[end:]
        if line.get("error"):
            return dict(line)
        answer |= line
        _join(message, line.get("message") or {})
    return {**answer, "message": message} if answer.get("done") else None


def _events(stream: bytes) -> list[tuple[str | None, Body]] | None:
    """The events with their names, or None if one of them is not JSON."""
    decoder = SseDecoder()
    found = []
    for frame in [*decoder.feed(stream), *decoder.end()]:
        if frame.data.strip() in (b"", b"[DONE]"):
            continue
        try:
            found.append((frame.event, json.loads(frame.data)))
        except ValueError:
            return None
    return found


WHOLE: dict[str, Callable[[bytes], Body | None]] = {
    "openai_chat": chat_answer,
    "openai_responses": responses_answer,
    "anthropic": anthropic_answer,
    "ollama": ollama_answer,
}
