"""Connect to stateful peers: one connection for each upstream, which outlives reloads of the configuration."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from toolgate.config import UpstreamConfig
from toolgate.engine.ports import Model
from toolgate.storage.database import Database
from toolgate.storage.peer_conversations import PeerConversationStore

if TYPE_CHECKING:
    from toolgate.upstreams.stateful_chat.reconnect import ReconnectingStatefulChat

    Peers: TypeAlias = list[tuple[UpstreamConfig, ReconnectingStatefulChat]]


class StatefulChatConnections:
    """The connections to peers; each is opened when a model of its peer is first asked."""

    def __init__(self, database: Database) -> None:
        self._conversations = PeerConversationStore(database)
        self._peers: Peers = []

    def factory(self) -> "StatefulChatFactory":
        """Return what builds the peer models of one site, on these connections where they fit."""
        return StatefulChatFactory(self._peers, self._conversations)

    def keep(self, factory: "StatefulChatFactory") -> None:
        """Take over the connections of a site that is now in force; earlier ones stay open for running requests."""
        self._peers = factory.peers

    async def aclose(self) -> None:
        """Close every connection."""
        for _, peer in self._peers:
            await peer.aclose()


class StatefulChatFactory:
    """Builds the peer models of one site, with an unopened connection for each upstream that has none yet."""

    def __init__(self, peers: "Peers", conversations: PeerConversationStore) -> None:
        self.peers = [*peers]
        self._conversations = conversations

    def model(self, upstream: UpstreamConfig, model: str, note: Callable[[str, str], None]) -> Model:
        """Return a model of the peer behind this upstream; a caller continues only its own conversations."""
        from toolgate.upstreams.stateful_chat.connection import StatefulChatLimits
        from toolgate.upstreams.stateful_chat.model import StatefulChatModel  # imports a WebSocket library
        from toolgate.upstreams.stateful_chat.reconnect import ReconnectingStatefulChat
        from toolgate.upstreams.transport import UpstreamTimeouts

        # A peer whose settings have changed gets a new connection; requests on the old one go on.
        peer = next((peer for known, peer in self.peers if known == upstream), None)
        if peer is None:
            limits, key = upstream.timeouts, upstream.api_key
            peer = ReconnectingStatefulChat(
                upstream.name,
                upstream.base_url,
                key.reveal() if key else None,
                headers={name: value.reveal() for name, value in upstream.headers.items()},
                limits=StatefulChatLimits(
                    timeouts=UpstreamTimeouts(limits.connect, limits.first_byte, limits.idle, limits.total)
                ),
            )
            self.peers.append((upstream, peer))
        return StatefulChatModel(peer, model, self._conversations, owner=lambda request: request.caller, note=note)
