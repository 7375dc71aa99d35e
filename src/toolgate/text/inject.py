"""System messages for models that take none: a block before the first thing that the user says.

All of them, in order and labelled, stand in a `<system_context>` block; if that tag occurs in what anybody said, another is
taken. The user's own words, with whatever tags an editor put around them, follow unchanged. Knows no tools.
"""

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from toolgate.conversation.message import Message, Part, Text, ToolResult, plain_text

TAG = "system_context"


def system_texts(messages: Iterable[Message]) -> list[str]:
    """The words of all system messages, in order."""
    texts = [plain_text(message.parts).strip("\n") for message in messages if message.role == "system"]
    return [text for text in texts if text.strip()]


def free_tag(messages: Iterable[Message], tag: str = TAG) -> str:
    """The tag, or the first numbered one that nobody has written."""
    said = [text for message in messages for text in _texts(message.parts) if tag in text]
    taken = [f"{tag}_{number}" for number in range(2, len(said) + 2 + 64)]
    candidates = (tag, *taken)
    return next((one for one in candidates if not any(_has(text, one) for text in said)), candidates[-1])


def with_first_text(parts: tuple[Part, ...], put: Callable[[str], str]) -> tuple[Part, ...]:
    """The parts with their first text changed; it is made if there is none."""
    for place, part in enumerate(parts):
        if isinstance(part, Text):
            return (*parts[:place], Text(put(part.text), part.extra), *parts[place + 1 :])
    return (Text(put("")), *parts)


def inject(messages: Sequence[Message], block: Callable[[str, Sequence[str]], str]) -> tuple[Message, ...]:
    """The messages without system messages: `block` writes them, given a tag, before the first text of the user."""
    texts = system_texts(messages)
    rest = [message for message in messages if message.role != "system"]
    if not texts:
        return tuple(rest)
    written = block(free_tag(messages), texts)
    return with_first_user(rest, lambda text: f"{written}\n\n{text}" if text else written)


def with_first_user(messages: Sequence[Message], put: Callable[[str], str]) -> tuple[Message, ...]:
    """The messages with the first text of the user changed; he is made to say something if he did not."""
    place = next((place for place, message in enumerate(messages) if message.role == "user"), None)
    if place is None:
        return (Message("user", (Text(put("")),)), *messages)
    first = messages[place]
    return (*messages[:place], replace(first, parts=with_first_text(first.parts, put)), *messages[place + 1 :])


def _texts(parts: Iterable[Part]) -> list[str]:
    found: list[str] = []
    for part in parts:
        if isinstance(part, Text):
            found.append(part.text)
        elif isinstance(part, ToolResult):
            found += [one.text for one in part.content if isinstance(one, Text)]
    return found


def _has(text: str, tag: str) -> bool:
    return f"<{tag}>" in text or f"</{tag}>" in text or f"<{tag} " in text
