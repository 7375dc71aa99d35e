"""End a relay in tests of one dialect, where nothing counts tokens."""

from toolgate.conversation.events import Usage
from toolgate.dialects.dialect import StreamRelay


def end_of(relay: StreamRelay) -> bytes:
    """Return the last frames, with zeros for the usage that the upstream did not report."""
    rest = relay.end()
    return rest + relay.end_with(Usage()) if relay.lacks_usage else rest
