"""How a relay is ended in tests of one dialect, where nothing counts tokens."""

from toolgate.conversation.events import Usage
from toolgate.dialects.dialect import Relay


def end_of(relay: Relay) -> bytes:
    """What is left to say, with zeros for the usage that the upstream did not report."""
    rest = relay.end()
    return rest + relay.end_with(Usage()) if relay.lacks_usage else rest
