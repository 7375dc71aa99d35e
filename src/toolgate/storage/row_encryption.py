"""Encrypt rows under a secret that is not in the database.

SHAKE-256 of the secret and a fresh nonce is the key stream, and an HMAC-SHA-256 over nonce and ciphertext proves that
nothing was changed. Both keys are derived from the secret, which has 32 bytes.
"""

import hashlib
import hmac
import secrets

SECRET_BYTES = 32
_NONCE_BYTES = 16
_TAG_BYTES = 32


class UnreadableRow(ValueError):
    """The row was encrypted under another secret, or was changed."""


def new_secret() -> bytes:
    """Return a random secret."""
    return secrets.token_bytes(SECRET_BYTES)


def derive_secret(purpose: str, text: bytes) -> bytes:
    """Return the secret that is derived from this text."""
    return hashlib.sha256(b"%b\0%b" % (purpose.encode(), text)).digest()


def encrypt(secret: bytes, plain: bytes) -> bytes:
    """Encrypt a text."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    hidden = _mixed(secret, nonce, plain)
    return nonce + _tag(secret, nonce + hidden) + hidden


def decrypt(secret: bytes, sealed: bytes) -> bytes:
    """Decrypt a text; UnreadableRow under any other secret."""
    # nonce (16 bytes), tag (32 bytes), ciphertext
    nonce, tag, hidden = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:][:_TAG_BYTES], sealed[_NONCE_BYTES + _TAG_BYTES :]
    if not hmac.compare_digest(tag, _tag(secret, nonce + hidden)):
        raise UnreadableRow
    return _mixed(secret, nonce, hidden)


def _mixed(secret: bytes, nonce: bytes, text: bytes) -> bytes:
    stream = hashlib.shake_256(derive_secret("stream", secret) + nonce).digest(len(text))
    # As two large numbers: a loop over the bytes takes ten times as long.
    return (int.from_bytes(text, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(text), "big")


def _tag(secret: bytes, text: bytes) -> bytes:
    return hmac.digest(derive_secret("tag", secret), text, "sha256")
