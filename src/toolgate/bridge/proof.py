"""Prove to the other end of the bridge that both know the token, without sending it.

Each side sends a fresh nonce and proves the token over both, so that a recorded proof is worthless. The address that the
editor has dialled is part of it: a program on another port cannot pass the editor's proof on to the gateway.
Knows texts and digests only; the token comes from `token_file.py`.
"""

import hmac
import secrets
from typing import Literal, TypeAlias

PROTOCOL = "toolgate-bridge.v1"
Side: TypeAlias = Literal["editor", "gateway"]


def new_nonce() -> str:
    """Return 32 random bytes in base64url."""
    return secrets.token_urlsafe(32)


def prove(token: str, side: Side, gateway_nonce: str, editor_nonce: str, address: str) -> str:
    """Return the proof of one side: an HMAC-SHA256 in hex."""
    # The side is part of it, or a proof could be sent back to its sender as the other side's.
    message = "\n".join([PROTOCOL, side, gateway_nonce, editor_nonce, address])
    return hmac.digest(token.encode(), message.encode(), "sha256").hex()


def is_proof(given: str, token: str, side: Side, gateway_nonce: str, editor_nonce: str, address: str) -> bool:
    """Compare a proof with the right one in constant time."""
    right = prove(token, side, gateway_nonce, editor_nonce, address)
    return hmac.compare_digest(given.encode("utf-8", "replace"), right.encode())
