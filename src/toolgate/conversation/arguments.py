"""Normalize the arguments of tool calls, which upstreams send as JSON text with blanks, quotes or `{}` around it.

The JSON itself is never written anew: numbers beyond 2^53, key order and spelling reach the tool as the model wrote them.
One thing is replaced: a lone surrogate, escaped or not, becomes U+FFFD. UTF-8 cannot encode it, and most parsers reject
the whole text for it.
"""

from typing import Any

import msgspec

from toolgate.conversation.json_depth import MAX_DEPTH, is_too_deep
from toolgate.conversation.surrogates import JsonSurrogateRepair, repair_json_surrogates, repair_surrogates

NO_ARGUMENTS = "{}"
# A number beyond the range of a float is decoded as `Decimal`, and must not be encoded as a string.
_encode = msgspec.json.Encoder(decimal_format="number").encode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode  # checks the syntax without making the values


def is_object(text: str) -> bool:
    """Return whether the text is one complete JSON object, nested no deeper than `MAX_DEPTH`."""
    if not text.startswith("{") or not text.endswith("}"):
        return False
    if len(text) > 2 * MAX_DEPTH and is_too_deep(text.encode("utf-8", "replace")):
        return False
    try:
        _members(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return True


def normalize_arguments(text: str) -> str:
    """Strip the blanks, the second quoting or the leading `{}` that some upstreams put around arguments."""
    text = repair_json_surrogates(text.strip())
    if not text:
        return NO_ARGUMENTS
    if text.startswith('"'):  # an object inside a string: "{\"city\": \"Paris\"}"
        try:
            inner = msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return text
        inner = repair_json_surrogates(inner.strip()) if type(inner) is str else ""
        return inner if is_object(inner) else text
    # Some upstreams begin a streamed call with `{}` and send the real arguments behind it: `{}{"city": "Paris"}`.
    if text.startswith("{}") and is_object(rest := text[2:].lstrip()):
        return rest
    return text


class ArgumentTextNormalizer:
    """Normalize arguments that arrive in fragments: all that `feed` and `end` return is `normalize_arguments` of the whole.

    Held back are blanks that may be trailing, a `{}` that may be a prefix, a lone surrogate, and everything that begins
    as a JSON string, which can be decoded only when it is complete.
    """

    __slots__ = ("_held", "_quoted", "_started", "_surrogates", "fragments")

    def __init__(self) -> None:
        self.fragments: list[str] = []
        self._surrogates = JsonSurrogateRepair()
        self._held: list[str] = []
        self._quoted = False
        self._started = False

    def feed(self, fragment: str) -> str:
        """Add a fragment and return the text that is certain now."""
        # Most fragments are certain as they are. A surrogate may be an escape, hence the look for a backslash.
        if (
            self._started
            and not self._held
            and not self._surrogates.kept
            and fragment.isascii()
            and "\\" not in fragment
            and not fragment[-1:].isspace()
        ):
            self.fragments.append(fragment)
            return fragment
        return self._add(self._surrogates.feed(fragment))

    def end(self, cut: bool = False) -> str:
        """Return the rest, since nothing follows; with `cut`, arguments that are no complete object stay as they are."""
        last = self._add(self._surrogates.end())
        if self._started:
            return last
        text, self._started = "".join(self.fragments), True
        whole = normalize_arguments(text)
        return "" if cut and not (text.strip() and is_object(whole)) else whole

    def _add(self, fragment: str) -> str:
        if not fragment:
            return ""
        self.fragments.append(fragment)
        if self._quoted:
            return ""
        if self._held and fragment.isspace():
            self._held.append(fragment)  # joined once: some models write blanks without end
            return ""
        text = "".join([*self._held, fragment])
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


def arguments_text(value: Any) -> str:
    """Return arguments as JSON text, whether an upstream or client sent them as text or as an object."""
    if value is None:
        return ""
    if type(value) is str:
        return value
    try:
        return _encode(value).decode()
    except UnicodeEncodeError:
        return _encode(repair_surrogates(value)).decode()


def arguments_object(text: str) -> msgspec.Raw | dict[str, str]:
    """Return arguments as a JSON object, byte for byte as the model wrote them.

    Text that is no object is kept under the key `INVALID_JSON`: it is neither lost nor mistaken for an empty call.
    """
    settled_text = normalize_arguments(text)
    if is_object(settled_text):
        return msgspec.Raw(settled_text.encode())
    return {"INVALID_JSON": repair_surrogates(text)}


def arguments_object_text(text: str) -> str:
    """Return arguments as the text of a JSON object: unchanged if it is one, else wrapped as `arguments_object` does.

    Upstreams that parse the arguments in a history reject the conversation in every later turn for text that is no object.
    """
    if is_object(text):
        return text
    value = arguments_object(text)
    return bytes(value).decode() if isinstance(value, msgspec.Raw) else _encode(value).decode()
