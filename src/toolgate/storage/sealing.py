"""Encrypt rows under a secret that the database does not hold.

SHAKE-256 of the secret and a fresh nonce is the key stream, and an HMAC-SHA-256 over nonce and ciphertext proves that
nothing was changed. Both keys are derived from the secret, which has 32 bytes.
"""

import hashlib
import hmac
import secrets

SECRET_BYTES = 32
_NONCE_BYTES = 16
_TAG_BYTES = 32


class Unreadable(ValueError):
    """The secret is another one, or the row was changed."""


def new_secret() -> bytes:
    """A random secret."""
    return secrets.token_bytes(SECRET_BYTES)


def derived(purpose: str, text: bytes) -> bytes:
    """The secret that whoever has this text can make again."""
    return hashlib.sha256(b"%b\0%b" % (purpose.encode(), text)).digest()


def seal(secret: bytes, plain: bytes) -> bytes:
    """The text, encrypted."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    hidden = _mixed(secret, nonce, plain)
    return nonce + _tag(secret, nonce + hidden) + hidden


def unseal(secret: bytes, sealed: bytes) -> bytes:
    """The text again; Unreadable under any other secret."""
    nonce, tag, hidden = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:][:_TAG_BYTES], sealed[_NONCE_BYTES + _TAG_BYTES :]
    if not hmac.compare_digest(tag, _tag(secret, nonce + hidden)):
        raise Unreadable
    return _mixed(secret, nonce, hidden)


def _mixed(secret: bytes, nonce: bytes, text: bytes) -> bytes:
    stream = hashlib.shake_256(derived("stream", secret) + nonce).digest(len(text))
    return (int.from_bytes(text, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(text), "big")


def _tag(secret: bytes, text: bytes) -> bytes:
    return hmac.digest(derived("tag", secret), text, "sha256")
