"""Encode the JSON of answers that hold what clients and models have sent, which may be megabytes."""

from typing import Any

from toolgate.conversation.rough_size_estimate import is_json_larger
from toolgate.engine.json_thread import LARGE_BODY, run_in_thread
from toolgate.wire.jsontext import encode, encode_in_steps

# Of a list of items, down to the texts of their parts; a response has two more around its output.
_LEVELS = 8


async def encode_json(value: Any) -> bytes:
    """Encode a value; a large one in a thread and in steps, so that other requests are served meanwhile."""
    large = is_json_larger(value, LARGE_BODY)
    return await run_in_thread(encode_in_steps, value, _LEVELS) if large else encode(value)
