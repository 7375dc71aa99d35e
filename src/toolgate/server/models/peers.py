"""The lines to stateful peers: one for each upstream, kept when the configuration is read again, and what they remember."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from toolgate.config import Upstream
from toolgate.engine.ports import Model
from toolgate.storage.database import Database
from toolgate.storage.peers import PeerStore

if TYPE_CHECKING:
    from toolgate.upstreams.peers.peer import Peer


class Peers:
    """Opens nothing until a model of a peer is asked for."""

    def __init__(self, database: Database) -> None:
        self._conversations = PeerStore(database)
        self._open: list[tuple[Upstream, Peer]] = []

    def model(self, upstream: Upstream, model: str, note: Callable[[str, str], None]) -> Model:
        """A model of the peer behind this upstream; a caller continues no conversation but their own."""
        from toolgate.upstreams.peers.model import PeerModel  # brings a WebSocket library

        peer = self._peer(upstream)
        return PeerModel(peer, model, self._conversations, owner=lambda request: request.caller, note=note)

    async def aclose(self) -> None:
        """Close every line."""
        for _, peer in self._open:
            await peer.aclose()

    def _peer(self, upstream: Upstream) -> "Peer":
        from toolgate.upstreams.peers.line import Limits
        from toolgate.upstreams.peers.peer import Peer
        from toolgate.upstreams.transport import Timeouts

        for known, peer in self._open:
            if known == upstream:
                return peer
        limits, key = upstream.timeouts, upstream.api_key
        timeouts = Timeouts(limits.connect, limits.first_byte, limits.idle, limits.total)
        headers = {name: value.reveal() for name, value in upstream.headers.items()}
        peer = Peer(
            upstream.name,
            upstream.base_url,
            key.reveal() if key else None,
            headers=headers,
            limits=Limits(timeouts=timeouts),
        )
        self._open.append((upstream, peer))
        return peer
