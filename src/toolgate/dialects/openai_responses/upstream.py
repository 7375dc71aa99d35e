"""The side of Responses that faces a model: requests written, answers and errors read.

Messages are written in `history.py`, tools in `tools.py`; streams are read in `stream.py` and passed on in `relay.py`.
"""

from collections.abc import Mapping
from typing import Any

from toolgate.conversation.errors import Garbled, InvalidRequest, UpstreamFault
from toolgate.conversation.events import ModelResponse
from toolgate.conversation.fold import fold
from toolgate.conversation.message import Reasoning
from toolgate.conversation.request import ModelRequest, OutputFormat, Settings, Thinking, effort_of, unspoken
from toolgate.conversation.stock import names_of
from toolgate.dialects.dialect import Decoder, Quirks, Relay, Reply
from toolgate.dialects.openai_responses.history import InputWriter
from toolgate.dialects.openai_responses.relay import ResponsesRelay, mend_response
from toolgate.dialects.openai_responses.stream import ResponsesDecoder, usage_of
from toolgate.dialects.openai_responses.tools import read_choice, write_choice, write_tools
from toolgate.dialects.openai_responses.words import LOGPROBS, NAME
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

LEAST_OUTPUT = 16
_SEALED = "reasoning.encrypted_content"
_OURS = frozenset(
    {"store", "previous_response_id", "conversation", "background", "include", "tool_choice", "text", "reasoning"}
)
_UNSPOKEN = ("top_k", "stop", "seed")


def path(request: ModelRequest) -> str:
    """Where to post."""
    return "/responses"


def headers(api_key: str | None) -> dict[str, str]:
    """The credentials of this dialect."""
    return {"authorization": f"Bearer {api_key}"} if api_key else {}


def decoder(request: ModelRequest) -> Decoder:
    """A decoder for the streamed answer to this request."""
    return ResponsesDecoder(names_of(request.tools))


def relay(request: ModelRequest, reply: Reply) -> Relay:
    """A relay for the streamed answer to this request."""
    return ResponsesRelay(request, reply)


def decode_response(body: Any, request: ModelRequest) -> ModelResponse:
    """A whole answer: it is read as a stream that tells nothing before its last event."""
    if type(body) is not dict:
        raise Garbled("The upstream's answer is not an object.")
    decoder = ResponsesDecoder(names_of(request.tools))
    return fold(decoder.read_whole(body))


def relay_response(body: Any, response: ModelResponse, request: ModelRequest, reply: Reply) -> dict[str, Any]:
    """A whole answer as a Responses client should see it."""
    return mend_response(body, response, request, reply)


def decode_error(status: int, headers: Mapping[str, str], body: bytes) -> UpstreamFault:
    """The failure that an answer with a bad status tells of."""
    return read_refusal(status, headers, body)


