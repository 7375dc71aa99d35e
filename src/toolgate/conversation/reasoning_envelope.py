"""Wrap reasoning signatures in envelopes, so that a signature of one dialect survives a client of another.

The envelope is a string that fits wherever a dialect keeps an opaque signature. A dialect that receives one unwraps it,
and the signature is sent to its own upstream unchanged or to none.
"""

import base64
import binascii

import msgspec

from toolgate.conversation.message import ReasoningSignature
from toolgate.conversation.surrogates import encode_repaired

_PREFIX = "tgseal1."  # clients keep envelopes in their histories, so an envelope of another form needs another number


def wrap_signature(signature: ReasoningSignature) -> str:
    """Encode the signature as one opaque string."""
    # A lone surrogate is replaced, which no provider can have signed.
    return _PREFIX + base64.urlsafe_b64encode(encode_repaired(signature)).decode()


def unwrap_signature(envelope: str) -> ReasoningSignature | None:
    """Return the signature inside, or None if the string is not one of our envelopes."""
    if not envelope.startswith(_PREFIX):
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(envelope[len(_PREFIX) :]), type=ReasoningSignature)
    except (binascii.Error, msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
