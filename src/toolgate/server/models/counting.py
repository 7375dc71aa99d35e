"""Counting the tokens of a request that is not asked."""

from toolgate.dialects.anthropic.requests import decode_count_request
from toolgate.dialects.anthropic.server import encode_count
from toolgate.engine.offload import LARGE, off_loop
from toolgate.server.app import Call
from toolgate.upstreams.router import Router
from toolgate.upstreams.tokens import count_request_aside


class TokenCounts:
    """Counts offline, whatever the model's upstream is."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def count(self, call: Call) -> None:
        """Count the input tokens of a Messages request."""
        body = self._router.with_model(await call.exchange.json(), call.caller.may_use)
        if call.exchange.received > LARGE:
            request = await off_loop(decode_count_request, body)
        else:
            request = decode_count_request(body)
        call.record.model = request.model
        call.caller.require_model(self._router.find(request.model).name, request.model)
        await call.exchange.respond(200, encode_count(await count_request_aside(request)))
