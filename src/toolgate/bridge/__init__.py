"""The bridge to editors: frames, proofs, open windows and the requests that they are asked to carry out.

Knows the protocol `toolgate-bridge.v1` (docs/bridge-protocol.md). It must not know HTTP, dialects or tools.
"""
