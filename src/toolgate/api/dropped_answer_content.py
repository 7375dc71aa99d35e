"""Find what an answer has that the client's dialect cannot express, so that a warning names it.

Encoders leave out the parts and fields that only another dialect knows. Relayed answers lose nothing and are not looked at.
"""

from collections.abc import Iterable
from typing import Any

from toolgate.conversation.message import Extra, Opaque, Part, Text, ToolCall
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.openai_chat.requests import uses_legacy_functions

_CITING = frozenset({"openai_chat", "openai_responses"})  # dialects whose clients can be given citations of web pages
_NOT_SHOWN = frozenset({"message", "continues", "logprobs"})  # fields that belong to no text, or that are decoded
# Fields of an answer as a whole that a person or a program may miss; others are the upstream's own measures.
_OF_CONTENT = frozenset({"audio", "citations", "search_results", "container", "stop_details", "context_management"})


class UntranslatedContentWarnings:
    """Adds warnings about one answer to a list: what clients of a dialect do not get of it."""

    def __init__(self, request: ModelRequest, client: str, warnings: list[str]) -> None:
        self._warnings = warnings
        self._client = client
        self._takes_one_call = uses_legacy_functions(request)
        self._called = False

    def add_part(self, part: Part) -> None:
        """Look at a complete part of the answer."""
        client = self._client
        match part:
            case Opaque(dialect, value) if dialect != client:
                self._add([f"a part of type {value.get('type')!r} of the answer is known to {dialect} only"])
            case Text(extra=extra) if extra:
                self._add(
                    [
                        f"{name} of the answer's text have no place here"
                        for dialect, fields in extra.items()
                        for name, value in fields.items()
                        if dialect != client and value and name not in _NOT_SHOWN
                        # Citations of web pages are translated, those of files and documents are not.
                        if not (name == "annotations" and client in _CITING and _cites_only_pages(value))
                    ]
                )
            case ToolCall(executor="client") if self._takes_one_call:
                if self._called:
                    self._add(["the model made several calls at once: function_call has the first of them"])
                self._called = True

    def add_end(self, extra: Extra) -> None:
        """Look at the fields of the answer as a whole."""
        self._add(
            [
                f"{name} of the answer has no place here"
                for dialect, fields in extra.items()
                for name in fields
                if dialect != self._client and name in _OF_CONTENT
            ]
        )

    def _add(self, found: Iterable[str]) -> None:
        self._warnings += [warning for warning in found if warning not in self._warnings]


def _cites_only_pages(annotations: Any) -> bool:
    # The field is the upstream's, and is kept as it came, whatever its type.
    if type(annotations) is not list:
        return False
    return all(type(one) is dict and one.get("type") == "url_citation" for one in annotations)
