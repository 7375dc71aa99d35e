"""Decode requests to Ollama's `/api/generate`, which have a prompt instead of messages, and encode its answers.

A prompt is one user message, perhaps behind a system message, so every upstream can answer it. Fields that only Ollama
understands (a template, a suffix, raw mode, a context of tokens) are kept under the key `PROMPT` of the request's extra;
`upstream.py` finds them there and uses the same endpoint of an Ollama upstream.
"""

from typing import Any

from toolgate.conversation.events import ModelResponse
from toolgate.conversation.message import Message, Part, Text
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.dialect import AnswerMetadata, StreamEncoder
from toolgate.dialects.ollama.requests import own_extra, read_images, read_settings
from toolgate.dialects.ollama.server import (
    OllamaStreamEncoder,
    encode_error,
    reply_id,
    warning_line,
    write_load,
    write_response,
)
from toolgate.dialects.ollama.shared_codec import NAME, PROMPT
from toolgate.wire.fields import Fields

__all__ = [
    "decode_request",
    "encode_error",
    "encode_load",
    "encode_response",
    "encode_warning",
    "encoder",
    "is_load_request",
    "reply_id",
]

# Fields that no conversation can express: the text behind the gap to fill, a template of the prompt, a prompt without a
# template, and the tokens of an earlier answer.
_OLLAMA_ONLY = ("suffix", "template", "raw", "context")


def decode_request(body: Any) -> ModelRequest:
    """Decode the body of a request; without a prompt it only loads the model."""
    fields = Fields(body)
    model = fields.required_text("model")
    system, prompt = fields.text("system"), fields.text("prompt")
    parts: tuple[Part, ...] = (*((Text(prompt),) if prompt else ()), *read_images(fields))
    messages = [Message("system", (Text(system),))] if system else []
    if parts:
        messages.append(Message("user", parts))
    settings, stream = read_settings(fields), fields.flag("stream") is not False
    # The key is there even without such fields: it marks the endpoint.
    fields.rest[PROMPT] = {name: value for name in _OLLAMA_ONLY if (value := fields.raw(name))}
    return ModelRequest(model, tuple(messages), (), None, settings, stream, NAME, own_extra(fields.rest))


def line_fields(content: str = "", **more: Any) -> dict[str, Any]:
    """Return the fields of a line of `/api/generate`."""
    return {"response": content, **more}


def encoder(request: ModelRequest, metadata: AnswerMetadata) -> StreamEncoder:
    """Return an encoder for the streamed answer to this request."""
    return OllamaStreamEncoder(request, metadata, line_fields)


def encode_response(response: ModelResponse, request: ModelRequest, metadata: AnswerMetadata) -> bytes:
    """Encode a whole answer."""
    return write_response(response, request, metadata, line_fields)


def encode_warning(warning: str, metadata: AnswerMetadata) -> bytes:
    """Encode a warning in the middle of a stream, as a line without content."""
    return warning_line(warning, metadata, line_fields)


def is_load_request(body: Any) -> bool:
    """Return whether the body only asks to load or unload the model."""
    return type(body) is dict and body.get("prompt") in (None, "")


def encode_load(body: Any, metadata: AnswerMetadata) -> bytes:
    """Encode the answer to a load request; no model is asked for it."""
    return write_load(body, metadata, line_fields)
