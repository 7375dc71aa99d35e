"""The questions, calls and answers of a chat, and how they are saved as Markdown."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from toolgate.cli.chat.terminal_text import without_controls
from toolgate.cli.chat.view import CliToolCall


class TranscriptTurn(NamedTuple):
    """A question, the calls that were made for it, and the answer."""

    question: str
    calls: tuple[CliToolCall, ...]
    answer: str


class MarkdownTranscript:
    """Keeps the turns of one conversation, oldest first, and saves them as Markdown."""

    def __init__(self) -> None:
        self.turns: list[TranscriptTurn] = []

    def ask(self, question: str) -> None:
        """A question was asked."""
        self.turns.append(TranscriptTurn(question, (), ""))

    def end(self, calls: Sequence[CliToolCall], answer: str) -> None:
        """The last question was answered, or its answer stopped."""
        self.turns[-1] = self.turns[-1]._replace(calls=tuple(calls), answer=answer)

    def drop_last(self) -> None:
        """Forget the last turn, which is asked again."""
        del self.turns[-1:]

    def clear(self) -> None:
        """Begin a new conversation."""
        self.turns.clear()

    def load(self, items: Iterable[Mapping[str, Any]]) -> None:
        """Read the turns of a stored conversation."""
        for item in items:
            match item:
                case {"type": "message", "role": "user"}:
                    self.ask(_text(item))
                # One answer may be several messages, with calls between them.
                case {"type": "message", "role": "assistant"} if self.turns:
                    last = self.turns[-1]
                    self.turns[-1] = last._replace(answer=f"{last.answer}\n\n{_text(item)}".strip("\n"))
                case {"type": "mcp_call", "name": str(name), "arguments": str(arguments)} if self.turns:
                    failed = item.get("error") is not None
                    result = json.dumps(item["error"]) if failed else str(item.get("output") or "")
                    last = self.turns[-1]
                    self.turns[-1] = last._replace(calls=(*last.calls, CliToolCall(name, arguments, result, failed)))

    def markdown(self, title: str) -> str:
        """Write all turns as a Markdown document."""
        parts = [f"# {title}"]
        for turn in self.turns:
            parts += ["## Question", turn.question]
            for call in turn.calls:
                text = f"{call.name} {call.arguments}\n{'failed: ' if call.failed else ''}{call.result}"
                # The fence must be longer than any in the text, which would end the block.
                fence = "```"
                while fence in text:
                    fence += "`"
                parts.append(f"{fence}\n{text}\n{fence}")
            parts += ["## Answer", turn.answer or "(none)"]
        return without_controls("\n\n".join(parts)) + "\n"

    def save(self, path: Path, title: str, *, replace: bool) -> None:
        """Write the document to a file; FileExistsError if there is one that may not be replaced."""
        with path.open("w" if replace else "x", encoding="utf-8") as file:
            file.write(self.markdown(title))


def _text(item: Mapping[str, Any]) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join([str(part.get("text") or part.get("refusal") or "") for part in parts if isinstance(part, dict)])
