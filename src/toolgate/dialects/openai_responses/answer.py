"""The Response object, its output items and its numbered events, as a client sees them, be they made here or relayed."""

from collections.abc import Iterable, Mapping
from typing import Any

from toolgate.conversation.errors import ToolgateError
from toolgate.conversation.media import data_url
from toolgate.conversation.message import (
    ApprovalRequest,
    Media,
    Opaque,
    Part,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
    plain_text,
)
from toolgate.conversation.request import ModelRequest, OutputFormat, Settings, ToolDef
from toolgate.conversation.seals import disclose, enclose
from toolgate.dialects.dialect import Reply
from toolgate.dialects.openai_responses.requests import (
    conversation_id,
    instructions,
    is_background,
    is_stored,
    previous_response_id,
)
from toolgate.dialects.openai_responses.tools import echo_tools, write_choice
from toolgate.dialects.openai_responses.words import NAME, SERVER_LABEL, failure_code
from toolgate.wire.jsontext import encode

DONE = b"data: [DONE]\n\n"
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
_MARKS = ("message", "continues")  # how our own parts carry the message they were in


class Teller:
    """Writes the events of one stream, numbered from 0 without gaps; what never changes in the Response is written once."""

    def __init__(self, response: Mapping[str, Any]) -> None:
        self.number = 0
        self._constant = encode(response)[:-1]

    def event(self, kind: str, fields: bytes) -> bytes:
        """An event with these fields, given as JSON without braces."""
        number, self.number = self.number, self.number + 1
        name = kind.encode()
        return b'event: %b\ndata: {"type":"%b","sequence_number":%d,%b}\n\n' % (name, name, number, fields)

    def around(self, kind: str, fields: bytes, after: bytes = b"") -> tuple[bytes, bytes]:
        """What stands around the text of a delta, up to its number."""
        before = b'event: %b\ndata: {"type":"%b",%b,"delta":' % (kind.encode(), kind.encode(), fields)
        return before, after + b',"sequence_number":'

    def started(self) -> bytes:
        """The two events that open a stream."""
        response = b'"response":' + self.response(_STARTING)
        return self.event("response.created", response) + self.event("response.in_progress", response)

    def response(self, changing: bytes) -> bytes:
        """The Response object with the fields that change, given as JSON without braces."""
        return b"%b,%b}" % (self._constant, changing)

    def failed(self, error: ToolgateError, output: bytes) -> bytes:
        """The events that tell of a failure, and the terminator: both forms of the error, for clients of either."""
        told = error_object(error)
        flat = {"code": error.code, "message": error.message, "param": error.param, "error": told}
        failure = {"code": failure_code(error), "message": error.message}
        changing = (
            b'"status":"failed","completed_at":null,"error":%b,"incomplete_details":null,"output":[%b],"usage":null'
        )
        response = self.response(changing % (encode(failure), output))
        return self.event("error", bare(flat)) + self.event("response.failed", b'"response":' + response) + DONE


def completed_at(reply: Reply, status: str) -> int | None:
    """The second in which the answer was complete, if it is."""
    return reply.created + int(reply.times()[1]) if status == "completed" else None


def bare(fields: Mapping[str, Any]) -> bytes:
    """An object as JSON without its braces."""
    return encode(fields)[1:-1]


def error_object(error: ToolgateError) -> dict[str, Any]:
    """The error in OpenAI's form."""
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"message": error.message, "type": kind, "param": error.param, "code": error.code}


def describe(request: ModelRequest, reply: Reply) -> dict[str, Any]:
    """The fields of a Response that are known before the answer: the request, repeated, every required field present."""
    own, settings, choice = request.extra.get(NAME, {}), request.settings, request.tool_choice
    conversation = conversation_id(request)
    return {
        "id": reply.id,
        "object": "response",
        "created_at": reply.created,
        "model": reply.model,
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
        "reasoning": _reasoning_wish(settings, own),
        "safety_identifier": own.get("safety_identifier"),
        "service_tier": own.get("service_tier") if own.get("service_tier") not in (None, "auto") else "default",
        "store": is_stored(request),
        "temperature": 1.0 if settings.temperature is None else settings.temperature,
        "text": {"format": _format(settings.output), **own.get("text", {})},
        "tool_choice": _choice(request, own.get("tool_choice")),
        "tools": echo_tools(request.tools),
        "top_logprobs": own.get("top_logprobs") or 0,
        "top_p": 1.0 if settings.top_p is None else settings.top_p,
        "truncation": own.get("truncation") or "disabled",
        "user": settings.user,
    }


def _reasoning_wish(settings: Settings, own: Mapping[str, Any]) -> dict[str, Any]:
    thinking = settings.thinking
    return {
        "effort": thinking.effort if thinking else None,
        "summary": thinking.summary if thinking else None,
        **own.get("reasoning", {}),
    }


