"""Encode and decode the messages between a worker and its server: JSON, each with its length in front.

Pure: bytes in, values out. Nothing here is ever executed, whatever a tool writes into its end of the pipe.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from toolgate.conversation.json_depth import is_too_deep
from toolgate.conversation.message import Media, MediaKind, Text
from toolgate.tools.authoring.language_model_types import ToolInvocationToken
from toolgate.tools.authoring.loading import ToolImportTarget
from toolgate.tools.tool import CallPreview, ServerToolDefinition, ToolOutput
from toolgate.wire.jsontext import check_structure
from toolgate.wire.length_prefix import encode_prefixed


class ToolWorkerLimitsFrame(Struct, frozen=True, tag="setup"):
    """The first message: the memory and the output that a worker may use, in bytes, and the CPU seconds of a call."""

    memory: int
    output: int
    cpu: int


class ToolWorkerDescribeRequestFrame(Struct, frozen=True, tag="describe"):
    """Request: describe the tools of this code."""

    place: ToolImportTarget


class ToolWorkerPreviewRequestFrame(Struct, frozen=True, tag="prepare"):
    """Request: describe this call to a person."""

    place: ToolImportTarget
    tool: str
    arguments: Mapping[str, Any]


class ToolWorkerInvokeFrame(Struct, frozen=True, tag="invoke"):
    """Request: run this tool."""

    place: ToolImportTarget
    tool: str
    arguments: Mapping[str, Any]
    call: ToolInvocationToken


class ToolWorkerCancelFrame(Struct, frozen=True, tag="cancel"):
    """Cancel the request that is being answered."""


WorkerRequest: TypeAlias = ToolWorkerDescribeRequestFrame | ToolWorkerPreviewRequestFrame | ToolWorkerInvokeFrame


class WorkerToolInfo(Struct, frozen=True):
    """One tool without its code; `worker` is set if its author chose a worker for it."""

    spec: ServerToolDefinition
    worker: bool
    prepares: bool
    place: str


class WorkerToolList(Struct, frozen=True, tag="tools"):
    """Response: the tools of the code."""

    tools: tuple[WorkerToolInfo, ...]


class ToolWorkerPreviewResponseFrame(Struct, frozen=True, tag="prepared"):
    """Response: the description of a call."""

    preparation: CallPreview


class ToolWorkerResultPart(Struct, frozen=True, omit_defaults=True):
    """A text, or a medium if it has a kind."""

    text: str = ""
    kind: MediaKind | None = None
    mime: str | None = None


class ToolWorkerResultFrame(Struct, frozen=True, tag="result"):
    """Response: the result of a call."""

    content: tuple[ToolWorkerResultPart, ...]
    structured: Any = None


class ToolWorkerErrorFrame(Struct, frozen=True, tag="failed"):
    """Response: why a request failed, for the model or the operator; after the `last` one the process ends."""

    message: str
    last: bool = False


class ToolWorkerProgressFrame(Struct, frozen=True, tag="progress"):
    """The progress of a call, sent before its response."""

    message: str | None
    done: float | None
    total: float | None


WorkerResponse: TypeAlias = (
    WorkerToolList | ToolWorkerPreviewResponseFrame | ToolWorkerResultFrame | ToolWorkerErrorFrame
)

# Each message is an object with its tag: `{"type": "invoke", "place": …, "tool": …}`.
_REQUESTS: msgspec.json.Decoder[ToolWorkerLimitsFrame | WorkerRequest | ToolWorkerCancelFrame] = msgspec.json.Decoder(
    ToolWorkerLimitsFrame
    | ToolWorkerDescribeRequestFrame
    | ToolWorkerPreviewRequestFrame
    | ToolWorkerInvokeFrame
    | ToolWorkerCancelFrame
)
_RESPONSES: msgspec.json.Decoder[WorkerResponse | ToolWorkerProgressFrame] = msgspec.json.Decoder(
    WorkerToolList
    | ToolWorkerPreviewResponseFrame
    | ToolWorkerResultFrame
    | ToolWorkerErrorFrame
    | ToolWorkerProgressFrame
)


def encode(
    message: ToolWorkerLimitsFrame | WorkerRequest | ToolWorkerCancelFrame | WorkerResponse | ToolWorkerProgressFrame,
) -> bytes:
    """Encode a message with its length in front."""
    return encode_prefixed(msgspec.json.encode(message))


def max_length(output: int) -> int:
    """Return how long a message with that many bytes of output may be."""
    # Escapes make JSON longer than its text; the rest is room for lists of tools and for what is around an output.
    return 2 * output + 1024 * 1024


def decode_request(body: bytes) -> ToolWorkerLimitsFrame | WorkerRequest | ToolWorkerCancelFrame:
    """Decode a message of the server."""
    return _REQUESTS.decode(body)


def decode_response(body: bytes) -> WorkerResponse | ToolWorkerProgressFrame:
    """Decode a message of a worker; DecodeError or RecursionError if it is malformed."""
    if is_too_deep(body):  # workers bound what tools return: this tool has written to the pipe itself
        raise msgspec.DecodeError("The message is nested too deeply.")
    return _RESPONSES.decode(body)


def decode_large_response(body: bytes) -> WorkerResponse | ToolWorkerProgressFrame:
    """Decode a message of a worker in a thread; InvalidRequest if it holds too many values to be decoded in one call."""
    check_structure(body)
    return decode_response(body)


def encode_output(output: ToolOutput) -> ToolWorkerResultFrame:
    """Turn an output into a response."""
    pieces = [
        ToolWorkerResultPart(part.text)
        if isinstance(part, Text)
        else ToolWorkerResultPart(part.data or "", part.kind, part.mime)
        for part in output.content
    ]
    return ToolWorkerResultFrame(tuple(pieces), output.structured)


def decode_output(result: ToolWorkerResultFrame) -> ToolOutput:
    """Turn a response into an output."""
    content = [
        Media(piece.kind, piece.mime, piece.text) if piece.kind else Text(piece.text) for piece in result.content
    ]
    return ToolOutput(tuple(content), structured=result.structured)
