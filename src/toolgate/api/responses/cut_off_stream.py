"""Read the finished items of recorded frames, and write the frames that end a stream which was cut off."""

from collections.abc import Iterable
from typing import Any

from toolgate.conversation.errors import ToolgateError
from toolgate.dialects.openai_responses.response_object import error_object
from toolgate.wire.jsontext import decode, encode

_ITEM_DONE = b"event: response.output_item.done\n"


def items_done(frames: Iterable[bytes]) -> list[tuple[int, Any]]:
    """Return the items that these frames finish, each with its index; one that was finished twice is there twice."""
    ends = [frame for frame in frames if frame.startswith(_ITEM_DONE)]
    events = [decode(frame.partition(b"\ndata: ")[2]) for frame in ends]
    return [(event["output_index"], event["item"]) for event in events]


def closing(response: dict[str, Any], number: int) -> bytes:
    """Return the frame that ends a response."""
    kind = f"response.{response['status']}"
    event = {"type": kind, "sequence_number": number, "response": response}
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode(event))


def error_frame(error: ToolgateError, number: int | None = None) -> bytes:
    """Return the frame with the reason why no more frames come; it is not part of the response and may have no number."""
    flat = {"code": error.code, "message": error.message, "param": error.param, "error": error_object(error)}
    return b"event: error\ndata: %b\n\n" % encode({"type": "error", "sequence_number": number, **flat})
