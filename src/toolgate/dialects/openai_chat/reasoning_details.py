"""Signed reasoning of other dialects in Chat's `reasoning_details`, which clients send back with the history.

A Chat message has one reasoning text and one content, while other dialects mix several signed blocks with text and calls
in an order of their own. So each entry is complete: it holds the block's text beside its signature, and the place where
the block stood, by the characters of content and the calls before it.
"""

import base64
import binascii
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from toolgate.conversation.message import Part, Reasoning, Seal, Text, ToolCall
from toolgate.conversation.seals import disclose
from toolgate.dialects.openai_chat.words import NAME
from toolgate.wire.jsontext import encode as encode_json

_FORMAT = "toolgate-v2"
_OPAQUE = "reasoning.encrypted"


class SignedBlock(Struct, frozen=True):
    """A block of reasoning, and how much of its message stood before it."""

    text: str
    seal: Seal
    characters: int = 0
    calls: int = 0


class DetailEncoder:
    """Writes the entries of one message, whose parts are noted in their order."""

    def __init__(self) -> None:
        self._characters = self._calls = self._entries = 0

    def encode(self, part: Part) -> dict[str, Any] | None:
        """The entry that a complete part makes, if it is signed reasoning."""
        match part:
            case Text(text):
                self._characters += len(text)
            case ToolCall(executor="client"):
                self._calls += 1
            case Reasoning(text, seal) if seal is not None and seal.dialect != NAME:
                block = SignedBlock(text, seal, self._characters, self._calls)
                self._entries += 1
                data = base64.urlsafe_b64encode(encode_json(msgspec.to_builtins(block))).decode()
                return {"type": _OPAQUE, "format": _FORMAT, "index": self._entries - 1, "data": data}
        return None


def decode_details(details: Any, reasoning: str) -> list[SignedBlock]:
    """The blocks that the entries of `reasoning_details` hold, where they are ours; `reasoning` is the message's own."""
    if type(details) is not list:
        return []
    entries = [entry for entry in details if type(entry) is dict]
    blocks = [block for entry in entries if (block := _decode(entry))]
    if blocks and all(entry.get("format") != _FORMAT for entry in entries):  # an older entry sealed the text beside it
        blocks[0] = SignedBlock(reasoning, blocks[0].seal)
    return blocks


def place_blocks(blocks: Iterable[SignedBlock], content: Sequence[Part], calls: Sequence[Part]) -> list[Part]:
    """The parts of a message with the blocks where they stood; text that came in one piece is cut there."""
    parts: list[Part] = []
    left, calls_left, characters = deque(content), deque(calls), 0
    for block in blocks:
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
        parts.append(Reasoning(block.text, block.seal))
    return [*parts, *left, *calls_left]


def _decode(entry: dict[str, Any]) -> SignedBlock | None:
    data = entry.get("data")
    if type(data) is not str:
        return None
    if entry.get("format") != _FORMAT:
        seal = disclose(data)
        return SignedBlock("", seal) if seal else None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(data), type=SignedBlock)
    except (binascii.Error, msgspec.MsgspecError, UnicodeError, ValueError, RecursionError):
        return None
