"""The engine process: `python -m toolgate.upstreams.local.engine`, with messages on its standard input and output.

It loads weights and generates one answer at a time on the main thread, while another thread reads cancellations.
It ends when the gateway closes its end of the pipe, which the kernel does even if the gateway was killed.
Only this file imports the runtime and knows its API.
"""

import os
import queue
import secrets
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from toolgate.upstreams.local import frames
from toolgate.upstreams.local.control_tokens import ControlTokenEscaper, UnreadableVocabulary, control_tokens
from toolgate.upstreams.local.stop_texts import StopTextFilter
from toolgate.wire.length_prefix import read_prefixed

# Tokens of a prompt that are read between two checks for a cancellation.
BATCH = 128

NOT_INSTALLED = (
    "The runtime is not installed: run pip install '.[embedded]' in the clone of Toolgate, "
    "or install its wheel with the extra: pip install './toolgate_server-VERSION.whl[embedded]'."
)
NO_OPENMP = "The runtime needs the system's OpenMP library: install the package libgomp1 (libgomp on Fedora)."


class EngineProcessStdio:
    """The message streams on standard input and output, protected from libraries that print."""

    def __init__(self) -> None:
        # Our messages get numbers of their own. Standard input becomes empty, and standard output goes to standard
        # error, or a line that the runtime prints would stand in the middle of a message.
        self._incoming: BinaryIO = os.fdopen(os.dup(0), "rb")
        self._outgoing = os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)

    def read(self) -> frames.Order | None:
        """Return the next message; None when the server has closed the stream."""
        body = read_prefixed(self._incoming.read)
        return frames.decode_order(body) if body else None

    def write(self, report: frames.Report) -> None:
        """Send a message; the process ends if the server is gone."""
        rest = memoryview(frames.encode(report))
        try:
            while rest:  # a pipe may take less than all
                rest = rest[os.write(self._outgoing, rest) :]
        except OSError:
            os._exit(0)


class WeightsNotLoadable(Exception):
    """The weights cannot be loaded; the text is the reason."""


class LlamaEngine:
    """Loaded weights that generate one answer at a time."""

    def __init__(self, stdio: EngineProcessStdio) -> None:
        self._stdio = stdio
        self._orders: queue.SimpleQueue[frames.EngineGenerateFrame] = queue.SimpleQueue()
        self._cancelled: set[int] = set()
        self._server: Any = None  # the runtime has no types
        self._filter = ControlTokenEscaper(())

    def load(self, order: frames.EngineLoadFrame) -> None:
        """Load the weights; WeightsNotLoadable if that fails."""
        began, path = time.monotonic(), Path(order.path)
        if not path.is_file():
            raise WeightsNotLoadable(f"There is no file {order.path}.")
        try:
            import xllamacpp as runtime  # type: ignore[import-not-found, import-untyped, unused-ignore]  # an extra
        except ModuleNotFoundError:
            raise WeightsNotLoadable(NOT_INSTALLED) from None
        except ImportError as error:
            raise WeightsNotLoadable(
                NO_OPENMP if "libgomp" in str(error) else f"The runtime does not start: {error}."
            ) from None
        try:
            self._server = runtime.Server(_parameters(runtime, order))
        except (RuntimeError, ValueError, MemoryError) as error:
            raise WeightsNotLoadable(f"{path.name} cannot be loaded: {error}.") from None
        # Without the control tokens a user's text could forge turns, so that such weights are not used at all.
        try:
            self._filter = ControlTokenEscaper(control_tokens(path))
        except UnreadableVocabulary as error:
            raise WeightsNotLoadable(f"{path.name} cannot be used: {error}.") from None
        self._stdio.write(frames.EngineReadyFrame(time.monotonic() - began))

    def listen(self) -> None:
        """Read messages until the server is gone, then end at once: loading and generating cannot be interrupted."""
        while (order := self._stdio.read()) is not None:
            match order:
                case frames.EngineGenerateFrame():
                    self._orders.put(order)
                case frames.EngineCancelFrame(id):
                    self._cancelled.add(id)
        os._exit(0)

    def serve(self) -> None:
        """Generate answers until the process ends."""
        while True:
            order = self._orders.get()
            writer = GenerationFrameWriter(self._stdio, order, self._cancelled)
            try:
                if order.id not in self._cancelled:
                    self._server.handle_chat_completions(_body(order, self._filter), writer)
                report = writer.report
            except (ValueError, RuntimeError, TypeError) as error:  # what the runtime raises for a request it rejects
                report = frames.EngineGenerationFailedFrame(order.id, str(error)[:1000])
            self._stdio.write(report)
            self._cancelled.discard(order.id)


