"""A stream that goes on after its teller was lost: what its frames have told, and what of it still holds.

Frames up to the `cut` tell of answers that are kept. What they tell behind it may never have happened, for the model is
asked again: such an item is withdrawn, which is told by ending it once more, incomplete and empty. So every item that was
begun ends, none is told under two indexes, and the response at the end holds nothing but what was kept.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from toolgate.conversation.message import Message, Opaque, Part, ToolCall, ToolResult
from toolgate.dialects.openai_responses.words import NAME, call_item_id

_ADDED = b"event: response.output_item.added\n"
_DONE = b"event: response.output_item.done\n"
_SAYING = ("content", "summary", "arguments", "input", "result", "encrypted_content", "output", "error")


class ToldItem(Struct, frozen=True):
    """An item as it was told last: its place, the number of the frame that began it, and whether it was ended."""

    index: int
    value: Mapping[str, Any]
    number: int
    done: bool = False

    @property
    def id(self) -> str:
        """Its id; an upstream of the same dialect may have given none."""
        return str(self.value.get("id") or "")


class Told(Struct, frozen=True):
    """What a client may have heard: items that hold, those that are to be withdrawn, and how many frames there were.

    `calls` are the calls that were run here, by the ids of their items; `spoken` is what the model said last.
    """

    count: int
    kept: tuple[ToldItem, ...] = ()
    withdrawn: tuple[ToldItem, ...] = ()
    calls: Mapping[str, ToolCall] = {}
    spoken: Part | None = None

    @property
    def begun(self) -> frozenset[str]:
        """The ids of the calls that the client saw begin."""
        return frozenset([self.calls[item.id].id for item in self.kept if item.id in self.calls])

    @property
    def ended(self) -> frozenset[str]:
        """The ids of the calls of which the client saw the end."""
        return frozenset([self.calls[item.id].id for item in self.kept if item.id in self.calls and item.done])


def read_told(frames: Sequence[bytes], cut: int, messages: Sequence[Message]) -> Told:
    """What the frames told; `messages` are those of the run that are kept."""
    parts = [part for message in messages for part in message.parts]
    ours = [part for part in parts if isinstance(part, ToolCall) and part.executor == "gateway"]
    calls = {call_item_id("mcp_call", call.id): call for call in ours}
    spoken = [part for part in parts if not isinstance(part, ToolResult) and part not in ours and _is_shown(part)]
    items = _items(frames)
    kept = tuple([item for item in items if item.number < cut or item.id in calls])
    withdrawn = tuple([item for item in items if item not in kept])
    return Told(len(frames), kept, withdrawn, calls, spoken[-1] if spoken else None)


def emptied(item: Mapping[str, Any]) -> dict[str, Any]:
    """The item with nothing in it, as it is told when it is withdrawn."""
    value = {**item, "status": "incomplete"}
    for name, nothing in (("content", []), ("summary", []), ("arguments", ""), ("input", ""), ("result", None)):
        if name in value:
            value[name] = nothing
    return {name: field for name, field in value.items() if name != "encrypted_content"}


def is_withdrawn(item: Mapping[str, Any]) -> bool:
    """Whether this is an item that was withdrawn: it says nothing, and nobody needs to hear it."""
    return item.get("status") == "incomplete" and not any(item.get(name) for name in _SAYING)


def _items(frames: Sequence[bytes]) -> Collection[ToldItem]:
    items: dict[int, ToldItem] = {}
    for number, frame in enumerate(frames):
        if frame.startswith((_ADDED, _DONE)):
            event = msgspec.json.decode(frame.partition(b"\ndata: ")[2])
            index, done = event["output_index"], frame.startswith(_DONE)
            first = items[index].number if index in items else number
            items[index] = ToldItem(index, event["item"], first, done)
    return [items[index] for index in sorted(items)]


def _is_shown(part: Part) -> bool:
    return not (isinstance(part, Opaque) and part.dialect != NAME)
