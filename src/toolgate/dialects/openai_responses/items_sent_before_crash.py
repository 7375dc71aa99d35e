"""Read which output items a client has received of a stream whose process died, so that another can continue it.

Frames before the `cut` belong to answers that are stored. Items of later frames may never have been completed, because
the model is asked again: such an item is withdrawn, which is encoded by ending it once more, incomplete and empty. So
every item that was begun ends, none has two indexes, and the final response holds nothing but what is stored.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from msgspec import Struct

from toolgate.conversation.message import Message, Opaque, Part, ToolCall, ToolResult
from toolgate.dialects.openai_responses.shared_codec import NAME, call_item_id
from toolgate.wire.jsontext import decode

# Frames are recognised by their first line, because decoding the JSON of every delta would take long.
_ADDED = b"event: response.output_item.added\n"
_DONE = b"event: response.output_item.done\n"
_CONTENT_FIELDS = ("content", "summary", "arguments", "input", "result", "encrypted_content", "output", "error")


class ItemSentBeforeCrash(Struct, frozen=True):
    """An item as it was sent last: its index, the number of the frame that began it, and whether it ended."""

    index: int
    value: Mapping[str, Any]
    number: int
    done: bool = False

    @property
    def id(self) -> str:
        """Its id; an upstream of the same dialect may have given none."""
        return str(self.value.get("id") or "")


class ItemsSentBeforeCrash(Struct, frozen=True):
    """What a client may have received: items that stay, items to withdraw, and the number of frames.

    `calls` are the calls that were run here, by the ids of their items; `last_part` is what the model wrote last.
    """

    count: int
    kept: tuple[ItemSentBeforeCrash, ...] = ()
    withdrawn: tuple[ItemSentBeforeCrash, ...] = ()
    calls: Mapping[str, ToolCall] = {}
    last_part: Part | None = None

    @property
    def items(self) -> tuple[ItemSentBeforeCrash, ...]:
        """All items."""
        return (*self.kept, *self.withdrawn)

    @property
    def begun(self) -> frozenset[str]:
        """The ids of the calls whose start the client received."""
        return frozenset([self.calls[item.id].id for item in self.kept if item.id in self.calls])

    @property
    def ended(self) -> frozenset[str]:
        """The ids of the calls whose end the client received."""
        return frozenset([self.calls[item.id].id for item in self.kept if item.id in self.calls and item.done])


def read_sent_items(frames: Sequence[bytes], cut: int, messages: Sequence[Message]) -> ItemsSentBeforeCrash:
    """Read the items of the frames; `messages` are the stored ones of the run."""
    parts = [part for message in messages for part in message.parts]
    calls = {call_item_id("mcp_call", part.id): part for part in parts if _is_gateway_call(part)}
    last_part: Part | None = None
    for part in parts:
        hidden = isinstance(part, Opaque) and part.dialect != NAME  # only its own dialect has a form for it
        if not (hidden or isinstance(part, ToolResult) or _is_gateway_call(part)):
            last_part = part
    items: dict[int, ItemSentBeforeCrash] = {}
    for number, frame in enumerate(frames):
        if frame.startswith((_ADDED, _DONE)):
            event = decode(frame.partition(b"\ndata: ")[2])
            index, done = event["output_index"], frame.startswith(_DONE)
            first = items[index].number if index in items else number
            items[index] = ItemSentBeforeCrash(index, event["item"], first, done)
    kept: list[ItemSentBeforeCrash] = []
    withdrawn: list[ItemSentBeforeCrash] = []
    for index in sorted(items):
        item = items[index]
        # The calls of `messages` are stored, so that their items stay even behind the cut.
        (kept if item.number < cut or item.id in calls else withdrawn).append(item)
    return ItemsSentBeforeCrash(len(frames), tuple(kept), tuple(withdrawn), calls, last_part)


def withdraw_item(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the item as it is sent when it is withdrawn: incomplete and empty."""
    value = {**item, "status": "incomplete"}
    for name, nothing in (("content", []), ("summary", []), ("arguments", ""), ("input", ""), ("result", None)):
        if name in value:
            value[name] = nothing
    return {name: field for name, field in value.items() if name != "encrypted_content"}


def is_withdrawn(item: Mapping[str, Any]) -> bool:
    """Return whether a client sends back an item that was withdrawn: it is empty and can be ignored."""
    return item.get("status") == "incomplete" and not any(item.get(name) for name in _CONTENT_FIELDS)


def _is_gateway_call(part: Part) -> TypeGuard[ToolCall]:
    return isinstance(part, ToolCall) and part.executor == "gateway"
