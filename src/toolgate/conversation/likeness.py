"""When two tellings of a history mean the same, however a client has written it anew on its way back to us.

It does not matter how text is cut into parts and messages, what its line ends are, how its letters are composed, and in
what order a call's arguments stand. What the model said is compared without any blanks, because clients trim it. Pure.
"""

import hashlib
import json
import unicodedata
from typing import Any

from toolgate.conversation.message import Media, Message, Refusal, Text, ToolCall, ToolResult


def tidy(text: str) -> str:
    """The text as it means, whatever an editor did to the ends of its lines; indentation stays."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return unicodedata.normalize("NFC", "\n".join([line.rstrip() for line in lines]).strip())


def dense(text: str) -> str:
    """The text without any blanks."""
    return "".join(tidy(text).split())


def arguments_text(call: ToolCall) -> str:
    """A call's arguments with sorted keys, so that whoever parses and writes them anew changes nothing."""
    try:
        return _sorted_json(json.loads(call.arguments, parse_float=_Spelt, parse_int=_Spelt))
    except (ValueError, RecursionError):
        return call.arguments


class _Spelt(str):
    """A number as it is written."""

    __slots__ = ()


def _sorted_json(value: Any) -> str:
    match value:
        case _Spelt():
            return str(value)
        case dict():
            return "{" + ",".join([f"{_sorted_json(key)}:{_sorted_json(value[key])}" for key in sorted(value)]) + "}"
        case list():
            return "[" + ",".join([_sorted_json(inner) for inner in value]) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)


class Prefix:
    """The digest of a history as far as it was heard: two that begin alike have the same digests up to where they differ.

    System messages do not count, since many clients write the time into them; nor do thoughts, nor what others than the
    client have run, which some clients send back and some do not.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._speaker = ""
        self._not_theirs: set[str] = set()

    def hear(self, message: Message) -> None:
        """Go on with this message; neighbours of one speaker are one."""
        said = "" if message.role == "system" else self._said(message)
        if not said:
            return
        if message.role != self._speaker:
            self._speaker = message.role
            self._hash.update(f"\0{message.role}\0".encode())
        self._hash.update(said.encode("utf-8", "replace"))

    def digest(self) -> str:
        """The digest of all that was heard."""
        return self._hash.hexdigest()

    def _said(self, message: Message) -> str:
        said: list[str] = []
        for part in message.parts:
            match part:
                case Text(text) | Refusal(text):
                    said.append(text)
                case Media():
                    said.append(_mark(part))
                case ToolCall(executor="client", name=name):
                    said.append(f"({name} {arguments_text(part)})")
                case ToolCall(id=id):
                    self._not_theirs.add(id)
                case ToolResult(call_id=id, content=content) if id not in self._not_theirs:
                    said += [one.text if isinstance(one, Text) else _mark(one) for one in content]
        whole = "".join(said)
        if message.role == "assistant":
            return dense(whole)
        return tidy(whole) + "\n" if said else ""


def _mark(media: Media) -> str:
    """A picture or the like, by what is in it."""
    place = media.data or media.url or media.file_id or media.name or ""
    return f"[{media.kind} {hashlib.sha256(place.encode('utf-8', 'replace')).hexdigest()}]"
