"""Messages and the parts they are made of: immutable values that every dialect reads and writes.

`extra` holds what a dialect said that we do not understand, under that dialect's name.
It goes back to the same dialect and to no other.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

Extra: TypeAlias = Mapping[str, Mapping[str, Any]]
Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Executor: TypeAlias = Literal["client", "gateway", "provider"]
MediaKind: TypeAlias = Literal["image", "audio", "video", "file"]

NO_EXTRA: Extra = {}
REASONING_LOST = "reasoning of earlier turns was left out: the upstream takes only its own"


class Text(Struct, frozen=True, tag=True):
    """Words; `logprobs` are the log probabilities of their tokens, in the form that all dialects share."""

    text: str
    extra: Extra = NO_EXTRA
    logprobs: tuple[Mapping[str, Any], ...] = ()


class Media(Struct, frozen=True, tag=True):
    """A picture, sound or document: inline as base64 in `data`, or elsewhere by `url` or `file_id`.

    `detail` is how closely the model should look at a picture.
    """

    kind: MediaKind
    mime: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    name: str | None = None
    extra: Extra = NO_EXTRA
    detail: str | None = None


class Seal(Struct, frozen=True):
    """A provider's proof of its own reasoning, opaque to us and worthless in another dialect."""

    dialect: str
    fields: Mapping[str, Any]


class Reasoning(Struct, frozen=True, tag=True):
    """What the model thought; `seal` must come back untouched to the dialect that made it."""

    text: str
    seal: Seal | None = None
    extra: Extra = NO_EXTRA


class Refusal(Struct, frozen=True, tag=True):
    """The model's own words for declining."""

    text: str
    extra: Extra = NO_EXTRA


class ToolCall(Struct, frozen=True, tag=True):
    """A call of a tool; `arguments` is the exact JSON text, or free text for a freeform tool.

    `complete` is false when the model was cut off while writing it: such a call is shown, never run.
    `approval` names the approval that a person was asked for, if one was.
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
    """What a call gave back; `is_error` is None when the client did not say."""

    call_id: str
    content: "tuple[Text | Media, ...]"
    is_error: bool | None = None
    name: str | None = None
    extra: Extra = NO_EXTRA


class Opaque(Struct, frozen=True, tag=True):
    """A part of a kind we do not know: it is kept for `dialect`, which wrote it, and shown to no other."""

    dialect: str
    value: Mapping[str, Any]


class ApprovalRequest(Struct, frozen=True, tag=True):
    """A call that waits for a person's word, given under this id; it stands in answers alone, never in a history."""

    id: str
    call: ToolCall


Part: TypeAlias = Text | Media | Reasoning | Refusal | ToolCall | ToolResult | Opaque | ApprovalRequest


class Message(Struct, frozen=True):
    """One turn of one speaker; tool results stand in messages of role `tool`."""

    role: Role
    parts: tuple[Part, ...]
    extra: Extra = NO_EXTRA


def spoken_content(result: ToolResult) -> tuple[Text | Media, ...]:
    """The content for a dialect that cannot mark a result as an error: there the words must say it."""
    if not result.is_error or plain_text(result.content).lstrip()[:5].lower() == "error":
        return result.content
    match result.content:
        case (Text(text, extra), *rest):
            return (Text(f"Error: {text}", extra), *rest)
        case content:
            return (Text("Error"), *content)


def is_blank(part: Part) -> bool:
    """Whether a part of an answer tells the client nothing: blank text, reasoning or a result alone."""
    return not part.text.strip() if isinstance(part, Text) else isinstance(part, (Reasoning, ToolResult))


def plain_text(parts: tuple[Part, ...]) -> str:
    """The text parts alone, joined as they stand."""
    return "".join(part.text for part in parts if isinstance(part, Text))
