"""The tokens of a request as its upstream counts them, where the upstream's dialect has a question for that."""

from toolgate.conversation.request import ModelRequest
from toolgate.conversation.size import is_larger
from toolgate.dialects.dialect import CountingHalf, Quirks
from toolgate.engine.offload import LARGE, off_loop
from toolgate.upstreams.adapt import adapt
from toolgate.upstreams.http_model import OWN_HEADERS, Endpoint
from toolgate.upstreams.transport import Transport
from toolgate.wire.jsontext import decode_whole, encode


class UpstreamTokenCounter:
    """Counts with one model of one upstream; raises UpstreamFault when the upstream does not count."""

    def __init__(
        self, transport: Transport, endpoint: Endpoint, counting: CountingHalf, model: str, quirks: Quirks
    ) -> None:
        self._transport = transport
        self._endpoint = endpoint
        self._counting = counting
        self._model = model
        self._quirks = quirks
        self._headers = {**OWN_HEADERS, **endpoint.headers, "accept": "application/json"}

    async def count(self, request: ModelRequest) -> int:
        """The input tokens of the request."""
        endpoint = self._endpoint
        body = await off_loop(self._encode, request) if is_larger(request, LARGE) else self._encode(request)
        url, headers = endpoint.base_url + self._counting.path(), {**self._headers, **request.headers}
        reply = await self._transport.post(url, headers, body, timeouts=endpoint.timeouts)
        try:
            data = await reply.read()
            if not 200 <= reply.status < 300:
                raise endpoint.dialect.upstream.decode_error(reply.status, reply.headers, data)
            return self._counting.decode_count(decode_whole(data)[0])
        except BaseException:
            await reply.aclose()
            raise

    def _encode(self, request: ModelRequest) -> bytes:
        adapted = adapt(request, self._endpoint.dialect.name, self._quirks).request
        return encode({**self._counting.encode_request(adapted, self._quirks), "model": self._model})
