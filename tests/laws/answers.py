"""Answers of upstreams in every dialect, written by the dialect's own server half; a delta may be sent many times over."""

from collections.abc import Sequence

from tests.laws.gateway import DIALECTS, Served
from toolgate.conversation.events import FinishReason, ModelResponse, PartDelta, RunEnd, RunEvent, Usage
from toolgate.conversation.fold import unfold
from toolgate.conversation.message import Part, ToolCall
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.anthropic import DIALECT as ANTHROPIC
from toolgate.dialects.dialect import AnswerMetadata, Dialect
from toolgate.dialects.ollama import DIALECT as OLLAMA
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.dialects.openai_responses import DIALECT as OPENAI_RESPONSES

PAIRS = tuple(
    f"{client}-{upstream}" for number, upstream in enumerate(DIALECTS) for client in (upstream, DIALECTS[number - 1])
)
"""A client of the upstream's own dialect, which is relayed, and one of another, for each upstream."""

_HALVES: dict[str, Dialect] = {one.name: one for one in (OPENAI_CHAT, OPENAI_RESPONSES, ANTHROPIC, OLLAMA)}
_REPLY = AnswerMetadata("answer_1", 1_700_000_000, "m")
_USAGE = Usage(1, 1)


def whole(dialect: str, *parts: Part) -> Served:
    """An answer in one piece."""
    half = _HALVES[dialect].server
    return Served(half.encode_response(_response(parts), ModelRequest("m", ()), _REPLY))


def streamed(dialect: str, *parts: Part, times: int = 1, pieces: int = 1) -> Served:
    """An answer as a stream in which every delta comes so many times, sent in so many pieces."""
    response = _response(parts)
    encoder = _HALVES[dialect].server.encoder(ModelRequest("m", (), stream=True), _REPLY)
    events: list[RunEvent] = [*unfold(response), RunEnd(response.reason, _USAGE)]
    frames = [encoder.encode(event) * (times if isinstance(event, PartDelta) else 1) for event in events]
    body = b"".join(frames)
    size = -(-len(body) // pieces)
    return Served([body[start : start + size] for start in range(0, len(body), size)], _HALVES[dialect].stream_type)


def _response(parts: Sequence[Part]) -> ModelResponse:
    reason: FinishReason = "tool_calls" if any(isinstance(part, ToolCall) for part in parts) else "stop"
    return ModelResponse(tuple(parts), reason, _USAGE)
