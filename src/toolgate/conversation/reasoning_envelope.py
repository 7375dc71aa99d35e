"""Wrap reasoning signatures in envelopes, so that a signature of one dialect survives a client of another.

The envelope is a string that fits wherever a dialect keeps an opaque signature. A dialect that receives one unwraps it,
and the signature is sent to its own upstream unchanged or to none.
"""

import base64
import binascii

import msgspec

from toolgate.conversation.message import ReasoningSignature
from toolgate.conversation.surrogates import repair_surrogates

_PREFIX = "tgseal1."


def wrap_signature(signature: ReasoningSignature) -> str:
    """Encode the signature as one opaque string."""
    try:
        text = msgspec.json.encode(signature)
    except UnicodeEncodeError:  # a lone surrogate, which no provider can have signed
        text = msgspec.json.encode(repair_surrogates(msgspec.to_builtins(signature)))
    return _PREFIX + base64.urlsafe_b64encode(text).decode()


def unwrap_signature(envelope: str) -> ReasoningSignature | None:
    """Return the signature inside, or None if the string is not one of our envelopes."""
    if not envelope.startswith(_PREFIX):
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(envelope[len(_PREFIX) :]), type=ReasoningSignature)
    except (binascii.Error, msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
