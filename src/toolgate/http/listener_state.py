"""What all connections of one listener share."""

import asyncio
from typing import Any, Generic, TypeVar

from toolgate.http.asgi_types import AsgiApp
from toolgate.http.error_response import EncodeError, openai_error_body
from toolgate.http.evictions import ConnectionEvictions
from toolgate.http.request_limits import Headers, RequestLimits

_Connection = TypeVar("_Connection")


class ListenerState(Generic[_Connection]):
    """The application, its limits, and the open connections with their running tasks.

    `default_headers` are sent with every response; the list is changed in place, because connections keep it.
    """

    def __init__(
        self, app: AsgiApp, limits: RequestLimits | None = None, encode_error: EncodeError = openai_error_body
    ) -> None:
        self.app = app
        self.limits = limits or RequestLimits()
        self.encode_error = encode_error
        self.app_state: dict[str, Any] = {}  # what the application keeps from its lifespan
        self.default_headers: Headers = []
        self.connections: set[_Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.evictions = ConnectionEvictions()
        self.draining = False

    @property
    def has_room(self) -> bool:
        """Whether the connections that are open leave the last ones, which are for callers with less than their share."""
        return len(self.connections) <= self.limits.connections - self.limits.reserved
