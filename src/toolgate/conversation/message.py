"""Define messages and their parts: immutable values that every dialect decodes and encodes.

`extra` holds fields that only one dialect understands, under that dialect's name.
They are sent back to the same dialect and to no other.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct, field

Extra: TypeAlias = Mapping[str, Mapping[str, Any]]
Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Executor: TypeAlias = Literal["client", "gateway", "provider"]
MediaKind: TypeAlias = Literal["image", "audio", "video", "file"]

NO_EXTRA: Extra = {}
REASONING_DROPPED = "reasoning of earlier turns was left out: the upstream takes only its own"


# Parts are stored as JSON, with the name of the class in `type` unless another tag is given: a class that gets another
# name keeps its tag, and a field its stored name.
class Text(Struct, frozen=True, tag=True):
    """Text; `logprobs` are the log probabilities of its tokens, in the form that all dialects share."""

    text: str
    extra: Extra = NO_EXTRA
    logprobs: tuple[Mapping[str, Any], ...] = ()


class Media(Struct, frozen=True, tag=True):
    """A picture, sound or document: inline as base64 in `data`, or elsewhere by `url` or `file_id`.

    `detail` is the resolution at which the model should read a picture.
    """

    kind: MediaKind
    mime: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    name: str | None = None
    extra: Extra = NO_EXTRA
    detail: str | None = None


class ReasoningSignature(Struct, frozen=True):
    """A provider's proof of its own reasoning, opaque to us and worthless in another dialect."""

    dialect: str
    fields: Mapping[str, Any]


class Reasoning(Struct, frozen=True, tag=True):
    """Reasoning of the model; `signature` must be sent back unchanged to the dialect that made it."""

    text: str
    signature: ReasoningSignature | None = field(default=None, name="seal")  # the name under which it is stored
    extra: Extra = NO_EXTRA


class RefusalPart(Struct, frozen=True, tag="Refusal"):  # the tag is stored
    """The text in which the model declines."""

    text: str
    extra: Extra = NO_EXTRA


class ToolCall(Struct, frozen=True, tag=True):
    """A call of a tool; `arguments` is the exact JSON text, or free text for a freeform tool.

    `complete` is false when the model was cut off inside it: such a call is shown, never run.
    `approval` is the id of the approval that was requested for it, if one was.
    """

    id: str
    name: str
    arguments: str
    executor: Executor = "client"
    freeform: bool = False
    complete: bool = True
    extra: Extra = NO_EXTRA
    approval: str | None = None


class ToolResult(Struct, frozen=True, tag=True):
    """The result of a call; `is_error` is None when the client did not specify it."""

    call_id: str
    content: "tuple[Text | Media, ...]"
    is_error: bool | None = None
    name: str | None = None
    extra: Extra = NO_EXTRA


class Opaque(Struct, frozen=True, tag=True):
    """A part of an unknown kind: it is kept for `dialect`, which sent it, and encoded in no other."""

    dialect: str
    value: Mapping[str, Any]


class ApprovalRequestPart(Struct, frozen=True, tag=True):
    """A call that waits for the approval of this id; it occurs in answers only, never in a history."""

    id: str
    call: ToolCall


Part: TypeAlias = Text | Media | Reasoning | RefusalPart | ToolCall | ToolResult | Opaque | ApprovalRequestPart


class Message(Struct, frozen=True):
    """A message of one role; tool results are in messages of role `tool`."""

    role: Role
    parts: tuple[Part, ...]
    extra: Extra = NO_EXTRA


def content_with_error_prefix(result: ToolResult) -> tuple[Text | Media, ...]:
    """Return the content for a dialect that has no field for errors: its text begins with "Error" instead."""
    if not result.is_error or plain_text(result.content).lstrip()[:5].lower() == "error":
        return result.content
    match result.content:
        case (Text(text, extra), *rest):
            return (Text(f"Error: {text}", extra), *rest)
        case content:
            return (Text("Error"), *content)


def is_blank(part: Part) -> bool:
    """Return whether a part of an answer is no answer by itself: blank text, reasoning or a tool result."""
    return not part.text.strip() if isinstance(part, Text) else isinstance(part, (Reasoning, ToolResult))


def plain_text(parts: tuple[Part, ...]) -> str:
    """Join the text parts, ignoring all others."""
    return "".join(part.text for part in parts if isinstance(part, Text))
