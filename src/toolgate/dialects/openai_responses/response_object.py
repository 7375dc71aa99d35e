"""Encode the Response object, its output items and its numbered events, for answers that are translated or relayed."""

from collections.abc import Iterable, Mapping
from typing import Any

from toolgate.conversation.data_urls import data_url
from toolgate.conversation.errors import ToolgateError
from toolgate.conversation.message import (
    ApprovalRequestPart,
    Media,
    Opaque,
    Part,
    Reasoning,
    RefusalPart,
    Text,
    ToolCall,
    ToolResult,
    plain_text,
)
from toolgate.conversation.reasoning_envelope import unwrap_signature, wrap_signature
from toolgate.conversation.request import ModelRequest, ToolDef
from toolgate.dialects.dialect import AnswerMetadata
from toolgate.dialects.openai_responses.requests import (
    conversation_id,
    instructions,
    is_background,
    is_stored,
    previous_response_id,
)
from toolgate.dialects.openai_responses.shared_codec import NAME, SERVER_LABEL, failure_code
from toolgate.dialects.openai_responses.tools import echo_tools, write_choice
from toolgate.wire.jsontext import encode

DONE = b"data: [DONE]\n\n"
# The fields that change while an answer is made. Typed clients require all of them, also in `response.created`.
UNFINISHED: Mapping[str, Any] = {
    "status": "in_progress",
    "completed_at": None,
    "error": None,
    "incomplete_details": None,
    "output": [],
    "usage": None,
}
_STARTING = encode(UNFINISHED)[1:-1]
_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_MESSAGE_MARKS = ("message", "continues")  # keys in the extra of a part that are fields of the message it was in


class ResponseEventWriter:
    """Encodes the events of one stream, numbered from 0 without gaps; constant fields of the Response are encoded once."""

    def __init__(self, response: Mapping[str, Any]) -> None:
        self.number = 0
        self._constant = encode(response)[:-1]

    def event(self, kind: str, fields: bytes) -> bytes:
        """Encode an event with these fields, given as JSON without braces."""
        number, self.number = self.number, self.number + 1
        name = kind.encode()
        return b'event: %b\ndata: {"type":"%b","sequence_number":%d,%b}\n\n' % (name, name, number, fields)

    def around(self, kind: str, fields: bytes, after: bytes = b"") -> tuple[bytes, bytes]:
        """Encode the bytes before and after the text of a delta, up to its sequence number."""
        before = b'event: %b\ndata: {"type":"%b",%b,"delta":' % (kind.encode(), kind.encode(), fields)
        return before, after + b',"sequence_number":'

    def started(self) -> bytes:
        """Encode the two events that open a stream."""
        response = b'"response":' + self.response(_STARTING)
        return self.event("response.created", response) + self.event("response.in_progress", response)

    def response(self, changing: bytes) -> bytes:
        """Encode the Response object with the fields that change, given as JSON without braces."""
        return b"%b,%b}" % (self._constant, changing)

    def failed(self, error: ToolgateError, output: bytes) -> bytes:
        """Encode the error and the terminator: as both kinds of event that clients read."""
        # The fields of the event are flat in the API, but the SDKs raise only for an object under `error`.
        flat = {"code": error.code, "message": error.message, "param": error.param, "error": error_object(error)}
        failure = {"code": failure_code(error), "message": error.message}
        changing = (
            b'"status":"failed","completed_at":null,"error":%b,"incomplete_details":null,"output":[%b],"usage":null'
        )
        response = self.response(changing % (encode(failure), output))
        event = self.event("error", encode_members(flat))
        return event + self.event("response.failed", b'"response":' + response) + DONE


def completed_at(metadata: AnswerMetadata, status: str) -> int | None:
    """Return the second in which the answer was completed, if it was."""
    return metadata.created + int(metadata.times()[1]) if status == "completed" else None


def encode_members(fields: Mapping[str, Any]) -> bytes:
    """Encode an object as JSON without its braces."""
    return encode(fields)[1:-1]


