"""Decode the most common whole answers of Messages upstreams at once: one text in Anthropic's own form.

Their types are checked while they are decoded, which costs a fraction of looking at each block and field. All others are
decoded by `upstream.py`, which would get the same of these.
"""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from toolgate.conversation import call_ids
from toolgate.conversation.events import ModelResponse
from toolgate.conversation.json_depth import is_too_deep
from toolgate.conversation.message import Text
from toolgate.dialects.anthropic.shared_codec import read_reason, read_usage

# A larger answer may have so many keys, values or digits that decoding takes long: its structure is checked first.
MAX_BYTES = 64 * 1024

# The counts that clients require; where one is missing, an answer is repaired before it is relayed.
_COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
_NonEmpty: TypeAlias = Annotated[str, Meta(min_length=1)]


class _TextBlock(Struct, forbid_unknown_fields=True):
    type: Literal["text"]
    text: _NonEmpty
    citations: Annotated[list[Any], Meta(max_length=0)] | None = None


class _Answer(Struct, forbid_unknown_fields=True):
    """A message of one text; a field that is not listed here may be more of the answer."""

    id: Annotated[str, Meta(min_length=1, max_length=call_ids.MAX_STORED)]
    type: Literal["message"]
    role: Literal["assistant"]
    model: _NonEmpty
    content: tuple[_TextBlock]
    stop_reason: Literal["end_turn", "max_tokens"]
    usage: dict[str, Any]
    stop_sequence: None = None
    stop_details: None = None
    container: None = None
    context_management: None = None


# Built once, because a decoder compiles its type.
_decode = msgspec.json.Decoder(_Answer).decode


def decode_plain_answer(raw: bytes, relayed: bool) -> ModelResponse | None:
    """Decode the bytes of a whole answer if it is plain and reports its usage; return None for any other."""
    if len(raw) > MAX_BYTES or is_too_deep(raw):
        return None
    try:
        answer = _decode(str(raw, "utf-8"))  # fields that are skipped are checked to be UTF-8 as well
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    counts = answer.usage
    # `relay.py` also removes nulls from usage, which SDKs do not expect in counts.
    if relayed and (None in counts.values() or any(type(counts.get(name)) is not int for name in _COUNTS)):
        return None
    usage, text = read_usage(counts), answer.content[0].text
    # A blank text is an empty answer, which is looked at elsewhere.
    if usage is None or usage.missing or text.isspace():
        return None
    return ModelResponse((Text(text),), read_reason(answer.stop_reason), usage, answer.id, answer.model)
