"""Find the control tokens of a vocabulary, and rewrite text so that it contains none.

The runtime interprets control tokens anywhere in a prompt, so a user's text or a tool's result could end its own turn and
begin another one. The weights list them. Reads the head of a GGUF file; knows no runtime.
"""

import re
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

_MAGIC = b"GGUF"
# The types of values in a GGUF head by their numbers, and how `struct` unpacks them.
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
# The file may be anything: a forged length must not take all memory.
_LONGEST_STRING = 16 * 1024 * 1024
_MOST_VALUES = 4 * 1024 * 1024
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # of the types that llama.cpp gives to tokens; 1 is normal text
_TOKENS, _TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_MARK = re.compile(r"<[|｜].+[|｜]>", re.DOTALL)  # full-width bars are DeepSeek's
# A blank that breaks one token may complete another that has a blank in it. A vocabulary could go on like that for ever.
_PASSES = 8


class UnreadableVocabulary(Exception):
    """The header is not that of GGUF weights, or has no tokens."""


def control_tokens(path: Path) -> frozenset[str]:
    """Return every token of these weights that is more than text to the runtime."""
    try:
        with path.open("rb") as file:
            head = _head(file)
    except (struct.error, OSError, UnicodeDecodeError, ValueError) as error:
        raise UnreadableVocabulary(f"its vocabulary cannot be read ({error})") from None
    tokens, types = head.get(_TOKENS), head.get(_TYPES, [])
    if not tokens:
        raise UnreadableVocabulary("it names no tokens")
    kinds = [*types, *[1] * (len(tokens) - len(types))]
    return frozenset([token for token, kind in zip(tokens, kinds, strict=False) if _is_control(token, kind)])


class ControlTokenEscaper:
    """Rewrites text so that it contains no control token and stays readable."""

    def __init__(self, tokens: Collection[str]) -> None:
        self._tokens = frozenset([token for token in tokens if len(token) > 1])
        # Not one regular expression of all tokens: a vocabulary may have thousands, and each would be tried at each place.
        self._lengths: dict[str, list[int]] = {}
        for first in {token[0] for token in self._tokens}:
            sizes = {len(token) for token in self._tokens if token[0] == first}
            self._lengths[first] = sorted(sizes, reverse=True)
        firsts = "".join([re.escape(first) for first in sorted(self._lengths)])
        self._firsts = re.compile(f"[{firsts}]" if firsts else r"(?!)")

    def __call__(self, text: str) -> str:
        """Return the text with a space after the first character of each control token."""
        for _ in range(_PASSES):
            starts = [found.start() for found in self._firsts.finditer(text)]
            places = [
                at + 1 for at in starts if any(text[at : at + size] in self._tokens for size in self._lengths[text[at]])
            ]
            if not places:
                break
            text = " ".join([text[start:end] for start, end in zip([0, *places], [*places, None], strict=True)])
        return text


def _is_control(token: str, kind: int) -> bool:
    # A mark such as `<|im_end|>` counts whatever its type: the runtime takes it for a control token anyway.
    if kind in (_UNKNOWN, _CONTROL) or _MARK.fullmatch(token):
        return True
    # Of the tokens that a model's makers defined, many are words, blanks and tabs: only those with other signs count.
    return kind == _USER_DEFINED and not token.isspace() and any(not one.isalnum() and one != " " for one in token)


def _head(file: BinaryIO) -> dict[str, Any]:
    """Return the header values about tokens."""
    if file.read(4) != _MAGIC:
        raise ValueError("it is no GGUF file")
    # Then follow the version, the number of tensors and that of the values: each has a name, a type and itself.
    _, _, count = struct.unpack("<IQQ", file.read(20))
    found: dict[str, Any] = {}
    for _ in range(min(count, 65536)):
        name = _text(file)
        value = _value(file, struct.unpack("<I", file.read(4))[0])
        if name in (_TOKENS, _TYPES):
            found[name] = value
    return found


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _text(file)
    if kind != _ARRAY:
        form = _NUMBERS[kind] if kind in _NUMBERS else _reject(f"a value of type {kind}")
        return struct.unpack(form, file.read(struct.calcsize(form)))[0]
    inner, count = struct.unpack("<IQ", file.read(12))
    if count > _MOST_VALUES or inner == _ARRAY:
        _reject("a list that is too long")
    if inner == _STRING:
        return [_text(file) for _ in range(count)]
    form = _NUMBERS[inner] if inner in _NUMBERS else _reject(f"values of type {inner}")
    return list(struct.unpack(f"<{count}{form[1]}", file.read(count * struct.calcsize(form))))


def _text(file: BinaryIO) -> str:
    (size,) = struct.unpack("<Q", file.read(8))
    if size > _LONGEST_STRING:
        _reject("a text that is too long")
    return file.read(size).decode("utf-8", "replace")


def _reject(what: str) -> str:
    raise ValueError(f"it holds {what}")
