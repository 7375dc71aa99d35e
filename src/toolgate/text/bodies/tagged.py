"""Calls written parameter by parameter, each value as bare text between an opening and a closing mark.

Where a value ends. A closing mark ends the value only if structure follows it: another parameter, the end of the call, or
the end of the text. A parameter that is opened inside the value must be closed inside it. So a value may hold code that
prints the mark, and whole calls as examples. Where the text ends with the marks that end the call, they end a value whose
own closing mark is missing, too; a value that is followed by no mark at all may have been cut off and is not whole. A value
that the schema says is an array or object ends where its brackets close, whatever stands in its strings.

Framing. Where `framed`, a line break right behind the opening mark belongs to the layout, and so does one before the closing
mark; without the first, the second belongs to the value.

Escapes. Where `escapes`, `<![CDATA[…]]>` is its content. Entities are decoded if the first `<` or `&` of the value begins
one: whoever escapes, escapes the first. Code with a bare `<` or `&` before any entity is left as it is.
"""

import re
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from toolgate.text.kinds import ARRAY, OBJECT, STRING, kinds, parameter
from toolgate.text.literal import Literal
from toolgate.text.reading import Call, Reading
from toolgate.text.source import Out, Source, Steps, words
from toolgate.text.values import Value

_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|apos|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});")
_HALF_ENTITY = re.compile(r"&(?:[a-zA-Z]{0,4}|#[xX]?[0-9a-fA-F]{0,7})")
_SPECIAL = re.compile("[<&]")
_NAMED = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
MARKUP = ('"', "<", ">", "&", "/")
"""What cannot stand in the names of tags that escape nothing."""

_CDATA, _CDATA_END = "<![CDATA[", "]]>"
_ATTRIBUTE = re.compile(r"""(?<![\w:.-])([\w:.-]++)\s*+=\s*("[^"]*"|'[^']*'|[^\s"'>]+)""")
_HEADER = re.compile(r"[^<>]*")
_NOT_JSON = "the value of a parameter is not valid JSON"
MALFORMED = "a parameter could not be made out"


class Form(Struct, frozen=True):
    """The marks of one way of writing parameters.

    `key` reads the opening of a parameter: its name, and whether it said by itself to be a string; None if none comes next.
    `ends` close the call and are read; `stops` close it, too, but belong to what follows.
    """

    key: Callable[[Reading], Steps["tuple[str, bool | None] | None"]]
    close: str
    nested: str
    ends: tuple[str, ...]
    follows: tuple[str, ...]
    stops: tuple[str, ...] = ()
    framed: bool = False
    escapes: bool = False
    dynamic: bool = False

    def of(self, key: str) -> "Form":
        """The form for one parameter; in a dynamic one, the parameter's name stands in its marks."""
        if not self.dynamic:
            return self
        return replace(self, close=self.close.format(key), nested=self.nested.format(key))


def parameters(reading: Reading, call: Call, name: str, form: Form) -> Steps[None]:
    """Reads all parameters of a call that has begun, its end included."""
    source = reading.source
    while True:
        yield from source.blanks()
        if (yield from source.one_of(*form.ends)) or (form.stops and (yield from source.sees(*form.stops))):
            call.end_members()
            return call.end()
        if source.over:
            if not reading.cut:
                call.end_members()
            return None
        opened = yield from form.key(reading)
        if opened is None:
            yield from reading.broken(call, name, MALFORMED, *form.ends)
            return call.end() if (yield from source.one_of(*form.ends)) else None
        if not (yield from _parameter(reading, call, name, form, *opened)):
            return None


def _parameter(reading: Reading, call: Call, name: str, form: Form, key: str, is_string: bool | None) -> Steps[bool]:
    """Reads one parameter behind its opening mark; False if the text ends inside it."""
    call.key(key)
    schema = call.tool.input_schema if call.tool else None
    allowed = kinds(parameter(schema, key), schema)
    if is_string is not None:
        allowed = frozenset({STRING}) if is_string else (allowed - {STRING} or allowed)
    return (yield from value(reading, call, name, form.of(key), allowed))


def value(reading: Reading, call: Call, name: str, form: Form, allowed: frozenset[str]) -> Steps[bool]:
    """Reads one value and its closing mark; False if the text ends inside it."""
    source = reading.source
    framing = (yield from source.one_of("\r\n", "\n")) if form.framed else ""
    if STRING not in allowed and allowed & {ARRAY, OBJECT} and (yield from source.followed(0, ("[", "{"))):
        return (yield from _container(reading, call, name, form))
    written = Value(call, allowed)
    if form.escapes and (yield from source.word(_CDATA)):
        whole = yield from _cdata(source, written.feed)
        if whole and (yield from source.followed(0, (form.close,))):
            yield from source.blanks()
            yield from source.word(form.close)
            written.end(is_string=STRING in allowed)
            return True
    entities = Entities(written.feed) if form.escapes else None
    whole = yield from _bare(reading, form, framing, entities.feed if entities else written.feed)
    if entities:
        entities.end()
    if whole:
        written.end()
    return whole


