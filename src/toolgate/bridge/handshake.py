"""Let an editor join: both sides prove that they know the token, and then the editor describes its window.

Nothing is told to the other side before it has proven itself. Knows frames and proofs; it must not know HTTP.
"""

import asyncio
import time
from typing import TypeVar

from msgspec import Struct

from toolgate import __version__
from toolgate.bridge.bound_lent_items import bounded_identity, bounded_window
from toolgate.bridge.frame_connection import BridgeProtocolError, FrameConnection
from toolgate.bridge.frames import (
    BAD_PROOF,
    MAX_FRAME,
    NO_COMMON_PROTOCOL,
    SILENCE,
    BridgeChallengeFrame,
    BridgeHelloFrame,
    BridgePingFrame,
    BridgePongFrame,
    BridgeRegisterWindowFrame,
    BridgeWelcomeFrame,
    GatewayNameAndVersion,
    MalformedFrame,
)
from toolgate.bridge.proof import PROTOCOL, is_proof, new_nonce, prove
from toolgate.bridge.windows import WindowState
from toolgate.conversation.random_ids import random_suffix

_Kind = TypeVar("_Kind", BridgeHelloFrame, BridgeRegisterWindowFrame)


class BridgeCredentials(Struct, frozen=True):
    """How the other side may join: by proving the `token` for this `address`, or by the key of this `owner`.

    `address` is the host and port that the connection has reached, such as `127.0.0.1:8080`.
    """

    token: str = ""
    address: str = ""
    owner: str = ""


async def join(
    connection: FrameConnection, admission: BridgeCredentials, *, seconds: float, heartbeat: float
) -> WindowState | None:
    """Exchange proofs, and return the window that joins; None if the connection is over, BridgeProtocolError if it must be.

    The editor may take so many seconds for each of its two frames; it is told that a ping comes every `heartbeat` seconds.
    """
    nonce = new_nonce()
    connection.write(BridgeChallengeFrame((PROTOCOL,), nonce, "key" if admission.owner else "token"))
    hello = await _expect(connection, BridgeHelloFrame, seconds)
    if hello is None:
        return None
    if hello.protocol != PROTOCOL:
        raise BridgeProtocolError(NO_COMMON_PROTOCOL, f"Only {PROTOCOL} is spoken here.")
    proof = None if admission.owner else _mutual_proof(hello, admission, nonce)
    session = f"bridge_{random_suffix(16)}"
    identity = GatewayNameAndVersion("toolgate", __version__)
    connection.write(BridgeWelcomeFrame(PROTOCOL, session, heartbeat, MAX_FRAME, identity, proof))
    register = await _expect(connection, BridgeRegisterWindowFrame, seconds)
    if register is None:
        return None
    now = time.time()
    return WindowState(
        session=session,
        window=bounded_window(register.window),
        editor=bounded_identity(register.editor),
        lends=register.lends,
        owner=admission.owner,
        focused_at=now if register.window.focused else 0.0,
        since=now,
        max_frame=min(register.max_frame, MAX_FRAME),
    )


def _mutual_proof(hello: BridgeHelloFrame, admission: BridgeCredentials, nonce: str) -> str:
    """Check the editor's proof and return ours.

    The editor proves for the address that it has dialled. If that is not the one that this connection has reached, a
    program in between passes the proof on.
    """
    token, address = admission.token, hello.address
    is_right = is_proof(hello.proof or "", token, "editor", nonce, hello.nonce, address)
    if not is_right or address != admission.address:
        raise BridgeProtocolError(BAD_PROOF, "The proof is wrong.")
    return prove(token, "gateway", nonce, hello.nonce, address)


async def _expect(connection: FrameConnection, kind: type[_Kind], seconds: float) -> _Kind | None:
    """Return the next frame, which must be of this kind; None if the connection is over."""
    try:
        async with asyncio.timeout(seconds):
            while received := await connection.receive():
                frame, _ = received
                if isinstance(frame, kind):
                    return frame
                if not isinstance(frame, (BridgePingFrame, BridgePongFrame)):  # either side may ping at any time
                    raise MalformedFrame("out of turn")
    except TimeoutError:
        raise BridgeProtocolError(SILENCE, "The handshake took too long.") from None
    return None
