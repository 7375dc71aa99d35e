"""Count the input tokens of a Messages request without sending it to a model."""

from contextlib import suppress

from msgspec.structs import replace

from toolgate.api.chat import window_of, with_headers
from toolgate.api.response_writer import ESTIMATED
from toolgate.conversation.errors import UpstreamError
from toolgate.dialects.anthropic import DIALECT as ANTHROPIC
from toolgate.dialects.anthropic.requests import decode_count_request
from toolgate.dialects.anthropic.server import encode_count
from toolgate.engine.json_thread import LARGE_BODY, run_in_thread
from toolgate.http.application import AdmittedHttpRequest, HttpRoute
from toolgate.upstreams.router import Router
from toolgate.upstreams.token_counting_offline import count_request_aside


class TokenCountHandler:
    """Asks the model's upstream to count, or estimates the count and marks that in a header."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def endpoints(self) -> list[HttpRoute]:
        """Return the endpoint."""
        return [HttpRoute("POST", "/v1/messages/count_tokens", self.count, ANTHROPIC.server)]

    async def count(self, call: AdmittedHttpRequest) -> None:
        """Count the input tokens of a Messages request."""
        body = self._router.with_model(await call.exchange.json(), call.caller.may_use)
        if call.exchange.received > LARGE_BODY:
            request = await run_in_thread(decode_count_request, body)
        else:
            request = decode_count_request(body)
        request = with_headers(request, call.headers, ANTHROPIC.forwarded_headers)
        route = self._router.find(request.model)
        call.caller.require_model(route.name, request.model)
        call.record.model = route.name
        request = replace(request, editor=window_of(call, route))
        call.exchange.cancel_when_client_leaves()
        count = None
        if route.counter is not None:
            # Clients count to decide whether to compact: an estimate serves them better than an error.
            with suppress(UpstreamError):
                count = await route.counter.count(request)
        if count is None:
            await call.exchange.respond(200, encode_count(await count_request_aside(request)), [ESTIMATED])
        else:
            await call.exchange.respond(200, encode_count(count))