def _format(output: OutputFormat | None) -> dict[str, Any]:
    if output is None:
        return {"type": "text"}
    if output.schema is None:
        return {"type": "json_object"}
    wish = {"name": output.name, "description": output.description, "schema": output.schema}
    return {"type": "json_schema", **wish, "strict": output.strict or False}


def _choice(request: ModelRequest, said: Any) -> Any:
    match said:
        case {"type": "allowed_tools", "tools": _}:
            return {"mode": "auto", **said}
        case {"type": str(kind)} if kind not in ("function", "custom", "allowed_tools"):
            return said
        case _:
            return "auto" if request.tool_choice is None else write_choice(request.tool_choice, request.tools)


def namespaces(tools: Iterable[ToolDef]) -> dict[str, str]:
    """The namespace of each tool that has one, where its name alone tells which tool it is."""
    found: dict[str, set[str | None]] = {}
    for tool in tools:
        found.setdefault(tool.name, set()).add(tool.namespace)
    return {name: only for name, places in found.items() if len(places) == 1 and (only := next(iter(places)))}


def write_item(part: Part, id: str, status: str, spaces: Mapping[str, str]) -> dict[str, Any]:
    """A part of an answer as an output item."""
    own = _unmarked(part)
    match part:
        case Text() | Refusal():
            item = {"id": id, "type": "message", "status": status, "role": "assistant", "content": [write_spoken(part)]}
            return {**item, **part.extra.get(NAME, {}).get("message", {})}
        case Reasoning():
            return _reasoning(part, id, status)
        case ToolCall(executor="client"):
            return _call(part, id, status, {**({"namespace": spaces[part.name]} if part.name in spaces else {}), **own})
        case ToolCall():
            item = {"id": id, "type": "mcp_call", "status": status, "server_label": SERVER_LABEL, "name": part.name}
            asked = {"approval_request_id": part.approval} if part.approval else {}
            return {**item, "arguments": part.arguments, **asked, "output": None, "error": None}
        case ApprovalRequest(call=call):
            item = {"id": id, "type": "mcp_approval_request", "server_label": SERVER_LABEL, "name": call.name}
            return {**item, "arguments": call.arguments}
        case Media(kind="image", data=str(data)):
            return {"type": "image_generation_call", **own, "id": own.get("id") or id, "status": status, "result": data}
        case Opaque(value=value):
            return {**value, "id": value.get("id") or id}
        case _:
            shown = Text(part.url or data_url(part.mime, part.data or "") if isinstance(part, Media) else "")
            return write_item(shown, id, status, spaces)


def write_spoken(part: Text | Refusal) -> dict[str, Any]:
    """Text or a refusal as a content part."""
    own = _unmarked(part)
    if isinstance(part, Refusal):
        return {"type": "refusal", "refusal": part.text, **own}
    return {"type": "output_text", "annotations": [], "logprobs": part.logprobs, "text": part.text, **own}


def opened(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item as it is announced: what deltas will tell is still empty."""
    empty: dict[str, Any] = {"content": [], "summary": [], "arguments": "", "input": "", "result": None, "output": None}
    cleared = {name: empty[name] for name in item if name in empty and item["type"] in _TOLD_BY_DELTAS}
    return {**item, **cleared, **({"status": "in_progress"} if "status" in item else {})}


_TOLD_BY_DELTAS = frozenset(
    {"message", "reasoning", "function_call", "custom_tool_call", "mcp_call", "image_generation_call"}
)


def answered(item: Mapping[str, Any], result: ToolResult | None) -> dict[str, Any]:
    """A call that was run here, with its result if there is one."""
    if result is None:
        return {**item, "status": "incomplete"}
    text = plain_text(result.content)
    if result.is_error:
        error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}
        return {**item, "status": "failed", "error": error}
    return {**item, "status": "completed", "output": text}


def _unmarked(part: Part) -> dict[str, Any]:
    if isinstance(part, (Opaque, ApprovalRequest)) or not part.extra:
        return {}
    return {name: value for name, value in part.extra.get(NAME, {}).items() if name not in _MARKS}


def _reasoning(part: Reasoning, id: str, status: str) -> dict[str, Any]:
    """Reasoning is shown as a summary, which is what clients display; its seal travels where they keep such things."""
    item: dict[str, Any] = {"id": id, "type": "reasoning", "status": status, "summary": []}
    if part.text:
        item["summary"] = [{"type": "summary_text", "text": part.text}]
    if part.seal is not None:
        proof = part.seal.fields.get("encrypted_content") if part.seal.dialect == NAME else None
        # An envelope from another gateway is its proof, not ours to open when it comes back.
        item["encrypted_content"] = proof if proof and not disclose(proof) else enclose(part.seal)
    return item


def _call(call: ToolCall, id: str, status: str, own: Mapping[str, Any]) -> dict[str, Any]:
    kind, field = ("custom_tool_call", "input") if call.freeform else ("function_call", "arguments")
    item = {"id": id, "type": kind, "status": status, "call_id": call.id, "name": call.name, field: call.arguments}
    return {**item, **own}
