"""Send requests to a model of an upstream over HTTP.

It joins the upstream codec of a dialect, which does no I/O, with the transport, which knows no dialect.
How responses are read is in `http_responses.py`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from toolgate import __version__
from toolgate.conversation.errors import UpstreamError, UpstreamRejected
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.rough_size_estimate import is_request_larger
from toolgate.dialects.dialect import Dialect, Quirks
from toolgate.engine.json_thread import LARGE_BODY, run_in_thread
from toolgate.engine.ports import ModelStream
from toolgate.upstreams.http_responses import WholeResponseStream, decode_error, open_stream
from toolgate.upstreams.setting_emulation import EmulatedResponseRewriter, in_turn, substitute
from toolgate.upstreams.tool_definition_rewrite import ToolNameRestorer, adapt, check_choices
from toolgate.upstreams.transport import UpstreamHttpClient, UpstreamTimeouts
from toolgate.upstreams.wrapped_streams import with_warning
from toolgate.wire.jsontext import encode, encode_in_steps

OWN_HEADERS = {"content-type": "application/json", "user-agent": f"toolgate/{__version__}"}

_MANY_CHARACTERS = 4 * 1024 * 1024  # of a request that is encoded in steps


class UpstreamEndpoint(Struct, frozen=True):
    """The address, dialect, headers and timeouts of an upstream."""

    name: str
    dialect: Dialect
    base_url: str
    headers: Mapping[str, str]
    timeouts: UpstreamTimeouts = UpstreamTimeouts()


class HttpModel:
    """One model of one upstream."""

    def __init__(
        self,
        transport: UpstreamHttpClient,
        endpoint: UpstreamEndpoint,
        model: str,
        quirks: Quirks,
        on_attempt: Callable[[str, str], None] = lambda upstream, outcome: None,
    ) -> None:
        """`on_attempt` is called for every attempt with the upstream's name, and `ok` or the code of the failure."""
        self._on_attempt = on_attempt
        self._transport = transport
        self._endpoint = endpoint
        self._codec = endpoint.dialect.upstream
        self._model = model
        self._quirks = quirks
        own = {**OWN_HEADERS, **endpoint.headers}
        # By `request.stream`; made once, so that the writer of request heads knows them again.
        self._headers = {
            True: {**own, "accept": endpoint.dialect.stream_type},
            False: {**own, "accept": "application/json"},
        }

    async def ask(self, request: ModelRequest, *, resent: bool = False) -> ModelStream:
        """Return the answer once its first piece has arrived; a request refused for an optional field is sent without it."""
        # This is one coroutine and not several, because each await passes through every coroutine above it.
        endpoint, codec = self._endpoint, self._codec
        if request.small or not is_request_larger(request, LARGE_BODY):
            encoded = self._encode(request)
        else:
            encoded = await run_in_thread(self._encode, request)
        sent, body, dropped, rewriter = encoded
        headers = self._headers[request.stream]
        # Headers such as `anthropic-beta` change what a body means, and only in their own dialect.
        if request.headers and request.dialect == endpoint.dialect.name:
            headers = {**headers, **request.headers}
        url = endpoint.base_url + codec.path(request)
        try:
            response = await self._transport.post(url, headers, body, endpoint.timeouts)
            try:
                if not 200 <= response.status < 300:
                    raw = await response.read()
                    if len(raw) > LARGE_BODY:
                        raise await run_in_thread(decode_error, codec, response, raw)
                    raise decode_error(codec, response, raw)
                answer: ModelStream
                if request.stream:
                    answer = await open_stream(endpoint.name, endpoint.dialect, sent, response, dropped, rewriter)
                else:
                    whole = response.take_whole()
                    if whole is None:
                        whole = await response.read()
                    if len(whole) > LARGE_BODY:
                        answer = await run_in_thread(
                            WholeResponseStream, endpoint.name, endpoint.dialect, sent, whole, dropped, rewriter
                        )
                    else:
                        answer = WholeResponseStream(endpoint.name, endpoint.dialect, sent, whole, dropped, rewriter)
            except BaseException:  # also a client that leaves: the upstream then stops generating
                await response.aclose()
                raise
        except UpstreamError as fault:
            self._on_attempt(endpoint.name, fault.code)
            if resent or not isinstance(fault, UpstreamRejected):
                raise
            # Such as `service_tier`, or thinking that another model has signed.
            repaired = endpoint.dialect.repair_rejected(request, fault)
            if repaired is None:
                raise
        else:
            self._on_attempt(endpoint.name, "ok")
            return answer
        # Outside of the handler, or a second failure would carry the first one as its context.
        without, warning = repaired
        return with_warning(await self.ask(without, resent=True), warning)

    def _encode(
        self, request: ModelRequest
    ) -> tuple[ModelRequest, bytes, tuple[str, ...], EmulatedResponseRewriter | None]:
        """Return the request as the upstream accepts it, its body, warnings, and the rewriter that undoes the changes."""
        dialect = self._endpoint.dialect.name
        if request.settings.choices > 1:
            check_choices(request, dialect)
        if request.dialect == dialect:  # sent unchanged, so that there is nothing to undo
            body, dropped = self._codec.encode_request(request, self._quirks)
            body["model"] = self._model
            return request, _encode_body(request, body), dropped, None
        adapted = adapt(request, dialect, self._quirks)
        changed = substitute(adapted.request, dialect, self._quirks)
        body, dropped = self._codec.encode_request(changed.request, self._quirks)
        body["model"] = self._model
        # The request was adapted first and substituted second, so that the answer is restored in the opposite order.
        rewriters = changed.rewriters
        if adapted.originals:
            rewriters = (*rewriters, ToolNameRestorer(adapted.originals))
        warnings = dropped + adapted.dropped + changed.dropped
        return changed.request, _encode_body(request, body), warnings, in_turn(rewriters)


def _encode_body(request: ModelRequest, body: dict[str, Any]) -> bytes:
    is_large = not request.small and is_request_larger(request, _MANY_CHARACTERS)
    return encode_in_steps(body) if is_large else encode(body)
