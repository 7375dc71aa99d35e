"""Counting the tokens of a request that is not asked."""

from toolgate.conversation.errors import UpstreamFault
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.anthropic import DIALECT as ANTHROPIC
from toolgate.dialects.anthropic.requests import decode_count_request
from toolgate.dialects.anthropic.server import encode_count
from toolgate.engine.offload import LARGE, off_loop
from toolgate.server.app import Call
from toolgate.server.endpoints import ESTIMATED, with_headers
from toolgate.upstreams.router import Route, Router
from toolgate.upstreams.tokens import count_request_aside


class TokenCounts:
    """Has the model's upstream count if it can, else counts offline, which a header says."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def count(self, call: Call) -> None:
        """Count the input tokens of a Messages request."""
        body = self._router.with_model(await call.exchange.json(), call.caller.may_use)
        if call.exchange.received > LARGE:
            request = await off_loop(decode_count_request, body)
        else:
            request = decode_count_request(body)
        request = with_headers(request, call.exchange, ANTHROPIC.passed_headers)
        call.record.model = request.model
        route = self._router.find(request.model)
        call.caller.require_model(route.name, request.model)
        call.exchange.cancel_when_client_leaves()
        count = await _upstream_count(route, request)
        if count is None:
            await call.exchange.respond(200, encode_count(await count_request_aside(request)), [ESTIMATED])
        else:
            await call.exchange.respond(200, encode_count(count))


async def _upstream_count(route: Route, request: ModelRequest) -> int | None:
    """What the upstream counts; None if it cannot, or fails."""
    if route.counter is None:
        return None
    try:
        return await route.counter.count(request)
    except UpstreamFault:
        return None
