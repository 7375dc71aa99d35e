"""Count the tokens of a conversation offline, where an upstream does not report them.

The vocabulary is OpenAI's `o200k_base`, which comes inside a wheel; for other families the count is near, never exact.
Loading it takes 0.1 to 0.2 s and 70 MB, and nothing here does so before the first count.

The tokenizer holds the interpreter's lock while it counts, so a thread alone would not free the event loop: texts are cut
into pieces of a millisecond at most, and the one thread that counts lets go between them.
"""

import asyncio
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.events import Usage
from toolgate.conversation.message import Media, Opaque, Part, Reasoning, RefusalPart, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.rough_size_estimate import is_request_larger
from toolgate.engine.json_thread import LARGE_BODY, FairThread
from toolgate.scheduling import CALLER
from toolgate.wire.jsontext import encode

# Characters of one text or request that are counted, a quarter of a second of work; the rest is taken to be like them.
EXACT = 2 * 1024 * 1024
# Characters of one caller that wait to be counted; what comes beyond is estimated by its length.
MAX_WAITING = 4 * EXACT
_VOCABULARY = "o200k_base"
_BINDINGS = "bpe_openai._bindings"
# Characters that are counted at a time, in a millisecond at most.
_PIECE = 8192
# Before a blank that a word follows, the vocabulary's own pattern always cuts: a count of both sides is exact.
_SEAM = re.compile(r" (?=\S)")
_SEAM_WITHIN = 1024

# What a chat template puts around messages, calls, tools and the reply.
_PER_MESSAGE = 4
_PER_CALL = _PER_TOOL = 7
_REPLY = 3
_PER_IMAGE = 765  # OpenAI's count for 1024 by 1024 pixels
_BYTES_PER_TOKEN = {"audio": 1600, "video": 1600, "file": 40}
_BYTES_PER_TEXT_TOKEN = 4
_CHARACTERS_PER_TOKEN = 3


class _CountedTexts(Struct, frozen=True):
    """Texts to count, and tokens that are known without counting."""

    texts: tuple[str, ...]
    flat: int = 0

    @property
    def size(self) -> int:
        return sum(map(len, self.texts))

    @property
    def rough(self) -> int:
        return self.flat + self.size // _CHARACTERS_PER_TOKEN


def count(text: str) -> int:
    """Return the tokens of a text: exact up to `EXACT` characters, beyond that in proportion to them."""
    return _total(_CountedTexts((text,)))


def count_request(request: ModelRequest) -> int:
    """Return the tokens of a request: messages, tools as their JSON, an output schema, and what a template puts around them.

    A picture counts 765 tokens whatever its size, sound and film one for 1,600 bytes, a document one for 40, or for 4 if
    it is plain text; what is only referred to counts like a picture. Long texts count as in `count`, all taken together.
    """
    return _total(_request_texts(request))


async def count_request_aside(request: ModelRequest) -> int:
    """Return `count_request` without blocking the event loop."""
    if is_request_larger(request, LARGE_BODY):
        return await _thread().run(partial(count_request, request))
    return await _total_aside(_request_texts(request))


async def estimate(request: ModelRequest, parts: Sequence[Part], reported: Usage | None = None) -> Usage:
    """Return the usage of a request and its response parts, without blocking the event loop.

    Of what was `reported` the missing count alone is estimated.
    """
    if reported is not None and reported.missing == "input":
        given = await _total_aside(_request_texts(request))
        return replace(reported, input=given, estimated=True, missing=None)
    thought = [part for part in parts if isinstance(part, Reasoning)]
    visible = [part for part in parts if not isinstance(part, Reasoning)]
    reasoning = await _total_aside(_parts_texts(thought)) if thought else 0
    output = await _total_aside(_parts_texts(visible))
    if reported is not None:
        counted = max(reported.reasoning, reasoning)
        return replace(reported, output=output + counted, reasoning=counted, estimated=True, missing=None)
    given = await _total_aside(_request_texts(request))
    return Usage(given, output + reasoning, reasoning=reasoning, estimated=True)


def estimate_roughly(request: ModelRequest, parts: Sequence[Part]) -> Usage:
    """Return the usage by the length of the texts, when there is no time to count."""
    return Usage(_request_texts(request).rough, _parts_texts(parts).rough, estimated=True)


def _request_texts(request: ModelRequest) -> _CountedTexts:
    texts: list[str] = []
    flat = _REPLY + _PER_MESSAGE * len(request.messages) + _PER_TOOL * len(request.tools)
    for message in request.messages:
        counted = _parts_texts(message.parts)
        texts += counted.texts
        flat += counted.flat
    for tool in request.tools:
        if tool.kind == "hosted":  # it has no schema: its whole definition is in `extra`
            texts.append(_json(tool.extra))
            continue
        fields = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema or tool.format}
        texts.append(_json({name: value for name, value in fields.items() if value is not None}))
    output = request.settings.output
    if output is not None and output.schema is not None:
        texts.append(_json(output.schema))
    return _CountedTexts(tuple(texts), flat)


