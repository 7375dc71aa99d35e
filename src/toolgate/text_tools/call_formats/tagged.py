"""Read calls that are written parameter by parameter, each value as bare text between an opening and a closing mark.

Where a value ends: a closing mark ends the value only if structure follows it: another parameter, the end of the call, or
the end of the text. A parameter that is opened inside the value must be closed inside it. So a value may contain code that
prints the mark, and whole calls as examples. Where the text ends with the marks that end the call, they also end a value
whose own closing mark is missing; a value that no mark follows may have been cut off and is not complete. A value that is an
array or object by its schema ends where its brackets close, whatever stands in its strings.

Framing: if `framed`, a line break right behind the opening mark is layout, and so is one before the closing mark; without
the first, the second belongs to the value.

Escapes: if `escapes`, `<![CDATA[…]]>` is its content. Entities are decoded if the first `<` or `&` of the value begins one:
a model that escapes at all escapes the first. Code with a bare `<` or `&` before any entity is left as it is.
"""

import re
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from toolgate.text_tools.parsing.bare_values import BareValueConverter
from toolgate.text_tools.parsing.input_buffer import InputBuffer, Parse, TextSink, word_set
from toolgate.text_tools.parsing.lenient_json import LenientJsonReader
from toolgate.text_tools.parsing.parser_state import CallSink, ParserState
from toolgate.text_tools.parsing.schema_types import ARRAY, OBJECT, STRING

_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|apos|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});")
_PARTIAL_ENTITY = re.compile(r"&(?:[a-zA-Z]{0,4}|#[xX]?[0-9a-fA-F]{0,7})")
_SPECIAL = re.compile("[<&]")
_NAMED = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
MARKUP = ('"', "<", ">", "&", "/")  # characters that cannot stand in the names of tags that escape nothing

_CDATA, _CDATA_END = "<![CDATA[", "]]>"
# `name="v"`, `name='v'` or `name=v`; the look-behind keeps the end of one name from being found as another.
_ATTRIBUTE = re.compile(r"""(?<![\w:.-])([\w:.-]++)\s*+=\s*("[^"]*"|'[^']*'|[^\s"'>]+)""")
_HEADER = re.compile(r"[^<>]*")
_NOT_JSON = "the value of a parameter is not valid JSON"
MALFORMED = "a parameter could not be made out"


class TagFormat(Struct, frozen=True):
    """The marks of one way of writing parameters.

    `key` reads the opening mark of a parameter and returns its name, and whether the mark makes it a string; None if
    there is no parameter. `nested` is the opening mark inside a value. `ends` close the call and are read; `stops` close it,
    too, but belong to what follows. If `dynamic`, the parameter's name is a part of `close` and `nested`.
    """

    key: Callable[[ParserState], Parse["tuple[str, bool | None] | None"]]
    close: str
    nested: str
    ends: tuple[str, ...]
    follows: tuple[str, ...]
    stops: tuple[str, ...] = ()
    framed: bool = False
    escapes: bool = False
    dynamic: bool = False

    def of_parameter(self, key: str) -> "TagFormat":
        """Return the format with the marks of one parameter."""
        if not self.dynamic:
            return self
        return replace(self, close=self.close.format(key), nested=self.nested.format(key))


def read_parameters(state: ParserState, call: CallSink, name: str, tags: TagFormat) -> Parse[None]:
    """Read all parameters of a call and its end."""
    buffer = state.buffer
    while True:
        yield from buffer.read_blanks()
        if (yield from buffer.accept_any(*tags.ends)) or (tags.stops and (yield from buffer.starts_with(*tags.stops))):
            call.end_members()
            return call.end()
        if buffer.exhausted:
            if not state.cut:
                call.end_members()
            return None
        parameter = yield from tags.key(state)
        if parameter is None:
            yield from state.copy_broken(call, name, MALFORMED, *tags.ends)
            return call.end() if (yield from buffer.accept_any(*tags.ends)) else None
        key, is_string = parameter
        call.key(key)
        allowed = call.types.of(key)
        if is_string is not None:  # DeepSeek and Kimi K3 write in the tag whether a value is a string
            allowed = frozenset({STRING}) if is_string else (allowed - {STRING} or allowed)
        if not (yield from read_value(state, call, name, tags.of_parameter(key), allowed)):
            return None


def read_value(state: ParserState, call: CallSink, name: str, tags: TagFormat, allowed: frozenset[str]) -> Parse[bool]:
    """Read one value and its closing mark; return False if the text ends inside it."""
    buffer = state.buffer
    framing = (yield from buffer.accept_any("\r\n", "\n")) if tags.framed else ""
    if STRING not in allowed and allowed & {ARRAY, OBJECT} and (yield from buffer.is_followed_by(0, ("[", "{"))):
        return (yield from _read_container(state, call, name, tags))
    value = BareValueConverter(call, allowed)
    if tags.escapes and (yield from buffer.accept(_CDATA)):
        whole = yield from _copy_cdata(buffer, value.feed)
        # Text behind the section belongs to the value, too, and is read below.
        if whole and (yield from buffer.is_followed_by(0, (tags.close,))):
            yield from buffer.read_blanks()
            yield from buffer.accept(tags.close)
            value.end(is_string=STRING in allowed)
            return True
    entities = EntityDecoder(value.feed) if tags.escapes else None
    whole = yield from _copy_bare_text(state, tags, framing, entities.feed if entities else value.feed)
    if entities:
        entities.end()
    if whole:
        value.end()
    return whole


