"""Put random-looking marks around tool results in a text prompt, so that a result cannot pretend to end.

A result cannot know its mark. Without one, its text could continue as if the user or another tool had sent it.
"""

import secrets
from collections.abc import Sequence
from hashlib import blake2b

from toolgate.conversation.message import Message, Text, ToolCall

# Characters of the beginning and of the end of a long text that enter the digest. To hash all of it for every request
# would cost time, and the secret alone keeps marks from being guessed.
_COUNTED_ENDS = 256


def new_secret() -> bytes:
    """Return a secret for the marks of one process."""
    return secrets.token_bytes(32)


def wrap_result(text: str, mark: str) -> str:
    """Return the text of a result between its marks."""
    return f"<output {mark}>\n{text}\n</output {mark}>"


class ResultDelimiterGenerator:
    """Derives marks from a secret and from the conversation so far.

    The same conversation has the same marks, so that a longer one begins with the same bytes as a shorter one and the
    upstream's prompt cache holds.
    """

    def __init__(self, secret: bytes) -> None:
        self._digest = blake2b(key=secret[:64], digest_size=8)

    def add(self, message: Message) -> None:
        """Add a message to the conversation; later marks depend on it."""
        self._digest.update(message.role.encode())
        for part in message.parts:
            match part:
                case Text(text):
                    self._update(text)
                case ToolCall(name=name, arguments=arguments):
                    self._update(name)
                    self._update(arguments)

    def mark(self, texts: Sequence[str]) -> str:
        """Return a mark that occurs in none of the texts; every later mark differs."""
        # `hexdigest` leaves the state as it is, so each update makes the next mark another one.
        self._digest.update(b"results")
        while any((word := self._digest.hexdigest()) in text for text in texts):
            self._digest.update(b"again")
        return word

    def _update(self, text: str) -> None:
        ends = text if len(text) <= 2 * _COUNTED_ENDS else text[:_COUNTED_ENDS] + text[-_COUNTED_ENDS:]
        self._digest.update(f"{len(text)}:{ends}".encode("utf-8", "replace"))
