"""Call ids that every dialect accepts and that are unique across a conversation.

Upstreams send ids such as `functions.search:0`, `0` or `call_1` that restart every turn, or none at all, while clients
match results by id over the whole history and some accept only `[a-zA-Z0-9_-]`. A foreign id of that kind is carried
inside one of ours, so that the upstream gets its own back on the next turn without our remembering anything.
"""

import base64
import hashlib
import os
import re
import secrets
import string

_ALPHABET = string.ascii_letters + string.digits
_LETTERS = bytes([ord(_ALPHABET[byte % 62]) for byte in range(256)])
_PORTABLE = re.compile(r"[a-zA-Z0-9_-]{16,64}")
_CARRIED = re.compile(r"call_tg[a-zA-Z0-9]{6}_([a-zA-Z0-9_-]+)")
LONGEST = 64

# The system is asked for many at a time, since each time costs a call of the kernel. That is a global, but one of which
# nobody can tell: what is taken from it is gone, and a process that is forked off begins with none.
_AT_ONCE = 64
_fresh: list[str] = []
os.register_at_fork(after_in_child=_fresh.clear)


def mint(length: int = 24) -> str:
    """A fresh random suffix of letters and digits, at most 64."""
    try:
        return _fresh.pop()[:length]
    except IndexError:
        letters = secrets.token_bytes(LONGEST * _AT_ONCE).translate(_LETTERS).decode()
        first, *others = [letters[at : at + LONGEST] for at in range(0, len(letters), LONGEST)]
        _fresh.extend(others)
        return first[:length]


def new_call_id() -> str:
    """A fresh call id in the shape OpenAI's clients know."""
    return "call_" + mint()


def portable(foreign: str) -> str:
    """An id safe in every dialect and unique over a conversation, from which `original` finds the foreign one."""
    if _PORTABLE.fullmatch(foreign) and not _CARRIED.fullmatch(foreign):
        return foreign
    text = base64.urlsafe_b64encode(foreign.encode("utf-8", "replace")).decode().rstrip("=")
    carried = f"call_tg{mint(6)}_{text}"
    return carried if len(carried) <= LONGEST else new_call_id()


def original(call_id: str) -> str:
    """The upstream's own id inside one that `portable` made; any other id is returned as it is."""
    found = _CARRIED.fullmatch(call_id)
    if found is None:
        return call_id
    text = found[1]
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except ValueError:
        return call_id


def fitted(id: str, pattern: str) -> str:
    """The id if it matches the pattern, else nine characters made from it, always the same: what the strictest accept."""
    if re.fullmatch(pattern, id):
        return id
    number = int.from_bytes(hashlib.sha256(id.encode("utf-8", "replace")).digest()[:8])
    return "".join([_ALPHABET[number // 62**i % 62] for i in range(9)])
