"""A long conversation made short: the user's own words, and in place of all else a summary by the model.

The summary travels with the client in an item of type `compaction`, closed to it but not secret: it holds only what the
client has sent. When it comes back it is the model's own words again, never instructions: tools may have had a say in it.
Calls that still wait for a result stay as they are, with their siblings, lest the result find no call.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from toolgate.conversation.errors import Garbled
from toolgate.conversation.ids import mint
from toolgate.conversation.message import Seal
from toolgate.conversation.seals import disclose, enclose
from toolgate.server.endpoints import Outlet
from toolgate.server.exchange import Header
from toolgate.server.responses.items import text_message, with_ids

_SEAL = "toolgate_compaction"
_CALLS = ("function_call", "custom_tool_call")
_RESULTS = ("function_call_output", "custom_tool_call_output")
_WISH = """\
Summarize this conversation so that you can go on from the summary alone; the user's messages stay with you, all else goes.
Keep what was asked, decided and promised, what every tool was asked and what it answered as far as it still matters,
names, paths, numbers and quotations exactly, what is done and what is left to do.
Answer with the summary and nothing else."""
_HEADING = "Summary of the conversation so far:\n\n"


class Whole:
    """Takes an answer that is told in one piece, for the one who asked; its client may still leave."""

    def __init__(self, exchange: Outlet) -> None:
        self._exchange = exchange
        self.body: bytes | None = None
        self.headers: list[Header] = []

    @property
    def client_left(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._exchange.client_left

    def cancel_when_client_leaves(self) -> None:
        """From now on the running task is cancelled when nobody waits any more."""
        self._exchange.cancel_when_client_leaves()

    async def respond(self, status: int, body: bytes, headers: Iterable[Header] = ()) -> None:
        """Take the answer."""
        self.body, self.headers = body, list(headers)

    async def start(self, content_type: bytes, headers: Iterable[Header] = ()) -> None:
        """A streamed answer never comes here."""
        raise NotImplementedError

    async def write(self, chunk: bytes) -> None:
        """A streamed answer never comes here."""
        raise NotImplementedError

    def idle_for(self) -> float:
        """Never long."""
        return 0.0

    async def end(self) -> None:
        """A streamed answer never comes here."""


def question(body: dict[str, Any], items: Sequence[Any]) -> dict[str, Any]:
    """The request that has the model sum up the items."""
    own = {name: body[name] for name in ("model", "instructions", "prompt_cache_key") if body.get(name) is not None}
    return {**own, "input": [*items, text_message(_WISH)], "store": False}


def split(items: Sequence[Any]) -> int:
    """Where the items begin that must stay: at the calls told together with the first that has no result yet."""
    answered = {item.get("call_id") for item in items if _kind(item) in _RESULTS}
    waiting = [
        place for place, item in enumerate(items) if _kind(item) in _CALLS and item.get("call_id") not in answered
    ]
    if not waiting:
        return len(items)
    place = waiting[0]
    while place and _kind(items[place - 1]) in (*_CALLS, "reasoning"):
        place -= 1
    return place


def compacted(items: Sequence[Any], place: int, answer: bytes, created: int) -> dict[str, Any]:
    """The compaction: what the user said, the summary that the answer gives, and the items that must stay."""
    told = msgspec.json.decode(answer)
    summary = "".join(
        [
            part["text"]
            for item in told["output"]
            for part in item.get("content") or ()
            if part.get("type") == "output_text"
        ]
    )
    if not summary.strip():
        raise Garbled("The model gave no summary.")
    closed = enclose(Seal(_SEAL, {"summary": summary}))
    item = {"id": "cmp_" + mint(), "type": "compaction", "encrypted_content": closed}
    said = with_ids([one for one in items[:place] if _kind(one) == "message" and one.get("role") == "user"])
    return {
        "id": told["id"],
        "object": "response.compaction",
        "created_at": created,
        "output": [*said, item, *with_ids(items[place:])],
        "usage": told["usage"],
    }


def opened(items: Sequence[Any]) -> list[Any]:
    """The items with our summaries as words of the model; those that another made are left to whoever can read them."""
    return [_opened(item) if is_closed(item) else item for item in items]


def is_closed(item: Any) -> bool:
    """Whether the item holds a summary."""
    return bool(_kind(item) == "compaction")


def _opened(item: dict[str, Any]) -> dict[str, Any]:
    closed = item.get("encrypted_content")
    seal = disclose(closed) if type(closed) is str else None
    if seal is None or seal.dialect != _SEAL:
        return item
    text = _HEADING + str(seal.fields.get("summary", ""))
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def _kind(item: Any) -> Any:
    if type(item) is not dict:
        return None
    return item.get("type") or ("message" if "role" in item else None)