def error_object(error: ToolgateError) -> dict[str, Any]:
    """Return the error in OpenAI's form."""
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"message": error.message, "type": kind, "param": error.param, "code": error.code}


def describe(request: ModelRequest, metadata: AnswerMetadata) -> dict[str, Any]:
    """Return the fields of a Response that are known before the answer: those of the request, all required ones present."""
    own, settings, choice = request.extra.get(NAME, {}), request.settings, request.tool_choice
    conversation = conversation_id(request)
    output = settings.output
    form: dict[str, Any] = {"type": "text"}
    if output is not None and output.schema is None:
        form = {"type": "json_object"}
    elif output is not None:
        schema = {"name": output.name, "description": output.description, "schema": output.schema}
        form = {"type": "json_schema", **schema, "strict": output.strict or False}
    return {
        "id": metadata.id,
        "object": "response",
        "created_at": metadata.created,
        "model": metadata.model,
        "background": is_background(request),
        **({"conversation": {"id": conversation}} if conversation else {}),
        "frequency_penalty": settings.frequency_penalty or 0.0,
        "instructions": instructions(request),
        "max_output_tokens": settings.max_tokens,
        "max_tool_calls": own.get("max_tool_calls"),
        "metadata": own.get("metadata") or {},
        "parallel_tool_calls": choice is None or choice.parallel is not False,
        "presence_penalty": settings.presence_penalty or 0.0,
        "previous_response_id": previous_response_id(request),
        "prompt_cache_key": own.get("prompt_cache_key"),
        "reasoning": {
            "effort": settings.thinking.effort if settings.thinking else None,
            "summary": settings.thinking.summary if settings.thinking else None,
            **own.get("reasoning", {}),
        },
        "safety_identifier": own.get("safety_identifier"),
        "service_tier": own.get("service_tier") if own.get("service_tier") not in (None, "auto") else "default",
        "store": is_stored(request),
        "temperature": 1.0 if settings.temperature is None else settings.temperature,
        "text": {"format": form, **own.get("text", {})},
        "tool_choice": _echo_choice(request, own.get("tool_choice")),
        "tools": echo_tools(request.tools),
        "top_logprobs": own.get("top_logprobs") or 0,
        "top_p": 1.0 if settings.top_p is None else settings.top_p,
        "truncation": own.get("truncation") or "disabled",
        "user": settings.user,
    }


def _echo_choice(request: ModelRequest, sent: Any) -> Any:
    match sent:
        case {"type": "allowed_tools", "tools": _}:
            return {"mode": "auto", **sent}
        # A hosted tool, which was decoded as `auto`.
        case {"type": str(kind)} if kind not in ("function", "custom", "allowed_tools"):
            return sent
        case _:
            return "auto" if request.tool_choice is None else write_choice(request.tool_choice, request.tools)


def namespaces(tools: Iterable[ToolDef]) -> dict[str, str]:
    """Return the namespace of each tool that has one, where its name occurs in one namespace only."""
    # A call has no more than the tool's name, so that of a name in two namespaces cannot be known.
    found: dict[str, set[str | None]] = {}
    for tool in tools:
        found.setdefault(tool.name, set()).add(tool.namespace)
    return {name: only for name, spaces in found.items() if len(spaces) == 1 and (only := next(iter(spaces)))}


