"""What a chat needs to know of the events of a streamed response; everything else is skipped or noted by its type."""

from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Any, NamedTuple, TypeAlias

from toolgate.cli.event_stream import ServerEvent


class CliAnswerStarted(NamedTuple):
    """The server has accepted the request."""

    id: str
    model: str


class CliTextDelta(NamedTuple):
    """More text of the answer, of the message with this id."""

    text: str
    item: str


class CliReasoningDelta(NamedTuple):
    """More text of the model's reasoning, of the item with this id."""

    text: str
    item: str


class CliToolStarted(NamedTuple):
    """A server tool is being run."""

    id: str
    name: str
    arguments: str


class CliToolEnded(NamedTuple):
    """A server tool has returned, or failed; `item` is what a later request can send back."""

    id: str
    name: str
    result: str
    failed: bool
    item: Mapping[str, Any]


class CliApprovalAsked(NamedTuple):
    """A call waits for a person."""

    id: str
    name: str
    arguments: str


class CliAnswerEnded(NamedTuple):
    """The answer is complete, or ended early; then `problem` says why."""

    id: str
    problem: str | None
    failed: bool
    input_tokens: int
    output_tokens: int


class CliNotice(NamedTuple):
    """A warning of the server, or an item that a terminal cannot show."""

    text: str


AnswerEvent: TypeAlias = (
    CliAnswerStarted
    | CliTextDelta
    | CliReasoningDelta
    | CliToolStarted
    | CliToolEnded
    | CliApprovalAsked
    | CliAnswerEnded
    | CliNotice
)

# Items that are shown by other events, or tell a person nothing (`mcp_list_tools`).
_SHOWN_ITEMS = ("message", "reasoning", "mcp_call", "mcp_approval_request", "mcp_list_tools")


def answer_events(events: Generator[ServerEvent]) -> Generator[AnswerEvent]:
    """Decode the events of a response; a stream without an end becomes an end with a problem."""
    names: dict[str, str] = {}
    ended = False
    with closing(events):
        for event in events:
            decoded = _decode(event, names)
            if decoded is not None:
                ended = ended or isinstance(decoded, CliAnswerEnded)
                yield decoded
    if not ended:
        yield CliAnswerEnded("", "The connection ended before the answer was complete.", True, 0, 0)


def _decode(event: ServerEvent, names: dict[str, str]) -> AnswerEvent | None:
    match event.value:
        case {"message": str(message)} if event.name == "warning":
            return CliNotice(f"Warning: {message}")
        case {"type": "response.created", "response": {"id": str(id), "model": model}}:
            return CliAnswerStarted(id, str(model))
        case {"type": "response.output_text.delta" | "response.refusal.delta", "delta": str(text), "item_id": item}:
            return CliTextDelta(text, str(item))
        case {
            "type": "response.reasoning_summary_text.delta" | "response.reasoning_text.delta",
            "delta": str(text),
            "item_id": item,
        }:
            return CliReasoningDelta(text, str(item))
        # The event with the arguments of a call has no name of the tool.
        case {"type": "response.output_item.added", "item": {"type": "mcp_call", "id": str(id), "name": str(name)}}:
            names[id] = name
        case {"type": "response.mcp_call_arguments.done", "item_id": str(id), "arguments": str(arguments)}:
            return CliToolStarted(id, names.get(id, ""), arguments)
        case {
            "type": "response.output_item.done",
            "item": {"type": "mcp_call", "id": str(id), "name": str(name)} as item,
        }:
            failed = item.get("error") is not None
            result = _error_text(item["error"]) if failed else str(item.get("output") or "")
            return CliToolEnded(id, name, result, failed, item)
        case {
            "type": "response.output_item.done",
            "item": {"type": "mcp_approval_request", "id": str(id), "name": str(name), "arguments": str(arguments)},
        }:
            return CliApprovalAsked(id, name, arguments)
        case {"type": "response.output_item.done", "item": {"type": str(kind)}} if kind not in _SHOWN_ITEMS:
            return CliNotice(f"The answer has an item of the type {kind}, which a terminal cannot show.")
        case {"type": "response.completed" | "response.incomplete" | "response.failed", "response": dict(response)}:
            return _ended(response)
        case {"type": "error", **error}:
            return CliAnswerEnded("", _message(error) or "The server reported an error.", True, 0, 0)
    return None


def _error_text(error: Any) -> str:
    match error:
        # The result of an MCP tool that failed by its own account.
        case {"content": [*parts]}:
            return "\n".join([str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part])
        case {"message": str(message)}:
            return message
        case _:
            return str(error)


def _message(error: Mapping[str, Any]) -> str | None:
    match error:
        case {"error": {"message": str(message)}} | {"message": str(message)}:
            return message
    return None


def _ended(response: Mapping[str, Any]) -> CliAnswerEnded:
    problem = None
    match response:
        case {"status": "failed", **rest}:
            problem = _message(rest) or "The answer failed."
        case {"status": "incomplete", "incomplete_details": {"reason": reason}}:
            problem = f"The answer is incomplete: {reason}."
        case {"status": "incomplete" | "cancelled" as status}:
            problem = f"The answer is {status}."
    match response.get("usage"):
        case {"input_tokens": int(sent), "output_tokens": int(received)}:
            pass
        case _:
            sent = received = 0
    return CliAnswerEnded(str(response.get("id", "")), problem, response.get("status") == "failed", sent, received)