class GenerationFrameWriter:
    """Sends the runtime's chunks of one answer; returns True when the answer is to stop."""

    def __init__(self, stdio: EngineProcessStdio, order: frames.EngineGenerateFrame, cancelled: set[int]) -> None:
        self._stdio = stdio
        self._id = order.id
        self._cancelled = cancelled
        self._stops = StopTextFilter(order.stop)
        self._ending: frames.Ending = "cancelled"
        self._failed: frames.EngineGenerationFailedFrame | None = None
        self._counts: Mapping[str, Any] = {}

    def __call__(self, chunk: Any) -> bool:
        """Send the text of a chunk; called by the runtime, which must see no exception."""
        if not isinstance(chunk, dict):
            return False
        if "error" in chunk:
            error = chunk["error"]
            details = error if isinstance(error, dict) else {}
            message = str(details.get("message") or error)[:1000]
            prompt, context = details.get("n_prompt_tokens"), details.get("n_ctx")
            self._failed = frames.EngineGenerationFailedFrame(self._id, message, prompt, context)
            return True
        self._counts = chunk.get("timings") or self._counts
        if "prompt_progress" in chunk:
            progress = chunk["prompt_progress"]
            self._stdio.write(
                frames.EnginePromptProgressFrame(self._id, progress.get("processed", 0), progress.get("total", 0))
            )
        for choice in chunk.get("choices") or ():
            text = choice.get("delta", {}).get("content")
            if text and (released := self._stops.feed(text)):
                self._stdio.write(frames.EngineTextFrame(self._id, released))
            if self._stops.found is not None:
                self._ending = "stop_sequence"
            if choice.get("finish_reason") and self._stops.found is None:
                self._ending = "length" if choice["finish_reason"] == "length" else "stop"
                if rest := self._stops.end():
                    self._stdio.write(frames.EngineTextFrame(self._id, rest))
        return self._stops.found is not None or self._id in self._cancelled

    @property
    def report(self) -> frames.EngineGenerationEndFrame | frames.EngineGenerationFailedFrame:
        """Return how the answer ended."""
        if self._failed is not None:
            return self._failed
        cached, count = int(self._counts.get("cache_n", 0)), self._counts.get
        return frames.EngineGenerationEndFrame(
            self._id,
            self._ending,
            cached + int(count("prompt_n", 0)),
            cached,
            int(count("predicted_n", 0)),
            self._stops.found,
        )


def _body(order: frames.EngineGenerateFrame, filter_text: ControlTokenEscaper) -> dict[str, Any]:
    """Return the request in the runtime's format.

    Control tokens are removed from the content of all messages, so that only the model's template begins and ends turns.
    """
    body: dict[str, Any] = {
        **order.sampling,
        "messages": [{**message, "content": filter_text(message["content"])} for message in order.messages],
        "max_tokens": order.max_tokens,
        "stream": True,
        "return_progress": True,
        "timings_per_token": True,  # they have the exact token counts, also of a cancelled answer
        "cache_prompt": True,
    }
    # Its `json_schema` and `tool_choice` let free text through when they fail; a grammar of our own is checked by us.
    return {**body, "grammar": order.grammar} if order.grammar else body


def _parameters(runtime: Any, order: frames.EngineLoadFrame) -> Any:
    """Return the runtime's settings: bounded memory, no copy of the file, and no access to the port that it opens."""
    parameters = runtime.CommonParams()
    parameters.model.path = order.path
    parameters.n_ctx = order.context
    parameters.n_batch = parameters.n_ubatch = BATCH
    parameters.n_parallel = 1
    parameters.cache_ram_mib = order.cache
    # 0: the file is read and not mapped, so that its pages do not stay in memory beside the loaded weights.
    parameters.load_mode = runtime.llama_load_mode(0)
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = order.threads
    # The runtime opens a port on loopback, whether it is used or not: other programs do not know this key.
    parameters.api_keys = [secrets.token_urlsafe(32)]
    parameters.cors_origins = ""
    parameters.ui = parameters.endpoint_slots = parameters.endpoint_props = parameters.endpoint_metrics = False
    parameters.force_pure_content_parser = True  # what looks like a call in its text is text
    parameters.reasoning_format = runtime.common_reasoning_format.COMMON_REASONING_FORMAT_NONE
    parameters.verbosity = 1
    return parameters


def main() -> None:
    """Run the engine until the server is gone."""
    os.environ["GOMP_SPINCOUNT"] = "1000"  # read when the runtime is loaded: spinning threads starve a busy machine
    stdio = EngineProcessStdio()
    with suppress(OSError):  # when memory runs out, the kernel ends this process before the server
        Path("/proc/self/oom_score_adj").write_text("500")
    order = stdio.read()
    if not isinstance(order, frames.EngineLoadFrame):
        return
    engine = LlamaEngine(stdio)
    threading.Thread(target=engine.listen, name="toolgate-listener", daemon=True).start()
    try:
        engine.load(order)
    except WeightsNotLoadable as error:
        stdio.write(frames.EngineLoadRefusedFrame(str(error)))
        sys.stderr.flush()
        os._exit(1)
    engine.serve()


if __name__ == "__main__":
    main()