def write_item(part: Part, id: str, status: str, spaces: Mapping[str, str]) -> dict[str, Any]:
    """Return a part of an answer as an output item."""
    own = _own_fields(part)
    match part:
        case Text() | RefusalPart():
            content = [write_content(part)]
            item = {"id": id, "type": "message", "status": status, "role": "assistant", "content": content}
            return {**item, **part.extra.get(NAME, {}).get("message", {})}
        case Reasoning():
            return _write_reasoning(part, id, status)
        case ToolCall(executor="client"):
            space = {"namespace": spaces[part.name]} if part.name in spaces else {}
            kind, field = ("custom_tool_call", "input") if part.freeform else ("function_call", "arguments")
            item = {"id": id, "type": kind, "status": status, "call_id": part.id, "name": part.name}
            return {**item, field: part.arguments, **space, **own}
        case ToolCall():
            item = {"id": id, "type": "mcp_call", "status": status, "server_label": SERVER_LABEL, "name": part.name}
            approval = {"approval_request_id": part.approval} if part.approval else {}
            return {**item, "arguments": part.arguments, **approval, "output": None, "error": None}
        case ApprovalRequestPart(call=call):
            item = {"id": id, "type": "mcp_approval_request", "server_label": SERVER_LABEL, "name": call.name}
            return {**item, "arguments": call.arguments}
        case Media(kind="image", data=str(data)):
            return {"type": "image_generation_call", **own, "id": own.get("id") or id, "status": status, "result": data}
        case Opaque(value=value):
            return {**value, "id": value.get("id") or id}
        case _:  # media that the API has no item for
            link = Text(part.url or data_url(part.mime, part.data or "") if isinstance(part, Media) else "")
            return write_item(link, id, status, spaces)


def write_content(part: Text | RefusalPart) -> dict[str, Any]:
    """Return text or a refusal as a content part."""
    own = _own_fields(part)
    if isinstance(part, RefusalPart):
        return {"type": "refusal", "refusal": part.text, **own}
    return {"type": "output_text", "annotations": [], "logprobs": part.logprobs, "text": part.text, **own}


_STREAMED_ITEMS = frozenset(
    {"message", "reasoning", "function_call", "custom_tool_call", "mcp_call", "image_generation_call"}
)
_EMPTY_FIELDS: Mapping[str, Any] = {
    "content": [],
    "summary": [],
    "arguments": "",
    "input": "",
    "result": None,
    "output": None,
}


def opening_item(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item as `output_item.added` shows it: the fields that deltas will fill are still empty."""
    # Items of other types have no deltas: they are complete from the start.
    empty = {name: _EMPTY_FIELDS[name] for name in item if name in _EMPTY_FIELDS and item["type"] in _STREAMED_ITEMS}
    return {**item, **empty, **({"status": "in_progress"} if "status" in item else {})}


def with_result(item: Mapping[str, Any], result: ToolResult | None, *, images: bool = False) -> dict[str, Any]:
    """Return the item of a call that was run here, with its result if there is one.

    The API has a text alone; with `images` those of the result are in a field of our own.
    """
    if result is None:
        return {**item, "status": "incomplete"}
    text = plain_text(result.content)
    if result.is_error:
        error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}
        return {**item, "status": "failed", "error": error}
    shown = [
        data_url(part.mime or "image/png", part.data)
        for part in result.content
        if images and isinstance(part, Media) and part.kind == "image" and part.data
    ]
    return {**item, "status": "completed", "output": text, **({"toolgate": {"images": shown}} if shown else {})}


def _own_fields(part: Part) -> dict[str, Any]:
    if isinstance(part, (Opaque, ApprovalRequestPart)) or not part.extra:
        return {}
    return {name: value for name, value in part.extra.get(NAME, {}).items() if name not in _MESSAGE_MARKS}


def _write_reasoning(part: Reasoning, id: str, status: str) -> dict[str, Any]:
    # Reasoning goes into the summary, because that is what clients display.
    item: dict[str, Any] = {"id": id, "type": "reasoning", "status": status, "summary": []}
    if part.text:
        item["summary"] = [{"type": "summary_text", "text": part.text}]
    if part.signature is not None:
        encrypted = part.signature.fields.get("encrypted_content") if part.signature.dialect == NAME else None
        # An upstream's signature that is an envelope comes from another gateway: it is wrapped once more, so that only
        # our own envelope is opened when it is sent back.
        is_own = type(encrypted) is str and encrypted and not unwrap_signature(encrypted)
        item["encrypted_content"] = encrypted if is_own else wrap_signature(part.signature)
    return item