def _parts_texts(parts: Iterable[Part]) -> _CountedTexts:
    texts: list[str] = []
    flat = 0
    for part in parts:
        match part:
            case Text(text) | Reasoning(text) | RefusalPart(text):
                texts.append(text)
            case ToolCall():
                texts += (part.name, part.arguments)
                flat += _PER_CALL
            case ToolResult():
                inner = _parts_texts(part.content)
                texts += inner.texts
                flat += inner.flat
            case Media(kind="image") | Media(data=None):
                flat += _PER_IMAGE
            case Media(data=str(data)):
                plain = part.mime is not None and part.mime.startswith("text/")
                size = len(data) * 3 // 4  # of base64
                flat += size // (_BYTES_PER_TEXT_TOKEN if plain else _BYTES_PER_TOKEN[part.kind]) + 1
            case Opaque(value=value):
                texts.append(_json(value))
    return _CountedTexts(tuple(texts), flat)


def _json(value: Mapping[str, Any]) -> str:
    return encode(value).decode()


async def _total_aside(counted: _CountedTexts) -> int:
    """Count at once what is small, if the vocabulary is loaded; all else waits for the thread that counts.

    What is more than a caller may let wait there is estimated by its length.
    """
    # `_tokenizer` is cached: an empty cache means that the vocabulary would have to be loaded now.
    if counted.size <= _PIECE and _tokenizer.cache_info().currsize:
        return _total(counted)
    thread, size = _thread(), min(counted.size, EXACT)
    return await thread.run(partial(_total, counted), size) if thread.has_room(size) else counted.rough


def _total(counted: _CountedTexts) -> int:
    size, done, tokens = counted.size, 0, counted.flat
    for text in counted.texts:
        head = text[: EXACT - done]
        tokens += sum(map(_count_piece, _pieces(head)))
        done += len(head)
    # What lies beyond `EXACT` has as many tokens per character as what was counted.
    return tokens if done == size else counted.flat + (tokens - counted.flat) * size // done


def _pieces(text: str, length: int = _PIECE) -> Iterator[str]:
    start = 0
    while len(text) - start > length:
        least = start + length
        seam = _SEAM.search(text, least, least + _SEAM_WITHIN)
        end = seam.start() if seam else least
        yield text[start:end]
        time.sleep(0)  # lets a thread that waits for the interpreter lock have it now
        start = end
    yield text[start:]


def _count_piece(text: str) -> int:
    try:
        return _tokenizer()(text)
    except UnicodeEncodeError:  # half of a surrogate pair
        return _tokenizer()(text.encode("utf-8", "replace").decode())


class _CountingThread:
    """The thread that counts: callers take turns, and what waits for it is known by caller.

    Clients that send long requests and leave would otherwise fill memory with what is still to be counted, and delay the
    last event of every answer whose upstream reports no usage.
    """

    def __init__(self) -> None:
        self._thread = FairThread("toolgate-tokens")
        self._waiting: Counter[str] = Counter()

    def has_room(self, size: int) -> bool:
        """Return whether this caller may let so many more characters wait."""
        waiting = self._waiting[CALLER.get()]
        return not waiting or waiting + size <= MAX_WAITING

    async def run(self, count: Callable[[], int], size: int = 0) -> int:
        """Count so many characters when it is the caller's turn."""
        caller = CALLER.get()
        self._waiting[caller] += size
        try:
            return await asyncio.wrap_future(self._thread.submit(caller, count))
        finally:
            self._waiting[caller] -= size
            if not self._waiting[caller]:
                del self._waiting[caller]


@cache
def _thread() -> _CountingThread:
    return _CountingThread()


@cache
def _tokenizer() -> Callable[[str], int]:
    # Import the compiled half of the package alone: the other half would spend a second and 65 MB on its own tables.
    # It is put into `sys.modules` as an import would do it, because a compiled module can be loaded only once.
    if _BINDINGS not in sys.modules:
        package = find_spec("bpe_openai")
        spec = PathFinder.find_spec(_BINDINGS, package.submodule_search_locations) if package else None
        if spec is None or spec.loader is None:
            raise ImportError("Counting tokens needs the package bpe-openai.")
        sys.modules[_BINDINGS] = module = module_from_spec(spec)
        spec.loader.exec_module(module)
    counted: Callable[[str], int] = sys.modules[_BINDINGS].tokenizer_for_encoding(_VOCABULARY).count
    return counted
