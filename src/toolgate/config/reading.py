"""From the bytes of a file to checked settings: YAML, references to the environment, types, all complaints at once.

Knows the shape of settings in general (Structs, lists, mappings, values), not which settings there are.
"""

import math
import re
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

import msgspec
import yaml
from msgspec import Struct

from toolgate.config.problems import ConfigError, Problem, Problems, meant, within
from toolgate.config.secret import Secret
from toolgate.config.settings import Partial

T = TypeVar("T", bound=Struct)

_REFERENCE = re.compile(r"\$(\$?)\{([^{}]*)\}")
_VARIABLE = re.compile(r"([A-Za-z_]\w*)(?::-(.*))?", re.DOTALL)
_EXPECTED = re.compile(r"Expected `([^`]+)`(?:,? (?!got)(.+?))?(?:, got `([^`]+)`)?(?: - at .*)?")
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}


class _Refused:
    """Stands for a value that was complained about."""


_REFUSED: Final = _Refused()


LARGEST = 4 * 1024 * 1024
"""Bytes of a file."""

_MOST_VALUES = 200_000
_DEEPEST = 64
_LARGEST_NUMBER = 2**53


def parse_yaml(text: bytes, source: str) -> Any:
    """The document in the file; a complaint names line and column."""
    if len(text) > LARGEST:
        raise ConfigError([Problem("", f"the file is larger than {LARGEST // 1024**2} MiB")], source)
    try:
        _check_extent(text)
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader, see below
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "YAML"
        raise ConfigError([Problem(where, error.problem or error.context or "is not YAML")], source) from None
    except yaml.YAMLError as error:
        raise ConfigError([Problem("YAML", " ".join(str(error).split()))], source) from None
    except (ValueError, OverflowError) as error:  # a date or a number that there is not
        raise ConfigError([Problem("YAML", f"holds a value that cannot be read: {error}")], source) from None


def _check_extent(text: bytes) -> None:
    """Refuse what is nested too deeply or holds too much, aliases written out, before anything is built of it.

    The parser calls itself at every level, in C, where too many levels end the process.
    """
    values, open_at, sizes = 0, list[tuple[str | None, int]](), dict[str | None, int]()
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        wrong = None
        match event:
            case yaml.CollectionStartEvent():
                open_at.append((event.anchor, values))
                values += 1
            case yaml.CollectionEndEvent():
                anchor, before = open_at.pop()
                sizes[anchor] = values - before
            case yaml.AliasEvent():
                wrong = "an alias holds itself" if event.anchor in [anchor for anchor, _ in open_at] else None
                values += sizes.get(event.anchor, 1)
            case yaml.ScalarEvent():
                values += 1
        if len(open_at) > _DEEPEST:
            wrong = f"nested deeper than {_DEEPEST} levels"
        elif values > _MOST_VALUES:
            wrong = f"more than {_MOST_VALUES} values"
        if wrong is not None:
            mark: Any = event.start_mark
            raise yaml.composer.ComposerError(None, None, wrong, mark)


def read(shape: type[T], value: Any, env: Mapping[str, str], problems: Problems) -> T | None:
    """The settings that a document gives, or None when there was something to complain about."""
    settings = _Reader(env, problems).read(shape, {} if value is None else value, "")
    return settings if isinstance(settings, shape) and not problems.found else None


