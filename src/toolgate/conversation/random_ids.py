"""Make the random part of ids, of letters and digits, which every API accepts. Knows no kind of id."""

import os
import secrets
import string
from collections import defaultdict

ALPHABET = string.ascii_letters + string.digits
# Maps each byte to a letter or digit. The first eight of the 62 occur more often than the others, since 256 is no
# multiple of 62; ids of 24 characters can afford that.
_LETTERS = bytes([ord(ALPHABET[byte % 62]) for byte in range(256)])

# Random bytes are read for many suffixes at a time, since each read is a system call. This is a global, but an
# unobservable one: each suffix is used once, and a forked process begins without any. By their length, of which there
# are a handful, so that none is cut off a longer one.
_BATCH_BYTES = 4096
_fresh: defaultdict[int, list[str]] = defaultdict(list)
os.register_at_fork(after_in_child=_fresh.clear)


def random_suffix(length: int = 24) -> str:
    """Return a random suffix of letters and digits."""
    fresh = _fresh[length]
    try:
        return fresh.pop()
    except IndexError:
        letters = secrets.token_bytes(_BATCH_BYTES).translate(_LETTERS).decode()
        first, *others = [letters[at : at + length] for at in range(0, len(letters) - length + 1, length)]
        fresh.extend(others)
        return first