def _container(reading: Reading, call: Call, name: str, form: Form) -> Steps[bool]:
    """Reads an array or object, which ends where its brackets close, and the closing mark; False if the text ends first."""
    source = reading.source
    yield from source.blanks()
    whole = yield from Literal(source, call.raw, python=True).copy()
    if not whole and source.over:
        return False
    yield from source.blanks()
    if whole and (source.over or (yield from source.sees(*form.ends, *form.stops))):
        return True
    if not whole or not (yield from source.word(form.close)):
        yield from reading.broken(call, name, _NOT_JSON, form.close)
        yield from source.word(form.close)
    return True


def _bare(reading: Reading, form: Form, framing: str, out: Out) -> Steps[bool]:
    """Hands on the text of a value up to the mark that closes it, and reads that; False if the text ends first."""
    source = reading.source
    closes = (framing + form.close, form.close)
    ends = tuple([framing + end for end in form.ends] if framing else []) + form.ends
    stops = words(*closes, form.nested, *ends)
    depth = 0
    while True:
        stop = yield from source.until(stops, out)
        if not stop:
            return False
        if stop in ends and stop not in closes:
            if not depth and (yield from source.only(len(stop), form.stops)) and not reading.cut:
                source.take(len(framing) if stop.startswith(framing) else 0)
                return True
        elif stop == form.nested and stop not in closes:
            depth += 1
        elif depth:
            depth -= 1
        elif (yield from source.followed(len(stop), form.follows)):
            source.take(len(stop))
            return True
        out(source.take(len(stop)))


def _cdata(source: Source, out: Out) -> Steps[bool]:
    """Hands on character data up to its end; sections that follow at once belong to it."""
    stops = words(_CDATA_END)
    while (yield from source.until(stops, out)):
        source.take(len(_CDATA_END))
        if not (yield from source.word(_CDATA)):
            return True
    return False


class Entities:
    """Decodes entities, if the first special character of the text begins one."""

    def __init__(self, out: Out) -> None:
        self._out = out
        self._decoding: bool | None = None
        self._tail = ""

    def feed(self, piece: str) -> None:
        """More text."""
        if self._decoding is False:
            self._out(piece)
            return
        text = self._tail + piece
        self._tail = ""
        if self._decoding is None and not self._decide(text):
            return
        if self._decoding:
            last = text.rfind("&")
            if last >= 0 and _HALF_ENTITY.fullmatch(text, last):
                self._tail, text = text[last:], text[:last]
            text = decoded(text)
        if text:
            self._out(text)

    def end(self) -> None:
        """No more text: what was begun is no entity."""
        if self._tail:
            self._out(self._tail)
            self._tail = ""

    def _decide(self, text: str) -> bool:
        """Whether the text can be handed on now; it is kept if its first special character is cut off."""
        first = _SPECIAL.search(text)
        if first is None:
            return True
        if _HALF_ENTITY.fullmatch(text, first.start()):
            if first.start():
                self._out(text[: first.start()])
            self._tail = text[first.start() :]
            return False
        self._decoding = _ENTITY.match(text, first.start()) is not None
        return True


def decoded(text: str) -> str:
    """The text with its entities replaced by what they stand for."""
    return _ENTITY.sub(_character, text)


def _character(entity: re.Match[str]) -> str:
    name = entity[0][1:-1]
    if name in _NAMED:
        return _NAMED[name]
    code = int(name[2:], 16) if name[1] in "xX" else int(name[1:])
    return chr(code) if 0 < code < 0x110000 and not 0xD800 <= code < 0xE000 else entity[0]


def header(reading: Reading) -> Steps[dict[str, str] | None]:
    """Reads the rest of an opening tag: its attributes, and `/` if it closes itself; None if it does not end."""
    text = yield from reading.source.run(_HEADER)
    if not (yield from reading.source.word(">")):
        return None
    found = attributes(text)
    return found | {"/": ""} if text.endswith("/") else found


def attributes(text: str, escaped: bool = True) -> dict[str, str]:
    """The attributes in the inside of a tag; quotes may be of either kind or missing."""
    found = {name: value[1:-1] if value[0] in "\"'" else value for name, value in _ATTRIBUTE.findall(text)}
    return {name: decoded(value) for name, value in found.items()} if escaped else found
