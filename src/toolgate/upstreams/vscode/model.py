"""A model that an editor lends: a request goes to a window that lends it now, and its answer streams back.

Which window that is, is decided with every request: the one that the client names, else the one that was focused last.
Every question may cost the person in the editor something, so that nothing is retried here.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable

from msgspec.structs import replace

from toolgate.bridge.exchange import EditorExchange, EditorExchangeTimeouts
from toolgate.bridge.frames import (
    BridgeCountFrame,
    BridgeDataPart,
    BridgeTextPart,
    BridgeThinkingPart,
    BridgeToolCall,
    BridgeToolResult,
    EditorModelSelector,
    LentModel,
    encode_frame,
)
from toolgate.bridge.windows import EditorWindow, EditorWindows
from toolgate.conversation.errors import (
    EmptyModelAnswer,
    GatewayOverloaded,
    InvalidUpstreamAnswer,
    UpstreamError,
    UpstreamRejected,
    UpstreamUnavailable,
    UpstreamUnreachable,
)
from toolgate.conversation.event_assembler import EventAssembler
from toolgate.conversation.events import StepEvent, Usage
from toolgate.conversation.message import Media, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.rough_size_estimate import is_request_larger
from toolgate.conversation.tool_definition_cache import tool_names
from toolgate.dialects.dialect import Quirks
from toolgate.engine.json_thread import LARGE_BODY, run_in_thread
from toolgate.engine.ports import ModelStream
from toolgate.scheduling import QueueFull
from toolgate.upstreams.setting_emulation import EmulatedResponseRewriter, in_turn, substitute
from toolgate.upstreams.token_counting_offline import count_request_aside
from toolgate.upstreams.tool_definition_rewrite import ToolNameRestorer, adapt
from toolgate.upstreams.vscode.combined_tool import as_one_tool
from toolgate.upstreams.vscode.encode_ask import AskAttribution, LentModelCapabilities, encode_ask

DIALECT = "vscode"
# The name of the upstream in the configuration and in the log.
UPSTREAM = "vscode"

_QUIRKS, _WITHOUT_TOOLS = Quirks(), Quirks(output_format="none")
_MARGIN = 1.1  # tokenizers differ: only what is clearly too long is refused here
_SLOT_SECONDS = 10.0
_COUNT_SECONDS = 10.0


class VscodeModel:
    """One model by its vendor and its id or family; without a vendor, of any."""

    def __init__(
        self,
        windows: EditorWindows,
        vendor: str | None,
        model: str,
        timeouts: EditorExchangeTimeouts | None = None,
        note: Callable[[str, str], None] = lambda upstream, outcome: None,
    ) -> None:
        """`note` is called for every attempt with `ok` or the code of the failure."""
        self._windows = windows
        self._vendor = vendor
        self._model = model
        self._timeouts = timeouts or EditorExchangeTimeouts()
        self._note = note

    async def ask(self, request: ModelRequest) -> ModelStream:
        """Return the answer once its first piece has arrived."""
        try:
            answer = await self._asked(request)
        except UpstreamError as fault:
            self._note(UPSTREAM, fault.code)
            raise
        self._note(UPSTREAM, "ok")
        return answer

    async def count(self, request: ModelRequest) -> int:
        """Have the editor count the input tokens of a request."""
        window, lent = self._lender(request)
        texts = tuple([part.text for message in request.messages for part in message.parts if isinstance(part, Text)])
        # The editor counts texts alone: tools, calls, results and media are counted here.
        kinds = (Media, ToolCall, ToolResult)
        rest = [
            replace(one, parts=tuple([part for part in one.parts if isinstance(part, kinds)]))
            for one in request.messages
        ]
        others = await count_request_aside(replace(request, messages=tuple(rest)))
        exchange = window.exchange(replace(self._timeouts, start=_COUNT_SECONDS, first_byte=_COUNT_SECONDS))
        try:
            frame = BridgeCountFrame(exchange.id, EditorModelSelector(lent.vendor, lent.id), texts)
            await window.send(encode_frame(frame), exchange, "count", request.caller)
            await exchange.begin()
        finally:
            exchange.cancel()
            window.forget(exchange)
        if exchange.ending is None or len(exchange.ending.tokens) != len(texts):
            raise InvalidUpstreamAnswer("The editor did not count what it was asked to count.")
        return sum(exchange.ending.tokens) + others

    def _lender(self, request: ModelRequest) -> tuple[EditorWindow, LentModel]:
        if request.editor is None:
            raise UpstreamUnavailable(
                "Web pages may use the models of an editor only with a key.", code="origin_not_allowed", status=403
            )
        found = self._windows.lender(self._vendor, self._model, request.editor)
        if found is None:
            name = f"{self._vendor}/{self._model}" if self._vendor else self._model
            where = f"The window {request.editor[:80]!r} does not lend" if request.editor else "No editor lends"
            raise UpstreamUnreachable(
                f"{where} the model {name} now: open it in VS Code and switch lending on.",
                code="no_editor",
                status=503,
            )
        return found

    async def _asked(self, request: ModelRequest) -> ModelStream:
        window, lent = self._lender(request)
        # A request that is clearly too long is refused before it costs the person anything. A token has more than two
        # characters on average, so that most requests need not be counted.
        if is_request_larger(request, 2 * lent.max_input_tokens):
            counted = await count_request_aside(request)
            if counted > lent.max_input_tokens * _MARGIN:
                name, most = lent.name or lent.id, lent.max_input_tokens
                text = f"The request has about {counted} tokens, and {name} takes {most} at most."
                raise UpstreamRejected(text, code="context_length_exceeded")
        slots = window.asks
        if not slots.try_acquire():
            try:
                async with asyncio.timeout(_SLOT_SECONDS):
                    await slots.wait(request.caller)
            except (QueueFull, TimeoutError):
                text = f"{window.state.title} is answering as many requests as it may; try again shortly."
                raise GatewayOverloaded(text, code="upstream_full", retry_after=_SLOT_SECONDS) from None
        try:
            return await self._send(request, window, lent)
        except BaseException:
            slots.release()
            raise

    async def _send(self, request: ModelRequest, window: EditorWindow, lent: LentModel) -> ModelStream:
        exchange = window.exchange(self._timeouts)
        try:
            if request.small or not is_request_larger(request, LARGE_BODY):
                frame, dropped, rewriter = _encode(exchange.id, request, lent)
            else:
                frame, dropped, rewriter = await run_in_thread(_encode, exchange.id, request, lent)
            await window.send(frame, exchange, "ask", request.caller)
            await exchange.begin()
        except BaseException:
            exchange.cancel()
            window.forget(exchange)
            raise
        only_one = request.tool_choice is not None and request.tool_choice.parallel is False
        return VscodeStream(window, exchange, lent, tool_names(request.tools), dropped, rewriter, only_one)


class VscodeStream:
    """An answer that streams in; it holds a slot of its window until it is read or closed."""

    whole = False
    dialect: str | None = None
    upstream = UPSTREAM

    def __init__(
        self,
        window: EditorWindow,
        exchange: EditorExchange,
        lent: LentModel,
        tools: frozenset[str],
        warnings: tuple[str, ...],
        rewriter: EmulatedResponseRewriter | None,
        only_one_call: bool,
    ) -> None:
        self.warnings = warnings
        self._window = window
        self._exchange = exchange
        self._lent = lent
        self._tools = tools
        self._rewriter = rewriter
        self._only_one_call = only_one_call
        self._closed = False

    @property
    def reported(self) -> Usage | None:
        """The usage that the editor has reported, which is charged even if the end of the answer is not read."""
        ending = self._exchange.ending
        if ending is None or (used := ending.usage) is None:
            return None
        return Usage(used.input, used.output, cache_read=min(used.cached or 0, used.input))

    async def events(self) -> AsyncGenerator[list[StepEvent], None]:
        """Yield the events in batches, as the editor sent them."""
        assembler, rewriter = EventAssembler(self._tools), self._rewriter
        assembler.start(model=self._lent.id)
        empty, stopped = True, False
        try:
            while not stopped and (pieces := await self._exchange.more()):
                for piece in pieces:
                    match piece:
                        case BridgeTextPart(text):
                            assembler.text(text)
                            empty = empty and not text
                        case BridgeThinkingPart(text=text):
                            assembler.reasoning(text)
                        case BridgeToolCall(call_id, name, raw) if not (self._only_one_call and assembler.called):
                            arguments = bytes(raw).decode()
                            assembler.end_part()
                            assembler.call(call_id, id=call_id, name=name, arguments=arguments)
                            assembler.end_call(call_id)
                            empty = False
                        case BridgeToolCall():
                            stopped = True  # the client wants one call at a time, and editors have no field for that
                        case BridgeDataPart(mime=mime, data=data):
                            assembler.whole(Media("image" if mime.startswith("image/") else "file", mime, data))
                            empty = False
                        case BridgeToolResult():
                            pass  # of a tool that the provider has run
                batch = assembler.take()
                if rewriter is not None:
                    batch = rewriter.restore(batch)
                    stopped = stopped or rewriter.done
                if batch:
                    yield batch
        finally:
            self._close()
        # At a stop text the rewriter has emitted the end of the step itself.
        if rewriter is not None and rewriter.done:
            return
        ending = self._exchange.ending
        if empty:
            raise EmptyModelAnswer("The editor's model answered with neither text nor a call.")
        assembler.end((ending.finish if ending is not None else None) or "stop", self.reported)
        batch = assembler.take()
        yield batch if rewriter is None else rewriter.restore(batch)

    async def aclose(self) -> None:
        """Close the stream; an unfinished answer is cancelled at the editor."""
        self._close()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._exchange.cancel()
            self._window.forget(self._exchange)
            self._window.asks.release()


def _encode(
    id: str, request: ModelRequest, lent: LentModel
) -> tuple[bytes, tuple[str, ...], EmulatedResponseRewriter | None]:
    """Return the frame, warnings, and the rewriter that undoes the changes that the editor's API needs."""
    adapted = adapt(request, DIALECT, _QUIRKS)
    changed = substitute(adapted.request, DIALECT, _WITHOUT_TOOLS if lent.tools is False else _QUIRKS)
    rewriters = changed.rewriters
    sent = changed.request
    # Undone from the last change to the first: the combined tool, the emulated settings, the names.
    if combined := as_one_tool(sent):
        sent, decoder = combined
        rewriters = (decoder, *rewriters)
    if adapted.originals:
        rewriters = (*rewriters, ToolNameRestorer(adapted.originals))
    # Counted for the person, whom the editor shows how many questions one request of a client has cost.
    origin = AskAttribution(request.caller, request.request_id)
    if request.tally is not None:
        request.tally.lent += 1
        origin = AskAttribution(request.caller, request.request_id, request.tally.lent)
    capabilities = LentModelCapabilities(images=lent.images is not False)  # None: the editor does not know
    frame, dropped = encode_ask(id, EditorModelSelector(lent.vendor, lent.id), sent, capabilities, origin)
    return encode_frame(frame), (*adapted.dropped, *changed.dropped, *dropped), in_turn(rewriters)
