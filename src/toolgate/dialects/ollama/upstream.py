"""The side of Ollama that faces a model: requests written, answers and errors read.

Streams are read in `stream.py` and passed on in `relay.py`. A client's `/api/generate` request is written as one again, for
an Ollama upstream understands of it what no conversation can say.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from toolgate.conversation import ids
from toolgate.conversation.errors import Garbled, InvalidRequest, UpstreamFault
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.fold import fold
from toolgate.conversation.message import (
    REASONING_LOST,
    Media,
    Message,
    Opaque,
    Part,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
    spoken_content,
)
from toolgate.conversation.request import (
    ModelRequest,
    OutputFormat,
    Settings,
    Thinking,
    ToolChoice,
    ToolDef,
    described,
    unspoken,
)
from toolgate.conversation.stock import names_of
from toolgate.dialects.dialect import Decoder, Quirks, Relay, Reply
from toolgate.dialects.ollama.relay import Mender, OllamaRelay
from toolgate.dialects.ollama.stream import Line, OllamaDecoder, line_of
from toolgate.dialects.ollama.words import NAME, PROMPT, read_usage, write_call
from toolgate.dialects.refusals import read_refusal

__all__ = [
    "decode_error",
    "decode_response",
    "decoder",
    "encode_request",
    "headers",
    "path",
    "relay",
    "relay_response",
    "usage_of",
]

_EMPTY_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {}}
_IMAGES_FOLLOW = "[The tool returned the following attachment.]"
_NOTHING: Mapping[str, Any] = {"role": "assistant", "content": ""}
_UNSPOKEN = (
    "user",
    "verbosity",
    "service_tier",
    "cache_key",
    "cache_retention",
    "safety_identifier",
    "metadata",
)
_EFFORTS: Mapping[str, bool | str] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "max",
    "max": "max",
}


def path(request: ModelRequest) -> str:
    """Where to post."""
    return "/api/generate" if _is_prompt(request) else "/api/chat"


def headers(api_key: str | None) -> dict[str, str]:
    """The credentials of this dialect."""
    return {"authorization": f"Bearer {api_key}"} if api_key else {}


def decoder(request: ModelRequest) -> Decoder:
    """A decoder for the streamed answer to this request."""
    return _decoder(request)


def relay(request: ModelRequest, reply: Reply) -> Relay:
    """A relay for the streamed answer to this request."""
    return OllamaRelay(_decoder(request), request, reply)


def usage_of(body: Any) -> Usage | None:
    """What a whole answer says that it used."""
    return read_usage(body) if type(body) is dict else None


def decode_response(body: Any, request: ModelRequest) -> ModelResponse:
    """A whole answer: it is read as if it were the only line of a stream."""
    return _read(_whole(body), request)


def relay_response(body: Any, response: ModelResponse, request: ModelRequest, reply: Reply) -> dict[str, Any]:
    """A whole answer as an Ollama client should see it."""
    told = Mender(request, reply).mend(_whole(body))
    if response.usage is not None and usage_of(body) is None:
        told |= {"prompt_eval_count": response.usage.input, "eval_count": response.usage.output}
    return told


def decode_error(status: int, headers: Mapping[str, str], body: bytes) -> UpstreamFault:
    """The failure that an answer with a bad status tells of."""
    return read_refusal(status, headers, body)


def _decoder(request: ModelRequest) -> OllamaDecoder:
    return OllamaDecoder(names_of(request.tools))


def _whole(body: Any) -> Line:
    line = line_of(body)
    if "message" not in line.fields and "response" not in line.fields:
        raise Garbled("The upstream's answer holds no message.")
    return replace(line, fields={"done": True, **line.fields})


def _read(line: Line, request: ModelRequest) -> ModelResponse:
    decoder = _decoder(request)
    return fold([*decoder.read(line), *decoder.end()])


def encode_request(request: ModelRequest, quirks: Quirks) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The body to post, and what could not be said in this dialect."""
    if request.settings.choices > 1:
        raise InvalidRequest("The upstream gives one answer only: n must be 1.", param="n", code="unsupported_value")
    dropped: list[str] = []
    own = dict(request.extra.get(NAME, {}))
    special = own.pop(PROMPT, {})
    body: dict[str, Any] = {"model": request.model}
    if _is_prompt(request):
        body |= {**_prompt(request.messages, dropped), **special}
    else:
        dropped += [f"{name} has no place in a conversation" for name in special]
        body["messages"] = list(_messages(request.messages, quirks, dropped))
        if tools := _tools(request, dropped):
            body["tools"] = tools
    body |= _settings(request.settings, own.pop("options", {}), quirks, dropped)
    body |= own
    body["stream"] = request.stream
    for field in quirks.unsupported:
        if body.pop(field, None) is not None or body.get("options", {}).pop(field, None) is not None:
            dropped.append(f"{field} is not supported by the upstream")
    return body, tuple(dropped)


