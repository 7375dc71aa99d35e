"""Find what an answer has that the client's dialect cannot express, so that a warning names it.

Encoders leave out the parts and fields that only another dialect knows. Relayed answers lose nothing and are not looked at.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from toolgate.conversation.message import Extra, Opaque, Part, Text

_CITING = frozenset({"openai_chat", "openai_responses"})  # dialects whose clients can be given citations of web pages
_NOT_SHOWN = frozenset({"message", "continues", "logprobs"})  # fields that belong to no text, or that are decoded
_OF_CONTENT = frozenset({"audio", "citations", "search_results", "container", "stop_details", "context_management"})
"""Fields of an answer as a whole that a person or a program may miss; others are the upstream's own measures."""


def untranslated_content(parts: Iterable[Part], client: str) -> list[str]:
    """Return warnings about content of these parts that clients of a dialect do not get."""
    lost = [warning for part in parts for warning in _of_part(part, client)]
    return list(dict.fromkeys(lost)) if lost else lost


def untranslated_fields(extra: Extra, client: str) -> list[str]:
    """Return warnings about fields of the answer as a whole that clients of a dialect do not get."""
    if not extra:
        return []
    return [
        f"{name} of the answer has no place here"
        for dialect, fields in extra.items()
        for name in fields
        if dialect != client and name in _OF_CONTENT
    ]


def _of_part(part: Part, client: str) -> Iterable[str]:
    match part:
        case Opaque(dialect, value) if dialect != client:
            return [f"a part of type {value.get('type')!r} of the answer is known to {dialect} only"]
        case Text(extra=extra) if extra:
            return [
                f"{name} of the answer's text have no place here"
                for dialect, fields in extra.items()
                for name, value in fields.items()
                if dialect != client and value and name not in _NOT_SHOWN
                if not (name == "annotations" and client in _CITING and all(map(_is_web_page, value)))
            ]
        case _:
            return ()


def _is_web_page(annotation: Mapping[str, Any]) -> bool:
    return annotation.get("type") == "url_citation"