def _read_container(state: ParserState, call: CallSink, name: str, tags: TagFormat) -> Parse[bool]:
    """Read an array or object up to its closing bracket, and the closing mark; return False if the text ends first."""
    buffer = state.buffer
    yield from buffer.read_blanks()
    whole = yield from LenientJsonReader(buffer, call.raw, python=True).copy()
    if not whole and buffer.exhausted:
        return False
    yield from buffer.read_blanks()
    if whole and (buffer.exhausted or (yield from buffer.starts_with(*tags.ends, *tags.stops))):
        return True
    if not whole or not (yield from buffer.accept(tags.close)):
        yield from state.copy_broken(call, name, _NOT_JSON, tags.close)
        yield from buffer.accept(tags.close)
    return True


def _copy_bare_text(state: ParserState, tags: TagFormat, framing: str, out: TextSink) -> Parse[bool]:
    """Copy the text of a value up to its closing mark and read that; return False if the text ends first."""
    buffer = state.buffer
    # The line break before a closing mark is layout and read with it, if there was one behind the opening mark.
    closes = (framing + tags.close, tags.close)
    ends = tuple([framing + end for end in tags.ends] if framing else []) + tags.ends
    stops = word_set(*closes, tags.nested, *ends)
    depth = 0
    while True:
        stop = yield from buffer.copy_until(stops, out)
        if not stop:
            return False
        if stop in ends and stop not in closes:
            # The end of the call without the closing mark of the value: only at the very end of the text.
            if not depth and (yield from buffer.ends_with_only(len(stop), tags.stops)) and not state.cut:
                buffer.take(len(framing) if stop.startswith(framing) else 0)
                return True
        elif stop == tags.nested and stop not in closes:  # an example of a call, inside the value
            depth += 1
        elif depth:
            depth -= 1
        elif (yield from buffer.is_followed_by(len(stop), tags.follows)):
            buffer.take(len(stop))
            return True
        out(buffer.take(len(stop)))


def _copy_cdata(buffer: InputBuffer, out: TextSink) -> Parse[bool]:
    """Copy character data up to its end; sections that follow at once belong to it."""
    # XML has no other way to write `]]>` in such a section than to split it: `]]]]><![CDATA[>`.
    stops = word_set(_CDATA_END)
    while (yield from buffer.copy_until(stops, out)):
        buffer.take(len(_CDATA_END))
        if not (yield from buffer.accept(_CDATA)):
            return True
    return False


class EntityDecoder:
    """Decodes entities, if the first `<` or `&` of the text begins one."""

    def __init__(self, out: TextSink) -> None:
        self._out = out
        self._decoding: bool | None = None  # None until the first `<` or `&`
        self._tail = ""

    def feed(self, piece: str) -> None:
        """Decode more text."""
        if self._decoding is False:
            self._out(piece)
            return
        text = self._tail + piece
        self._tail = ""
        if self._decoding is None and (first := _SPECIAL.search(text)):
            at = first.start()
            if _PARTIAL_ENTITY.fullmatch(text, at):  # the text ends within what may be its first entity
                if at:
                    self._out(text[:at])
                self._tail = text[at:]
                return
            self._decoding = _ENTITY.match(text, at) is not None
        if self._decoding:
            last = text.rfind("&")
            if last >= 0 and _PARTIAL_ENTITY.fullmatch(text, last):
                self._tail, text = text[last:], text[:last]
            text = decode_entities(text)
        if text:
            self._out(text)

    def end(self) -> None:
        """Emit what was held back as the start of an entity."""
        if self._tail:
            self._out(self._tail)
            self._tail = ""


def decode_entities(text: str) -> str:
    """Replace the entities in a text by their characters."""
    return _ENTITY.sub(_entity_character, text)


def _entity_character(entity: re.Match[str]) -> str:
    name = entity[0][1:-1]
    if name in _NAMED:
        return _NAMED[name]
    code = int(name[2:], 16) if name[1] in "xX" else int(name[1:])
    # NUL, surrogates and numbers beyond Unicode stay as they are written.
    return chr(code) if 0 < code < 0x110000 and not 0xD800 <= code < 0xE000 else entity[0]


def read_tag_end(state: ParserState) -> Parse[dict[str, str] | None]:
    """Read the rest of an opening tag; return its attributes, with `/` if it closes itself, or None if it does not end."""
    text = yield from state.buffer.read_chars(_HEADER)
    if not (yield from state.buffer.accept(">")):
        return None
    found = parse_attributes(text)
    return found | {"/": ""} if text.endswith("/") else found


def parse_attributes(text: str, escaped: bool = True) -> dict[str, str]:
    """Parse the attributes inside a tag; quotes may be single, double or missing."""
    found = {name: value[1:-1] if value[0] in "\"'" else value for name, value in _ATTRIBUTE.findall(text)}
    return {name: decode_entities(value) for name, value in found.items()} if escaped else found