def _is_prompt(request: ModelRequest) -> bool:
    """Whether this is still the prompt that a client posted to `/api/generate`."""
    roles = [message.role for message in request.messages]
    return PROMPT in request.extra.get(NAME, {}) and roles in (["user"], ["system", "user"]) and not request.tools


def _prompt(messages: tuple[Message, ...], dropped: list[str]) -> dict[str, Any]:
    *before, last = [_spoken(message.parts, dropped) for message in messages]
    fields = {"prompt": last.pop("content"), **last}
    return {**fields, "system": before[0]["content"]} if before else fields


def _messages(messages: tuple[Message, ...], quirks: Quirks, dropped: list[str]) -> Iterator[dict[str, Any]]:
    """Pictures out of tool results follow the last result of a turn, as the user's."""
    names = {part.id: part.name for message in messages for part in message.parts if isinstance(part, ToolCall)}
    attached: list[str] = []
    for message in messages:
        own = dict(message.extra.get(NAME, {}))
        if message.role == "tool":
            for part in message.parts:
                if isinstance(part, ToolResult):
                    yield _result(part, names.get(part.call_id), quirks, attached, dropped) | own
            continue
        if attached:
            yield _attachment(attached)
            attached = []
        if message.role == "assistant":
            written = _assistant(message.parts, quirks, dropped) | own
            if written != _NOTHING or not _is_foreign(message):
                yield written
        else:
            yield from _told(message, own, dropped)
    if attached:
        yield _attachment(attached)


def _is_foreign(message: Message) -> bool:
    """Whether a turn holds only what other dialects know: chat templates stumble over an answer without words."""
    return bool(message.parts) and all(isinstance(part, Opaque) for part in message.parts)


def _told(message: Message, own: dict[str, Any], dropped: list[str]) -> Iterator[dict[str, Any]]:
    """A message of the system or the user; one of a role that only Ollama knows goes back as it came."""
    match message.parts:
        case (Opaque(dialect, value),) if dialect == NAME:
            yield dict(value)
        case parts:
            yield {"role": message.role, **_spoken(parts, dropped), **own}


def _attachment(images: list[str]) -> dict[str, Any]:
    return {"role": "user", "content": _IMAGES_FOLLOW, "images": images}


def _spoken(parts: tuple[Part, ...], dropped: list[str]) -> dict[str, Any]:
    """A message has one text, so several become its lines, and pictures stand beside it."""
    texts, images = [], []
    for part in parts:
        match part:
            case Text(text) | Refusal(text):
                texts.append(text)
            case Media(kind="image", data=str(data)):
                images.append(data)
                if part.detail not in (None, "auto"):
                    dropped.append("detail of an image has no place here")
            case Media(kind):
                dropped.append(
                    f"{kind} by {'url' if part.url else 'value' if part.data else 'file id'} has no place here"
                )
            case Opaque(dialect, value):
                dropped.append(f"a part of type {value.get('type')!r} is known to {dialect} only")
            case Reasoning() | ToolCall() | ToolResult():
                pass
    spoken: dict[str, Any] = {"content": "\n".join(texts)}
    return {**spoken, "images": images} if images else spoken


