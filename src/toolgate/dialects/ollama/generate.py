"""Ollama's `/api/generate`, the second server half of the dialect: a prompt instead of messages.

A prompt is one user message, perhaps behind a system message, so every upstream can answer it. What only Ollama itself
understands (a template, a suffix, raw mode, a context of tokens) is kept together under a mark in the request's own
fields; the upstream half finds it there and asks an Ollama upstream by the same endpoint.
"""

from typing import Any

from toolgate.conversation.events import ModelResponse
from toolgate.conversation.message import Message, Part, Text
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.dialect import Encoder, Reply
from toolgate.dialects.ollama.requests import own, read_images, read_settings
from toolgate.dialects.ollama.server import LineEncoder, encode_error, load, reply_id, warning_line, whole
from toolgate.dialects.ollama.words import NAME, PROMPT
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

_OLLAMA_ONLY = ("suffix", "template", "raw", "context")


def decode_request(body: Any) -> ModelRequest:
    """The request that the body makes; without a prompt it only loads the model."""
    fields = Fields(body)
    model = fields.required_text("model")
    messages = _messages(fields)
    settings, stream = read_settings(fields), fields.flag("stream") is not False
    special = {name: value for name in _OLLAMA_ONLY if (value := fields.raw(name))}
    fields.rest[PROMPT] = special
    return ModelRequest(model, messages, (), None, settings, stream, NAME, own(fields.rest))


def _messages(fields: Fields) -> tuple[Message, ...]:
    system, prompt = fields.text("system"), fields.text("prompt")
    parts: tuple[Part, ...] = (*((Text(prompt),) if prompt else ()), *read_images(fields))
    messages = [Message("system", (Text(system),))] if system else []
    return (*messages, Message("user", parts)) if parts else tuple(messages)


def said(content: str = "", **more: Any) -> dict[str, Any]:
    """What a line of `/api/generate` says."""
    return {"response": content, **more}


def encoder(request: ModelRequest, reply: Reply) -> Encoder:
    """An encoder for the answer to this request."""
    return LineEncoder(request, reply, said)


def encode_response(response: ModelResponse, request: ModelRequest, reply: Reply) -> bytes:
    """A whole answer."""
    return whole(response, request, reply, said)


def encode_warning(warning: str, reply: Reply) -> bytes:
    """A warning in the middle of a stream, as a line that says nothing else."""
    return warning_line(warning, reply, said)


def is_load_request(body: Any) -> bool:
    """Whether the body asks to load or unload the model and nothing else."""
    return type(body) is dict and body.get("prompt") in (None, "")


def encode_load(body: Any, reply: Reply) -> bytes:
    """The answer to such a body; no model needs to be asked for it."""
    return load(body, reply, said)
