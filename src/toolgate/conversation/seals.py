"""Envelopes for reasoning seals, so that one made in a dialect survives a client that speaks another.

The envelope is a string that fits wherever a dialect keeps an opaque signature. Only we can open it; a dialect that
gets one back unwraps it, and the seal reaches its own upstream unchanged or stays out.
"""

import base64
import binascii

import msgspec

from toolgate.conversation.arguments import without_halves
from toolgate.conversation.message import Seal

_PREFIX = "tgseal1."


def enclose(seal: Seal) -> str:
    """The seal as one opaque string."""
    try:
        text = msgspec.json.encode(seal)
    except UnicodeEncodeError:  # half of a surrogate pair, which no provider can have signed
        text = msgspec.json.encode(without_halves(msgspec.to_builtins(seal)))
    return _PREFIX + base64.urlsafe_b64encode(text).decode()


def disclose(envelope: str) -> Seal | None:
    """The seal inside, or None if the string is not one of our envelopes."""
    if not envelope.startswith(_PREFIX):
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(envelope[len(_PREFIX) :]), type=Seal)
    except (binascii.Error, msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
