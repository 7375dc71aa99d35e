"""Put system messages before the user's first text, for models that take none.

All of them, in order and labelled, stand in a `<system_context>` block; if that tag occurs in the conversation, another is
used. The user's own text, with whatever tags an editor put around it, follows unchanged. Knows no tools.
"""

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from toolgate.conversation.message import Media, Message, Opaque, Part, Text, ToolResult, plain_text

TAG = "system_context"


def system_texts(messages: Iterable[Message]) -> list[str]:
    """Return the texts of all system messages, in order."""
    texts = [plain_text(message.parts).strip("\n") for message in messages if message.role == "system"]
    return [text for text in texts if text.strip()]


def free_tag(messages: Iterable[Message], tag: str = TAG) -> str:
    """Return the tag, or the first numbered one that does not occur in the conversation."""
    texts: list[str] = []
    for message in messages:
        for part in message.parts:
            content = part.content if isinstance(part, ToolResult) else (part,)
            texts += [one.text for one in content if isinstance(one, Text) and tag in one.text]
    # The tag must be in no message: its text could close the block, and what follows would pass for the user's.
    candidates = (tag, *[f"{tag}_{number}" for number in range(2, len(texts) + 2 + 64)])
    for candidate in candidates:
        marks = (f"<{candidate}>", f"</{candidate}>", f"<{candidate} ")
        if not any(mark in text for text in texts for mark in marks):
            return candidate
    return candidates[-1]


def lost_of_system(messages: Iterable[Message]) -> list[str]:
    """Return warnings about what system messages have besides text: a user's text has no place for it."""
    lost: dict[str, None] = {}
    for message in messages:
        if message.role != "system":
            continue
        lost |= dict.fromkeys([name for fields in message.extra.values() for name in fields])
        for part in message.parts:
            if isinstance(part, Media):
                lost[f"{part.kind} content"] = None
            elif isinstance(part, Opaque):
                lost[f"a part of type {part.value.get('type') or part.value.get('role')!r}"] = None
    return [f"{kind} of a system message was left out: the model takes no system messages" for kind in lost]


def with_first_text(parts: tuple[Part, ...], put: Callable[[str], str]) -> tuple[Part, ...]:
    """Return the parts with their first text changed by `put`; without any text, one is added."""
    for place, part in enumerate(parts):
        if isinstance(part, Text):
            return (*parts[:place], Text(put(part.text), part.extra), *parts[place + 1 :])
    return (Text(put("")), *parts)


def inject(messages: Sequence[Message], block: Callable[[str, Sequence[str]], str]) -> tuple[Message, ...]:
    """Return the messages with system messages moved before the user's first text; `block` renders them, given a tag."""
    texts = system_texts(messages)
    rest = [message for message in messages if message.role != "system"]
    if not texts:
        return tuple(rest)
    context = block(free_tag(messages), texts)
    return with_first_user(rest, lambda text: f"{context}\n\n{text}" if text else context)


def with_first_user(messages: Sequence[Message], put: Callable[[str], str]) -> tuple[Message, ...]:
    """Return the messages with the user's first text changed by `put`; without any, a user message is added."""
    place = next((place for place, message in enumerate(messages) if message.role == "user"), None)
    if place is None:
        return (Message("user", (Text(put("")),)), *messages)
    first = messages[place]
    return (*messages[:place], replace(first, parts=with_first_text(first.parts, put)), *messages[place + 1 :])
