"""Encode signed reasoning of other dialects in Chat's `reasoning_details`, which clients send back, and decode it.

A Chat message has one reasoning text and one content, while other dialects mix several signed blocks with text and calls.
So each entry is complete: it has the block's text, its signature, and its position, which is the number of characters of
content and of calls before it.
"""

import base64
import binascii
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from toolgate.conversation.message import Part, Reasoning, ReasoningSignature, Text, ToolCall
from toolgate.conversation.reasoning_envelope import unwrap_signature
from toolgate.dialects.openai_chat.shared_codec import NAME
from toolgate.wire.jsontext import encode as encode_json

_FORMAT = "toolgate-v2"
# OpenRouter's type for entries that a client sends back without reading them, so clients that know OpenRouter keep ours.
_OPAQUE = "reasoning.encrypted"


class SignedReasoning(Struct, frozen=True):
    """A signed block of reasoning, and its position in the message."""

    text: str
    signature: ReasoningSignature = field(name="seal")  # the name in the histories that clients hold
    characters: int = 0
    calls: int = 0


class ReasoningDetailEncoder:
    """Encodes the entries of one message, whose parts are passed in their order."""

    def __init__(self) -> None:
        self.characters = 0  # of text that has passed
        self._calls = self._entries = 0

    def encode(self, part: Part) -> dict[str, Any] | None:
        """Return the entry of a complete part, if it is signed reasoning."""
        match part:
            case Text(text):
                self.characters += len(text)
            case ToolCall(executor="client"):
                self._calls += 1
            case Reasoning(text, signature) if signature is not None and signature.dialect != NAME:
                block = SignedReasoning(text, signature, self.characters, self._calls)
                self._entries += 1
                data = base64.urlsafe_b64encode(encode_json(msgspec.to_builtins(block))).decode()
                return {"type": _OPAQUE, "format": _FORMAT, "index": self._entries - 1, "data": data}
        return None


def decode_details(details: Any, reasoning: str) -> list[SignedReasoning]:
    """Decode our own entries of `reasoning_details`; `reasoning` is the reasoning text of the message."""
    if type(details) is not list:
        return []
    entries = [entry for entry in details if type(entry) is dict]
    blocks = [block for entry in entries if (block := _decode(entry))]
    if blocks and all(entry.get("format") != _FORMAT for entry in entries):  # older entries do not have the text
        blocks[0] = SignedReasoning(reasoning, blocks[0].signature)
    return blocks


def place_blocks(blocks: Iterable[SignedReasoning], content: Sequence[Part], calls: Sequence[Part]) -> list[Part]:
    """Return the parts of a message with the blocks at their positions; text is split there."""
    parts: list[Part] = []
    left, calls_left, characters = deque(content), deque(calls), 0
    for block in blocks:
        # A client may have joined or shortened texts since, so a position counts characters and is never an error.
        while left and characters < block.characters:
            part = left.popleft()
            room = block.characters - characters
            if isinstance(part, Text) and len(part.text) > room:
                left.appendleft(Text(part.text[room:], part.extra))
                part = Text(part.text[:room], part.extra)
            characters += len(part.text) if isinstance(part, Text) else 0
            parts.append(part)
        while calls_left and len(calls) - len(calls_left) < block.calls:
            parts.append(calls_left.popleft())
        parts.append(Reasoning(block.text, block.signature))
    return [*parts, *left, *calls_left]


def _decode(entry: dict[str, Any]) -> SignedReasoning | None:
    data = entry.get("data")
    if type(data) is not str:
        return None
    if entry.get("format") != _FORMAT:  # the older form: an envelope around the signature alone
        signature = unwrap_signature(data)
        return SignedReasoning("", signature) if signature else None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(data), type=SignedReasoning)
    # The client may have changed or forged the data; JSON that is nested too deeply raises RecursionError.
    except (binascii.Error, msgspec.MsgspecError, UnicodeError, ValueError, RecursionError):
        return None