def _assistant(parts: tuple[Part, ...], quirks: Quirks, dropped: list[str]) -> dict[str, Any]:
    message = {"role": "assistant", **_spoken(parts, dropped)}
    # Reasoning that another provider sealed means nothing to this one.
    thoughts = [part for part in parts if isinstance(part, Reasoning) and (not part.seal or part.seal.dialect == NAME)]
    if REASONING_LOST not in dropped and any(isinstance(part, Reasoning) and part not in thoughts for part in parts):
        dropped.append(REASONING_LOST)
    if thought := "\n".join([part.text for part in thoughts if part.text]):
        message["thinking"] = thought
    calls = [part for part in parts if isinstance(part, ToolCall)]
    if calls:
        message["tool_calls"] = [write_call(call, _id(call.id, quirks), index) for index, call in enumerate(calls)]
    return message


def _result(
    part: ToolResult, name: str | None, quirks: Quirks, attached: list[str], dropped: list[str]
) -> dict[str, Any]:
    message = {"role": "tool", **_spoken(spoken_content(part), dropped), "tool_call_id": _id(part.call_id, quirks)}
    if not quirks.images_in_tool_results and "images" in message:
        attached += message.pop("images")
        message["content"] = message["content"] or _IMAGES_FOLLOW
    if part.name or name:
        message["tool_name"] = part.name or name
    return message


def _id(id: str, quirks: Quirks) -> str:
    """The id as this upstream knows or accepts it."""
    id = ids.original(id)
    return ids.fitted(id, quirks.call_id_pattern) if quirks.call_id_pattern else id


def _tools(request: ModelRequest, dropped: list[str]) -> list[dict[str, Any]]:
    """The tools on offer: Ollama has no choice among them, so a choice is made by what is left out."""
    choice = request.tool_choice or ToolChoice()
    if choice.mode == "none":
        return []
    if choice.mode == "required":
        dropped.append("the model cannot be made to call a tool")
    if choice.parallel is False:
        dropped.append("the model cannot be kept from calling several tools at once")
    if any(tool.strict for tool in request.tools):
        dropped.append("strict schemas are not enforced")
    offered = [tool for tool in request.tools if not choice.names or tool.name in choice.names]
    return [written for tool in offered if (written := _tool(tool, dropped))]


def _tool(tool: ToolDef, dropped: list[str]) -> dict[str, Any] | None:
    if tool.kind != "function":
        dropped.append(f"the {tool.kind} tool {tool.name!r} has no place here")
        return None
    own = dict(tool.extra.get(NAME, {}))
    function: dict[str, Any] = {"name": tool.name, **own.pop("function", {})}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema if tool.input_schema is not None else _EMPTY_SCHEMA
    return {"type": "function", "function": function, **own}


def _settings(settings: Settings, beside: Mapping[str, Any], quirks: Quirks, dropped: list[str]) -> dict[str, Any]:
    options = {
        "num_predict": settings.max_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        "stop": list(settings.stop) or None,
        "seed": settings.seed,
        "frequency_penalty": settings.frequency_penalty,
        "presence_penalty": settings.presence_penalty,
    }
    said = {**beside, **{name: value for name, value in options.items() if value is not None}}
    fields: dict[str, Any] = {"options": said} if said else {}
    if settings.output:
        fields |= _format(settings.output, quirks, dropped)
    if settings.thinking:
        fields["think"] = _think(settings.thinking)
    if settings.logprobs or settings.top_logprobs:
        fields["logprobs"] = True
    if settings.top_logprobs:
        fields["top_logprobs"] = settings.top_logprobs
    dropped += unspoken(settings, _UNSPOKEN)
    return fields


def _format(output: OutputFormat, quirks: Quirks, dropped: list[str]) -> dict[str, Any]:
    if quirks.output_format == "none":
        dropped.append("the upstream takes no output format")
        return {}
    if output.schema is None or quirks.output_format == "json":
        if output.schema is not None:
            dropped.append("the upstream takes no output schema: any JSON object was asked for")
        return {"format": "json"}
    return {"format": described(output)}


def _think(thinking: Thinking) -> bool | str:
    """A token budget becomes the nearest effort word, where a client gave only the budget."""
    if not thinking.enabled:
        return False
    if thinking.effort:
        return _EFFORTS.get(thinking.effort, True)
    if thinking.budget is None:
        return True
    return "low" if thinking.budget <= 2048 else "medium" if thinking.budget <= 12288 else "high"