def encode_request(request: ModelRequest, quirks: Quirks) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The body to post, and what could not be said in this dialect."""
    if request.settings.choices > 1:
        raise InvalidRequest("n must be 1: the API behind this model gives one answer at a time.", param="n")
    dropped: list[str] = []
    own = request.extra.get(NAME, {})
    # We keep responses ourselves, so an upstream keeps one only for a client that asks for it in so many words.
    stores = own.get("store") is True
    writer = InputWriter(request, quirks, dropped)
    items = writer.items(request.messages)
    body: dict[str, Any] = {"model": request.model}
    if writer.instructions is not None:
        body["instructions"] = writer.instructions
    body |= {"input": items, "store": stores, **_include(request, own), **_tools(request, own, dropped)}
    body |= _settings(request, own, quirks, dropped)
    if request.stream:
        body["stream"] = True
    body |= {name: value for name, value in own.items() if name not in _OURS}
    if not request.stream:
        body.pop("stream_options", None)
    for field in quirks.unsupported:
        if body.pop(field, None) is not None:
            dropped.append(f"{field} is not supported by the upstream")
    return body, tuple(dropped)


def _include(request: ModelRequest, own: Mapping[str, Any]) -> dict[str, Any]:
    """What the client wants included, and the proof of reasoning where the model seems to reason.

    It is not asked for in every request, because models that do not reason refuse a request that asks for it.
    """
    asked = own.get("include")
    wanted = [name for name in asked if name != _SEALED] if type(asked) is list else []
    if (type(asked) is list and _SEALED in asked) or _reasons(request):
        wanted.append(_SEALED)
    if request.settings.logprobs and LOGPROBS not in wanted:
        wanted.append(LOGPROBS)
    return {"include": wanted} if wanted else {}


def _reasons(request: ModelRequest) -> bool:
    thinking = request.settings.thinking
    if thinking is not None:
        return thinking.enabled
    return any(
        isinstance(part, Reasoning) and part.seal is not None and part.seal.dialect == NAME
        for message in request.messages
        for part in message.parts
    )


def _tools(request: ModelRequest, own: Mapping[str, Any], dropped: list[str]) -> dict[str, Any]:
    tools, choice = write_tools(request.tools, loose=request.dialect != NAME, dropped=dropped), request.tool_choice
    if not tools:
        return {}
    fields: dict[str, Any] = {"tools": tools}
    if choice is None:
        return fields
    said = own.get("tool_choice")
    unchanged = said is not None and read_choice(said, choice.parallel) == choice
    fields["tool_choice"] = said if unchanged else write_choice(choice, request.tools)
    if choice.parallel is not None and choice.mode != "none":
        fields["parallel_tool_calls"] = choice.parallel
    return fields


def _settings(request: ModelRequest, own: Mapping[str, Any], quirks: Quirks, dropped: list[str]) -> dict[str, Any]:
    settings = request.settings
    fields = {
        "max_output_tokens": _limit(settings, dropped),
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "text": {**_text(settings, quirks, dropped), **own.get("text", {})} or None,
        "reasoning": {**_reasoning(settings.thinking), **own.get("reasoning", {})} or None,
        "user": settings.user,
        "service_tier": settings.service_tier,
        "prompt_cache_key": settings.cache_key,
        "prompt_cache_retention": settings.cache_retention,
        "safety_identifier": settings.safety_identifier,
        "metadata": settings.metadata,
        "top_logprobs": settings.top_logprobs,
        **_penalties(request, dropped),
    }
    dropped += unspoken(settings, _UNSPOKEN)
    return {name: value for name, value in fields.items() if value is not None}


def _limit(settings: Settings, dropped: list[str]) -> int | None:
    limit = settings.max_tokens
    if limit is None or limit >= LEAST_OUTPUT:
        return limit
    dropped.append(f"the limit of {limit} tokens was raised to {LEAST_OUTPUT}, the least that the Responses API takes")
    return LEAST_OUTPUT


def _penalties(request: ModelRequest, dropped: list[str]) -> dict[str, Any]:
    """Penalties are in the open specification but not in OpenAI's, so only this dialect's clients pass them on."""
    settings = request.settings
    penalties = {"frequency_penalty": settings.frequency_penalty, "presence_penalty": settings.presence_penalty}
    if request.dialect == NAME:
        return penalties
    dropped += unspoken(settings, tuple(penalties))
    return {}


def _reasoning(thinking: Thinking | None) -> dict[str, Any]:
    if thinking is None:
        return {}
    fields = {"effort": effort_of(thinking), "summary": thinking.summary}
    return {name: value for name, value in fields.items() if value is not None}


def _text(settings: Settings, quirks: Quirks, dropped: list[str]) -> dict[str, Any]:
    form = _format(settings.output, quirks, dropped)
    return form if settings.verbosity is None else {**form, "verbosity": settings.verbosity}


def _format(output: OutputFormat | None, quirks: Quirks, dropped: list[str]) -> dict[str, Any]:
    if output is None:
        return {}
    if quirks.output_format == "none":
        dropped.append("the upstream takes no output format")
        return {}
    if output.schema is None or quirks.output_format == "json":
        if output.schema is not None:
            dropped.append("the upstream takes no output schema: any JSON object was asked for")
        return {"format": {"type": "json_object"}}
    form = {"name": output.name, "schema": output.schema, "description": output.description, "strict": output.strict}
    return {"format": {"type": "json_schema", **{name: value for name, value in form.items() if value is not None}}}
