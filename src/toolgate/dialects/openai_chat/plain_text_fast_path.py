"""Decode the most common answers and chunks of streams at once: one choice with a text, in OpenAI's own form.

They need no repair, so that a Chat client may receive their bytes. Their types are checked while they are decoded, which
costs a fraction of looking at each field. All others are decoded by `upstream.py`, `stream_decoder.py` and `relay.py`,
which would get the same of these.
"""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from toolgate.conversation import call_ids
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.json_depth import is_too_deep
from toolgate.conversation.message import Text
from toolgate.wire.fields import MAX_TOKENS

# A larger answer may have so many keys, values or digits that decoding takes long: its structure is checked first.
MAX_BYTES = 64 * 1024

_NonEmpty: TypeAlias = Annotated[str, Meta(min_length=1)]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
# Types of fields that many servers always send, mostly empty. A value in one of them needs the complete decoder.
_NoText: TypeAlias = Literal["", None]
_NoItems: TypeAlias = Annotated[list[Any], Meta(max_length=0)] | None


class _Message(Struct, forbid_unknown_fields=True):
    """A text; a field that is not listed here may be more of the answer."""

    # An empty text is left to the complete decoder, which makes no part of it.
    role: Literal["assistant"]
    content: _NonEmpty
    refusal: _NoText = None
    reasoning: _NoText = None
    reasoning_content: _NoText = None
    tool_calls: _NoItems = None
    annotations: _NoItems = None
    function_call: None = None
    audio: None = None


class _Choice(Struct):
    index: Literal[0]
    message: _Message
    finish_reason: Literal["stop", "length"]
    logprobs: None = None


class _InputDetails(Struct):
    cached_tokens: _Count | None = None
    cache_write_tokens: _Count | None = None
    cache_creation_tokens: _Count | None = None


class _OutputDetails(Struct):
    reasoning_tokens: _Count | None = None


class _Usage(Struct):
    """Both token counts, and their details under the names that `read_usage` knows."""

    prompt_tokens: _Count
    completion_tokens: _Count
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    prompt_cache_hit_tokens: _Count | None = None


class _Answer(Struct):
    """An answer with all fields that clients read; those with the value None would say more than its text."""

    id: Annotated[str, Meta(min_length=1, max_length=call_ids.MAX_STORED)]
    object: Literal["chat.completion"]
    created: Annotated[int, Meta(ge=1)]
    model: _NonEmpty
    choices: tuple[_Choice]
    usage: _Usage
    error: None = None
    x_groq: None = None
    citations: None = None
    search_results: None = None


class _Delta(Struct, forbid_unknown_fields=True):
    content: str


class _ChunkChoice(Struct):
    index: Literal[0]
    delta: _Delta
    finish_reason: None
    logprobs: None = None


class ChatCompletionTextChunk(Struct):
    """A chunk in the middle of a stream that has a text and nothing else."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: tuple[_ChunkChoice]
    usage: None = None
    error: None = None
    x_groq: None = None
    citations: None = None
    search_results: None = None


_NO_INPUT_DETAILS, _NO_OUTPUT_DETAILS = _InputDetails(), _OutputDetails()

# Built once, because a decoder compiles its type.
_decode = msgspec.json.Decoder(_Answer).decode
_decode_chunk = msgspec.json.Decoder(ChatCompletionTextChunk).decode


def decode_plain_answer(raw: bytes, relayed: bool) -> ModelResponse | None:
    """Decode the bytes of a whole answer if it is plain and reports its usage; return None for any other.

    Such an answer needs no repair, whether it is relayed or not.
    """
    if len(raw) > MAX_BYTES or is_too_deep(raw):
        return None
    try:
        answer = _decode(str(raw, "utf-8"))  # fields that are skipped are checked to be UTF-8 as well
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    choice, counts = answer.choices[0], answer.usage
    if choice.message.content.isspace():  # an empty answer, which is looked at elsewhere
        return None
    input, output = counts.prompt_tokens_details, counts.completion_tokens_details
    if input is None and output is None and counts.prompt_cache_hit_tokens is None:
        usage = Usage(counts.prompt_tokens, counts.completion_tokens)
    else:
        input, output = input or _NO_INPUT_DETAILS, output or _NO_OUTPUT_DETAILS
        usage = Usage(
            counts.prompt_tokens,
            counts.completion_tokens,
            input.cached_tokens or counts.prompt_cache_hit_tokens or 0,
            input.cache_write_tokens or input.cache_creation_tokens or 0,
            output.reasoning_tokens or 0,
        )
    return ModelResponse((Text(choice.message.content),), choice.finish_reason, usage, answer.id, answer.model)


def decode_text_chunk(data: bytes) -> ChatCompletionTextChunk | None:
    """Decode a chunk if it has nothing but a text; return None for any other."""
    if len(data) > MAX_BYTES or is_too_deep(data):
        return None
    try:
        # The bytes may be relayed, so that invalid UTF-8 must fail here even in fields that are skipped.
        return _decode_chunk(str(data, "utf-8"))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
