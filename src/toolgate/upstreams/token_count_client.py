"""Have an upstream count the tokens of a request, where its dialect has a request for that."""

from toolgate.conversation.request import ModelRequest
from toolgate.conversation.rough_size_estimate import is_request_larger
from toolgate.dialects.dialect import Quirks, UpstreamTokenCountCodec
from toolgate.engine.json_thread import LARGE_BODY, run_in_thread
from toolgate.upstreams.http_model import OWN_HEADERS, UpstreamEndpoint
from toolgate.upstreams.tool_definition_rewrite import adapt
from toolgate.upstreams.transport import UpstreamHttpClient
from toolgate.wire.jsontext import decode_response_body, encode


class UpstreamTokenCountClient:
    """Counts tokens with one model of one upstream."""

    def __init__(
        self,
        transport: UpstreamHttpClient,
        endpoint: UpstreamEndpoint,
        counting: UpstreamTokenCountCodec,
        model: str,
        quirks: Quirks,
    ) -> None:
        self._transport = transport
        self._endpoint = endpoint
        self._counting = counting
        self._model = model
        self._quirks = quirks
        self._headers = {**OWN_HEADERS, **endpoint.headers, "accept": "application/json"}

    async def count(self, request: ModelRequest) -> int:
        """Return the input tokens; raise UpstreamError when the upstream does not count."""
        endpoint = self._endpoint
        body = (
            await run_in_thread(self._encode, request)
            if is_request_larger(request, LARGE_BODY)
            else self._encode(request)
        )
        url, headers = endpoint.base_url + self._counting.path(), {**self._headers, **request.headers}
        response = await self._transport.post(url, headers, body, timeouts=endpoint.timeouts)
        try:
            data = await response.read()
            if not 200 <= response.status < 300:
                raise endpoint.dialect.upstream.decode_error(response.status, response.headers, data)
            return self._counting.decode_count(decode_response_body(data)[0])
        except BaseException:  # also a client that leaves: the connection must not wait for the rest
            await response.aclose()
            raise

    def _encode(self, request: ModelRequest) -> bytes:
        adapted = adapt(request, self._endpoint.dialect.name, self._quirks).request
        return encode({**self._counting.encode_request(adapted, self._quirks), "model": self._model})
