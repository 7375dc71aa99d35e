"""The servers measured, one file each; a peer says how to get it, how to start it and how to address it."""

from bench.peers.litellm import LiteLLM
from bench.peers.nginx import Nginx
from bench.peers.peer import Direct, Missing, Peer, Start, Target
from bench.peers.portkey import Portkey
from bench.peers.toolgate import Toolgate

PEERS: dict[str, Peer] = {peer.name: peer for peer in (Toolgate(), Nginx(), Portkey(), LiteLLM())}

__all__ = ["PEERS", "Direct", "Missing", "Peer", "Start", "Target"]
