"""The arguments of a call as JSON text: what upstreams write around it, and what it means.

The text itself is never re-written: numbers beyond 2^53, key order and spelling reach the tool as the model wrote them.
One thing is replaced: half of a surrogate pair, escaped or not, becomes U+FFFD. No UTF-8 can carry it, and most parsers
refuse the whole text for it.
"""

import re
from typing import Any

import msgspec

NO_ARGUMENTS = "{}"
_SLICE = 64 * 1024
_encode = msgspec.json.Encoder(decimal_format="number").encode
_HIGH, _LOW, _HEX = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}", r"[0-9a-fA-F]"
_BEGUN = rf"\\(?:u{_HEX}{{0,3}})?\Z"
_ESCAPE = re.compile(
    rf"(?P<begun>{_BEGUN}|{_HIGH}(?:{_BEGUN}|\Z)|[\ud800-\udbff]\Z)"
    rf"|{_HIGH}{_LOW}|(?P<half>{_HIGH}|{_LOW})|\\[^\ud800-\udfff]|[\ud800-\udbff][\udc00-\udfff]|(?P<char>[\ud800-\udfff])",
    re.DOTALL,
)
_HALF_AT_END = re.compile(rf"\A(?:{_HIGH}|[\ud800-\udbff])")
_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode  # checks the syntax without making the values


def is_object(text: str) -> bool:
    """Whether the text is one complete JSON object."""
    if not text.startswith("{") or not text.endswith("}"):
        return False
    try:
        _members(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return True


class Pairing:
    """Replaces halves of surrogate pairs in JSON text that comes in pieces; keeps what may be the first half of one."""

    __slots__ = ("begun",)

    def __init__(self) -> None:
        self.begun = ""

    def feed(self, piece: str) -> str:
        """As much of the text so far as is certain."""
        if not self.begun and "\\" not in piece and (piece.isascii() or _HALF.search(piece) is None):
            return piece
        if len(piece) > _SLICE:  # one substitution keeps the interpreter to itself
            return "".join([self.feed(piece[at : at + _SLICE]) for at in range(0, len(piece), _SLICE)])
        text, self.begun = self.begun + piece, ""
        return _ESCAPE.sub(self._replaced, text)

    def end(self) -> str:
        """What was kept, now that nothing follows it."""
        text, self.begun = self.begun, ""
        return _HALF_AT_END.sub(lambda half: "\ufffd" if len(half[0]) == 1 else r"\ufffd", text)

    def _replaced(self, found: re.Match[str]) -> str:
        match found.lastgroup:
            case "begun":
                self.begun = found[0]
                return ""
            case "half":
                return r"\ufffd"
            case "char":
                return "\ufffd"
        # The two halves of a pair may have come apart.
        return found[0] if found[0][0] == "\\" else found[0].encode("utf-16", "surrogatepass").decode("utf-16")


def paired(text: str) -> str:
    """The text with each half of a surrogate pair, escaped or not, replaced by U+FFFD."""
    if (text.isascii() and "\\" not in text) or _HALF.search(text) is None:
        return text
    pairing = Pairing()
    return pairing.feed(text) + pairing.end()


def without_halves(value: Any) -> Any:
    """A JSON value whose strings hold no halves of surrogate pairs."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {without_halves(key): without_halves(inner) for key, inner in value.items()}
        case list() | tuple():
            return [without_halves(inner) for inner in value]
        case _:
            return value


def settled(text: str) -> str:
    """The arguments without the blanks, the second quoting or the leading `{}` that some upstreams add."""
    text = paired(text.strip())
    if not text:
        return NO_ARGUMENTS
    if text.startswith('"'):
        return _unquoted(text)
    if text.startswith("{}") and is_object(rest := text[2:].lstrip()):
        return rest
    return text


class ArgumentStream:
    """Arguments that come in pieces: `feed` gives as much of them as surely belongs to what `settled` makes of the whole.

    Held back are blanks that may prove to be trailing, a `{}` that may prove to be a prefix, half a character, and all of
    what begins as a JSON string, which can be read only when it is whole.
    """

    __slots__ = ("_held", "_pairing", "_quoted", "_started", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self._pairing = Pairing()
        self._held: list[str] = []
        self._quoted = False
        self._started = False

    def feed(self, piece: str) -> str:
        """Take a piece; the text that is certain now."""
        return self._take(self._pairing.feed(piece))

    def end(self, cut: bool = False) -> str:
        """The text that is certain when nothing follows; with `cut`, arguments that are no whole object stay as they are."""
        last = self._take(self._pairing.end())
        if self._started:
            return last
        text, self._started = "".join(self.pieces), True
        whole = settled(text)
        return "" if cut and not (text.strip() and is_object(whole)) else whole

    def _take(self, piece: str) -> str:
        if not piece:
            return ""
        self.pieces.append(piece)
        if self._quoted:
            return ""
        if self._held and piece.isspace():
            self._held.append(piece)  # joined once: some models write blanks without end
            return ""
        text = "".join([*self._held, piece])
        if not self._started:
            text = text.lstrip()
            if text.startswith('"'):
                self._quoted = True
                return ""
            if text.startswith(NO_ARGUMENTS):
                rest = text[2:].lstrip()
                if not rest:
                    self._held = [text]
                    return ""
                text = rest if rest.startswith("{") else text
        certain = text.rstrip()
        self._held = [text[len(certain) :]] if len(certain) < len(text) else []
        self._started = self._started or bool(certain)
        return certain


def _unquoted(text: str) -> str:
    try:
        inner = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return text
    inner = paired(inner.strip()) if type(inner) is str else ""
    return inner if is_object(inner) else text


def as_text(value: Any) -> str:
    """Arguments as an upstream or client gave them, be it text or an object, as JSON text."""
    if value is None:
        return ""
    if type(value) is str:
        return value
    try:
        return _encode(value).decode()
    except UnicodeEncodeError:
        return _encode(without_halves(value)).decode()


def as_object(text: str) -> msgspec.Raw | dict[str, str]:
    """Arguments as a JSON object, spelled exactly as they are.

    Text that is no object is kept under one telling key: it is neither lost nor mistaken for an empty call.
    """
    settled_text = settled(text)
    if is_object(settled_text):
        return msgspec.Raw(settled_text.encode())
    return {"INVALID_JSON": without_halves(text)}


def as_object_text(text: str) -> str:
    """Arguments as the text of a JSON object: as it is if it is one, else wrapped as `as_object` does.

    Upstreams that parse the arguments in a history refuse the whole conversation for ever over text that is no object.
    """
    if is_object(text):
        return text
    value = as_object(text)
    return bytes(value).decode() if isinstance(value, msgspec.Raw) else _encode(value).decode()