class _Reader:
    def __init__(self, env: Mapping[str, str], problems: Problems) -> None:
        self._env = env
        self._problems = problems

    def read(self, kind: Any, value: Any, path: str) -> Any:
        bare, partial = unwrap(kind)
        if partial is not None:
            return self._fields(partial.of, value, path)
        if isinstance(bare, type) and issubclass(bare, Struct):
            return self._struct(bare, value, path)
        match get_origin(bare):
            case origin if origin is tuple:
                return self._list(get_args(bare)[0], value, path)
            case origin if isinstance(origin, type) and issubclass(origin, Mapping):
                return self._mapping(get_args(bare)[1], value, path)
            case _:
                return self._value(kind, bare, value, path)

    def _struct(self, shape: type[Struct], value: Any, path: str) -> Any:
        given = self._fields(shape, value, path)
        if given is _REFUSED:
            return _REFUSED
        for field in msgspec.structs.fields(shape):
            if field.name not in given and field.required:
                self._refuse(within(path, field.name), "is required")
                given[field.name] = _REFUSED
        return _REFUSED if _REFUSED in given.values() else shape(**given)

    def _fields(self, shape: type[Struct], value: Any, path: str) -> Any:
        """The fields that are given; `null` counts as not given."""
        if not isinstance(value, dict):
            return self._refuse(path, f"must be a mapping, not {_kind_of(value)}")
        kinds = {field.name: field.type for field in msgspec.structs.fields(shape)}
        given = {}
        for name, inner in value.items():
            if name not in kinds:
                self._refuse(within(path, str(name)), f"is not a setting; {meant(str(name), kinds)}")
            elif inner is not None:
                given[name] = self.read(kinds[name], inner, within(path, name))
        return given

    def _list(self, kind: Any, value: Any, path: str) -> Any:
        if not isinstance(value, list):
            return self._refuse(path, f"must be a list, not {_kind_of(value)}")
        items = tuple([self.read(kind, item, f"{path}[{number}]") for number, item in enumerate(value)])
        return _REFUSED if _REFUSED in items else items

    def _mapping(self, kind: Any, value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            return self._refuse(path, f"must be a mapping, not {_kind_of(value)}")
        items = {}
        for name, inner in value.items():
            if not isinstance(name, str) or not name:
                self._refuse(within(path, str(name)), "must have a name of text; put it in quotes")
                continue
            items[name] = self.read(kind, {} if inner is None else inner, within(path, name))
        return _REFUSED if _REFUSED in items.values() else items

    def _value(self, kind: Any, bare: Any, value: Any, path: str) -> Any:
        given = value
        if isinstance(value, str) and "${" in value:
            value = self._expand(value, path)
            if value is None:
                return _REFUSED
        if get_origin(bare) is Literal and value not in get_args(bare):
            return self._refuse(path, f"must be one of {', '.join(get_args(bare))}, not {_shown(value)}")
        try:
            # A variable is always text, so what came from one may be read as a number or a truth value.
            read = msgspec.convert(value, kind, strict=value is given, dec_hook=_hide)
        except msgspec.ValidationError as error:
            return self._refuse(path, _reword(str(error)))
        wrong = _out_of_range(read)
        return read if wrong is None else self._refuse(path, wrong)

    def _expand(self, text: str, path: str) -> str | None:
        """The text with every `${X}` and `${X:-default}` replaced, `$${` being a plain `${`; None if one is missing."""
        missing = False

        def replaced(found: re.Match[str]) -> str:
            nonlocal missing
            if found[1]:
                return found[0][1:]
            named = _VARIABLE.fullmatch(found[2])
            value = self._env.get(named[1]) if named else None
            if named and named[2] is not None:
                return value or named[2]
            if value is None:
                what = f"the environment variable {named[1]} is not set" if named else "${…} must name a variable"
                self._refuse(path, what)
                missing = True
            return value or ""

        expanded = _REFERENCE.sub(replaced, text)
        return None if missing else expanded

    def _refuse(self, path: str, message: str) -> _Refused:
        self._problems.note(path, message)
        return _REFUSED


def unwrap(kind: Any) -> tuple[Any, Partial | None]:
    """The type without its annotations and without None, and the mark of a partial mapping if it has one."""
    partial = None
    if get_origin(kind) is Annotated:
        kind, *notes = get_args(kind)
        partial = next((note for note in notes if isinstance(note, Partial)), None)
    if get_origin(kind) in (Union, UnionType):
        choices = [choice for choice in get_args(kind) if choice is not NoneType]
        kind = choices[0] if len(choices) == 1 else kind
    return kind, partial


def _hide(kind: type, value: Any) -> Secret:
    if not isinstance(value, str):
        raise TypeError("must be text; put it in quotes")
    return Secret(value)


def _out_of_range(value: Any) -> str | None:
    """What no setting can mean, though it is of the right type; None if there is nothing wrong."""
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    if isinstance(value, int) and abs(value) > _LARGEST_NUMBER:
        return f"must be a number up to {_LARGEST_NUMBER}"
    text = value.reveal() if isinstance(value, Secret) else value
    if isinstance(text, str) and ("\0" in text or not _is_unicode(text)):
        return "holds a character that no program takes"
    return None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes of the environment that are no UTF-8
        return False
    return True


def _reword(said: str) -> str:
    """The library's complaint in words for a person."""
    found = _EXPECTED.fullmatch(said)
    if found is None:
        return said.partition(" - at ")[0]
    wanted = " or ".join(_WORDS.get(word, word) for word in found[1].split(" | ") if word != "null")
    bound = (found[2] or "").replace(".0", "")
    if bound == "of length >= 1":
        return "must not be empty"
    got = f", not {_WORDS.get(found[3], found[3])}" if found[3] else ""
    return f"must be {wanted}{f' {bound}' if bound else ''}{got}"


def _kind_of(value: Any) -> str:
    names = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


def _shown(value: Any) -> str:
    return repr(value[:60]) if isinstance(value, str) else _kind_of(value)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # whichever there is
    """A safe loader that refuses a key given twice, where YAML would drop the first in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
                seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping
