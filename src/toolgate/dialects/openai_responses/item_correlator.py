"""Find the output item that an event of a Responses stream belongs to.

Servers change item ids from event to event, leave out `output_index` or send 0 for every item, skip `output_item.added`
or `output_item.done`, or send one of them twice. An item is found by its index together with its type, a call by its
`call_id` too; an id decides only if the item was announced under it.
"""

from typing import Any

from toolgate.conversation.arguments import ArgumentTextNormalizer
from toolgate.conversation.call_ids import new_call_id
from toolgate.conversation.errors import InvalidUpstreamAnswer
from toolgate.conversation.surrogates import SurrogateJoiner
from toolgate.dialects.openai_responses.shared_codec import new_item_id

CALLS = frozenset({"function_call", "custom_tool_call"})
# The type of item that an event belongs to, such as "response.output_text.delta" to a message.
_ITEM_TYPES = {
    f"response.{name}.{verb}": kind
    for kind, names in {
        "message": ("output_text", "refusal"),
        "reasoning": (
            "reasoning",
            "reasoning_text",
            "reasoning_summary",
            "reasoning_summary_text",
            "reasoning_summary_part",
        ),
        "function_call": ("function_call_arguments",),
        "custom_tool_call": ("custom_tool_call_input",),
    }.items()
    for name in names
    for verb in ("added", "delta", "done")
}


class UpstreamOutputItem:
    """What is known of one output item; `number` counts from 0 in order of appearance."""

    __slots__ = (
        "announced",
        "announced_parts",
        "arguments",
        "call_id",
        "fragments",
        "given_call_id",
        "id",
        "index",
        "kind",
        "last_delta",
        "number",
        "over",
        "surrogates",
        "value",
        "with_text",
    )

    def __init__(self, number: int, kind: str) -> None:
        self.number = number
        self.kind = kind
        self.index: Any = None  # the upstream's number for it
        self.id = ""  # the first id that the upstream sent, or a new one
        self.given_call_id: str | None = None  # the call id that the upstream sent
        self.call_id = ""  # the same, but unique in this answer
        self.announced = False
        self.over = False
        self.announced_parts: set[int] = set()  # indexes of content parts
        self.with_text: set[int] = set()  # indexes of content parts that have some text by now
        self.fragments: list[str] = []
        self.arguments = ArgumentTextNormalizer()  # of a call that is relayed
        self.surrogates = SurrogateJoiner()  # for the text of an item that is relayed
        self.last_delta: tuple[str, dict[str, Any]] | None = None  # the last event with text, and its kind
        self.value: dict[str, Any] = {}


class ItemCorrelator:
    """Finds the item that an event continues, or makes a new one."""

    def __init__(self) -> None:
        self.items: list[UpstreamOutputItem] = []
        self._by_place: dict[tuple[Any, str], UpstreamOutputItem] = {}
        self._by_index: dict[Any, UpstreamOutputItem] = {}
        self._by_id: dict[str, UpstreamOutputItem] = {}
        self._by_call: dict[str, UpstreamOutputItem] = {}
        self._call_ids: set[str] = set()

    def added(self, event: dict[str, Any]) -> UpstreamOutputItem:
        """Return the item that an `output_item.added` announces; it is already marked so if it is announced again."""
        value = item_of(event)
        item = self._by_place.get((event.get("output_index"), value["type"]))
        if item is None or item.over or _is_another(item, value):
            item = self._new(value["type"])
        self._update(item, event, value)
        return item

    def is_within(self, kind: str, event: dict[str, Any]) -> bool:
        """Return whether an event belongs to an item."""
        return "item_id" in event or "output_index" in event or kind in _ITEM_TYPES

    def within(self, kind: str, event: dict[str, Any]) -> UpstreamOutputItem | None:
        """Return the item of any other event; None if neither its kind nor its id nor its index determines one."""
        type = _ITEM_TYPES.get(kind)
        if type is not None:
            return self.of_type(type, event)
        return self._by_id.get(event.get("item_id") or "") or self._by_index.get(event.get("output_index"))

    def of_type(self, type: str, event: dict[str, Any]) -> UpstreamOutputItem:
        """Return the item of this type that an event belongs to, even if it was not announced."""
        id, index = event.get("item_id") or "", event.get("output_index")
        item = self._by_id.get(id)
        if item is not None and item.kind == type:
            return item
        item = self._by_place.get((index, type))
        # Without an index, items come one after another, so the event belongs to the last of its type.
        if item is None and index is None:
            item = next((one for one in reversed(self.items) if one.kind == type), None)
        if item is None:
            item = self._new(type)
            item.id = id
            self._set_index(item, index)
        return item

    def done(self, event: dict[str, Any]) -> UpstreamOutputItem:
        """Return the item that an `output_item.done` completes; it is already over if it is completed again."""
        value, index = item_of(event), event.get("output_index")
        item = self._by_place.get((index, value["type"]))
        if item is None or item.over or _is_another(item, value):
            # The index is of no use: it is missing, or the same for every item.
            item = self._by_call.get(value.get("call_id") or "") or self._by_id.get(value.get("id") or "")
            if item is None or item.kind != value["type"] or (item.over and item.index != index):
                item = self._new(value["type"])
        self._update(item, event, value)
        return item

    def unfinished(self, value: Any) -> UpstreamOutputItem | None:
        """Return the open item that the last event of a stream completes."""
        if type(value) is not dict:
            return None
        for item in self.items:
            if not item.over and item.kind == value.get("type") and not _is_another(item, value):
                return item
        return None

    def calls(self) -> int:
        """Return the number of calls."""
        return sum([item.kind in CALLS for item in self.items])

    def _new(self, kind: str) -> UpstreamOutputItem:
        item = UpstreamOutputItem(len(self.items), kind)
        self.items.append(item)
        return item

    def _set_index(self, item: UpstreamOutputItem, index: Any) -> None:
        item.index = index
        self._by_place[(index, item.kind)] = self._by_index[index] = item
        item.id = item.id or new_item_id(item.kind)

    def _update(self, item: UpstreamOutputItem, event: dict[str, Any], value: dict[str, Any]) -> None:
        id, call_id = value.get("id"), value.get("call_id")
        # The id under which the client got to know the item stays, whatever later events have.
        if not item.announced and type(id) is str and id:
            item.id = id
            self._by_id[id] = item
        self._set_index(item, event.get("output_index"))
        if item.kind not in CALLS or item.given_call_id:
            return
        if type(call_id) is str and call_id:
            item.given_call_id = call_id
            self._by_call[call_id] = item
        if not item.call_id:
            given = item.given_call_id
            item.call_id = given if given and given not in self._call_ids else new_call_id()
            self._call_ids.add(item.call_id)


def item_of(event: dict[str, Any]) -> dict[str, Any]:
    """Return the item in an event."""
    value = event.get("item")
    if type(value) is not dict or type(value.get("type")) is not str:
        raise InvalidUpstreamAnswer("The upstream sent an output item without a type.")
    return value


def _is_another(item: UpstreamOutputItem, value: dict[str, Any]) -> bool:
    call_id = value.get("call_id")
    return bool(item.given_call_id and call_id and item.given_call_id != call_id)
