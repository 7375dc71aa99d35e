"""Record chats, tool calls and usage after responses are sent; list them, and delete them after their retention time."""

from toolgate.api.records.record_services import RecordServices

__all__ = ["RecordServices"]
