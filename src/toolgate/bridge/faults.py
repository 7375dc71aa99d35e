"""Turn the failures of an editor into errors with a status, a code and a sentence for the client.

A failure that another upstream need not share is an `UpstreamUnavailable`, so that fallbacks are tried; a request that is
wrong by itself is an `UpstreamRejected`.
"""

from toolgate.bridge.frames import BridgeErrorFrame
from toolgate.conversation.errors import UpstreamError, UpstreamRejected, UpstreamTimeout, UpstreamUnavailable

# An editor may send any number, and clients sleep for the seconds of `retry-after`.
MAX_RETRY_AFTER = 3600.0
_LONGEST_REASON = 1000


def fault_of(frame: BridgeErrorFrame, editor: str) -> UpstreamError:
    """Return the fault of an error frame; an unknown code means that the editor failed."""
    reason = frame.message[:_LONGEST_REASON] or f"{editor} gave no reason ({frame.code[:64]})."
    wait = min(frame.retry_after, MAX_RETRY_AFTER) if frame.retry_after and frame.retry_after > 0 else None
    match frame.code:
        case "too_long":
            return UpstreamRejected(reason, code="context_length_exceeded")
        case "rejected" | "too_large":
            return UpstreamRejected(reason, code="upstream_rejected")
        case "blocked":
            return UpstreamRejected(reason, code="content_filter")
        case "rate_limited":
            return UpstreamUnavailable(reason, code="rate_limit_exceeded", status=429, retry_after=wait)
        case "quota":
            return UpstreamUnavailable(reason, code="insufficient_quota", status=429, retry_after=wait)
        case "no_permission":
            text = f"The person at {editor} has not allowed the use of this model: {reason}"
            return UpstreamUnavailable(text, code="editor_permission_denied", status=403)
        case "not_found":
            return UpstreamUnavailable(f"{editor} does not have it any more: {reason}", status=503)
        case "cancelled":
            return UpstreamUnavailable(f"It was cancelled in {editor}: {reason}", code="cancelled_in_editor")
        case "timeout":
            return UpstreamTimeout(reason)
    return UpstreamUnavailable(reason, retry_after=wait)
