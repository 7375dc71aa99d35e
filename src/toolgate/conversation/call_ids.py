"""Make call ids that every dialect accepts and that are unique across a conversation.

Upstreams send ids such as `functions.search:0`, `0` or `call_1` that restart every turn, or none at all, while clients
match results by id over the whole history and some accept only `[a-zA-Z0-9_-]`. A foreign id of that kind is encoded
inside one of ours, so that the upstream gets its own back on the next turn without anything being stored here.
"""

import base64
import hashlib
import re

from toolgate.conversation.random_ids import ALPHABET, random_suffix

# Ids that every API accepts. One of fewer than 16 characters, such as `call_1`, may come again in the next turn.
_PORTABLE = re.compile(r"[a-zA-Z0-9_-]{16,64}")
# Six random characters, which make it unique, and the upstream's id in base64: `call_tgQ3xZ9a_ZnVuY3Rpb25zLmY6MA`.
_CARRIED = re.compile(r"call_tg[a-zA-Z0-9]{6}_([a-zA-Z0-9_-]+)")
MAX_LENGTH = 64  # OpenAI's APIs refuse longer ids
# Characters of an id by which something is stored and found: an index of PostgreSQL takes about 2,700 bytes.
MAX_STORED = 512


def is_storable(id: object) -> bool:
    """Return whether a client or an upstream has sent an id by which something can be stored and found."""
    return type(id) is str and 0 < len(id) <= MAX_STORED


def new_call_id() -> str:
    """Return a new call id in OpenAI's form."""
    return "call_" + random_suffix()


def portable_id(foreign: str) -> str:
    """Return an id that every dialect accepts and that is unique in a conversation; `original_id` reverses it."""
    # An upstream's id that looks like a carried one is carried, too, or `original_id` would change it.
    if _PORTABLE.fullmatch(foreign) and not _CARRIED.fullmatch(foreign):
        return foreign
    text = base64.urlsafe_b64encode(foreign.encode("utf-8", "replace")).decode().rstrip("=")
    carried = f"call_tg{random_suffix(6)}_{text}"
    return carried if len(carried) <= MAX_LENGTH else new_call_id()


def original_id(call_id: str) -> str:
    """Return the upstream's own id inside one that `portable_id` made; any other id is returned unchanged."""
    found = _CARRIED.fullmatch(call_id)
    if found is None:
        return call_id
    text = found[1]
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except ValueError:
        return call_id


def fit_id(id: str, pattern: str) -> str:
    """Return the id if it matches the pattern, else nine characters derived from it, which the strictest APIs accept."""
    if re.fullmatch(pattern, id):
        return id
    number = int.from_bytes(hashlib.sha256(id.encode("utf-8", "replace")).digest()[:8])
    # Derived, not random: the call and its result are fitted separately and must stay equal.
    return "".join([ALPHABET[number // 62**i % 62] for i in range(9)])
