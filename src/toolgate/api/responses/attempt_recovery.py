"""Rebuild what earlier attempts at a background response did: the run so far, and what its readers have received."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from toolgate.api.response_writer import PreparedRequest
from toolgate.dialects.openai_responses.items_sent_before_crash import ItemsSentBeforeCrash, read_sent_items
from toolgate.dialects.openai_responses.server import ResponsesStreamEncoder
from toolgate.engine.client_visible_events import AlreadySentCalls
from toolgate.engine.tool_loop import EarlierAttempts
from toolgate.runs.step_records import decode_steps, finished_frames, history_of


class RecoveredAttempt(Struct, frozen=True):
    """The run so far; the frames that are stored, the items in them, and the finished ones of these by their index."""

    history: EarlierAttempts
    frames: Sequence[bytes] = ()
    sent: ItemsSentBeforeCrash | None = None
    items: Mapping[int, Any] = {}

    def continue_stream(self, prepared: PreparedRequest) -> tuple[PreparedRequest, bytes]:
        """Return the request with an encoder that continues, and the frames that withdraw what is not valid any more."""
        if self.sent is None:
            return prepared, b""
        request = replace(prepared.request, relay=False)  # a relay numbers its frames from the beginning
        encoder = ResponsesStreamEncoder(request, prepared.metadata)
        return replace(prepared, request=request, encoder=encoder), encoder.resume(self.sent)


def resumption(recorded: Sequence[str], frames: Sequence[bytes]) -> RecoveredAttempt:
    """Rebuild an attempt from stored steps and frames; without frames readers have received nothing."""
    steps = decode_steps(recorded)
    history = history_of(steps)
    if not frames:
        return RecoveredAttempt(history)
    sent = read_sent_items(frames, finished_frames(steps), history.messages)
    history = replace(history, shown=AlreadySentCalls(sent.begun, sent.ended))
    return RecoveredAttempt(history, frames, sent, {item.index: item.value for item in sent.items if item.done})
