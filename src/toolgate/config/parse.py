"""Parse the bytes of a file into checked settings: YAML, references to the environment, types; all mistakes at once.

Knows the shapes of settings (Structs, lists, mappings, values), not which settings there are.
"""

import math
import re
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

import msgspec
import yaml
from msgspec import Struct

from toolgate.config.errors import ConfigError, ConfigProblem, ProblemCollector, field_path, nearest, suggestion
from toolgate.config.settings.field import PartialStructMarker
from toolgate.config.settings.secret import Secret
from toolgate.config.stable_read import MAX_FILE_BYTES

T = TypeVar("T", bound=Struct)

# `${…}`, or `$${…}` for the text `${…}` itself; no braces inside, so that references cannot nest.
_REFERENCE = re.compile(r"\$(\$?)\{([^{}]*)\}")
# `NAME` or `NAME:-default`, as in a shell.
_VARIABLE = re.compile(r"([A-Za-z_]\w*)(?::-(.*))?", re.DOTALL)
# The messages of msgspec: "Expected `int`, got `str`", "Expected `int` >= 1", "Expected `int | null` - at `$.port`".
_EXPECTED = re.compile(r"Expected `([^`]+)`(?:,? (?!got)(.+?))?(?:, got `([^`]+)`)?(?: - at .*)?")
_TYPE_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}


class _Refused:
    """Stands for a value that could not be read."""


_REFUSED: Final = _Refused()

# Few lines of nested aliases can stand for billions of values ("billion laughs").
_MAX_VALUES = 200_000
# No setting nests this deep.
_MAX_DEPTH = 64
# Up to here floats, and therefore JSON readers in browsers, hold every whole number exactly.
_MAX_NUMBER = 2**53


def parse_yaml(text: bytes, source: str, problems: ProblemCollector) -> Any:
    """Parse the document; ConfigError names the line and column of invalid YAML, and keys given twice are noted."""
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError([ConfigProblem("", f"the file is larger than {MAX_FILE_BYTES // 1024**2} MiB")], source)
    try:
        _check_size(text)
        loader = _Loader(text)
        try:
            document = loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "YAML"
        problem = error.problem or error.context or "is not YAML"
        # Of most tabs the library says only that no token starts with such a character.
        unnamed = mark and "cannot start any token" in problem and _character_at(text, mark.index) == "\t"
        if unnamed or "tab character" in problem:
            problem = "is a tab; indent with blanks instead"
        raise ConfigError([ConfigProblem(position, problem)], source) from None
    except yaml.YAMLError as error:
        raise ConfigError([ConfigProblem("YAML", " ".join(str(error).split()))], source) from None
    except (ValueError, OverflowError) as error:  # an impossible date or number
        raise ConfigError([ConfigProblem("YAML", f"holds a value that cannot be read: {error}")], source) from None
    for mark, key in loader.repeated:
        problems.note(f"line {mark.line + 1}, column {mark.column + 1}", f"{key!r} is given twice")
    return document


def _character_at(text: bytes, index: int) -> str:
    # A byte order mark does not count.
    return text.decode("utf-8-sig", "replace")[index : index + 1]


def _check_size(text: bytes) -> None:
    """Refuse a document that is nested too deeply or holds too many values, aliases expanded, before it is built."""
    # Events come one after the other. The loader instead recurses at every level, in C, where too many levels
    # end the process with a segmentation fault.
    # `open_at` has the open collections: their anchors, and how many values came before. `sizes` has those of anchors.
    values, open_at, sizes = 0, list[tuple[str | None, int]](), dict[str | None, int]()
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        problem = None
        match event:
            case yaml.CollectionStartEvent():
                open_at.append((event.anchor, values))
                values += 1
            case yaml.CollectionEndEvent():
                anchor, before = open_at.pop()
                sizes[anchor] = values - before
            case yaml.AliasEvent():
                problem = "an alias holds itself" if event.anchor in [anchor for anchor, _ in open_at] else None
                values += sizes.get(event.anchor, 1)
            case yaml.ScalarEvent():
                values += 1
        if len(open_at) > _MAX_DEPTH:
            problem = f"nested deeper than {_MAX_DEPTH} levels"
        elif values > _MAX_VALUES:
            problem = f"more than {_MAX_VALUES} values"
        if problem is not None:
            mark: Any = event.start_mark
            raise yaml.composer.ComposerError(None, None, problem, mark)


def parse_settings(shape: type[T], value: Any, env: Mapping[str, str], problems: ProblemCollector) -> T:
    """Parse a document into settings; a value that cannot be read is noted and replaced by its default or a placeholder."""
    settings = _Reader(env, problems).read(shape, {} if value is None else value, "")
    return settings if isinstance(settings, shape) else shape()


class _Reader:
    """Converts the values of a document to the types of the settings."""

    def __init__(self, env: Mapping[str, str], problems: ProblemCollector) -> None:
        self._env = env
        self._problems = problems

    def read(self, kind: Any, value: Any, path: str) -> Any:
        bare, partial = unwrap(kind)
        # Fields that are not given are left out instead of defaulted: they come from the provider table.
        if partial is not None:
            return self._fields(partial.of, value, path)
        if isinstance(bare, type) and issubclass(bare, Struct):
            return self._struct(bare, value, path)
        match get_origin(bare):
            case origin if origin is tuple:
                if not isinstance(value, list):
                    return self._refuse(path, f"must be a list, not {_kind_of(value)}")
                inner = get_args(bare)[0]
                items = [self.read(inner, item, f"{path}[{number}]") for number, item in enumerate(value)]
                # A placeholder keeps the place of an item, so that later messages count the items as the file does.
                return tuple([_placeholder(inner) if item is _REFUSED else item for item in items])
            case origin if isinstance(origin, type) and issubclass(origin, Mapping):
                return self._mapping(get_args(bare)[1], value, path)
            case _:
                return self._value(kind, bare, value, path)

    def _struct(self, shape: type[Struct], value: Any, path: str) -> Any:
        given = self._fields(shape, value, path)
        if given is _REFUSED:
            return _REFUSED
        for field in msgspec.structs.fields(shape):
            if field.name in given or not field.required:
                continue
            # A field that is there and still missing was refused, which is reported already.
            if value.get(field.name) is None:
                self._refuse(field_path(path, field.name), "is required")
            given[field.name] = _placeholder(field.type)
        return shape(**given)

    def _fields(self, shape: type[Struct], value: Any, path: str) -> Any:
        """Read the fields that are given; `null` counts as not given."""
        if not isinstance(value, dict):
            return self._refuse(path, f"must be a mapping, not {_kind_of(value)}")
        kinds = {field.name: field.type for field in msgspec.structs.fields(shape)}
        given: dict[str, Any] = {}
        for name, inner in value.items():
            if name not in kinds:
                near = nearest(str(name), kinds)
                # Settings are often written one level too high: `port` instead of `server.port`.
                fields = {outer: getattr(unwrap(kind)[0], "__struct_fields__", ()) for outer, kind in kinds.items()}
                inside = [f"{outer}.{name}" for outer, names in fields.items() if name in names]
                meant = suggestion(str(name), kinds) if near or not inside else f"did you mean {inside[0]}?"
                message = f"is not a setting; {meant}"
                self._problems.refuse(field_path(path, str(name)), message, near and field_path(path, near))
            elif inner is not None:
                read = self.read(kinds[name], inner, field_path(path, name))
                given |= {} if read is _REFUSED else {name: read}
        return given

    def _mapping(self, kind: Any, value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            return self._refuse(path, f"must be a mapping, not {_kind_of(value)}")
        items = {}
        for name, inner in value.items():
            # YAML reads the names `1`, `on` and `2026-01-31` as a number, a boolean and a date.
            if not isinstance(name, str) or not name:
                self._refuse(field_path(path, str(name)), "must have a name of text; put it in quotes")
            read = self.read(kind, {} if inner is None else inner, field_path(path, str(name)))
            items[str(name)] = _placeholder(kind) if read is _REFUSED else read
        return items

    def _value(self, kind: Any, bare: Any, value: Any, path: str) -> Any:
        given = value
        if isinstance(value, str) and "${" in value:
            value = self._expand(value, path)
            if value is None:
                return _REFUSED
        if get_origin(bare) is Literal and value not in get_args(bare):
            # Choices are no secrets, so that the value may be shown.
            shown = repr(value[:60]) if isinstance(value, str) else _kind_of(value)
            return self._refuse(path, f"must be one of {', '.join(get_args(bare))}, not {shown}")
        try:
            # A variable is always text, so its value may be converted to a number or a boolean.
            read = msgspec.convert(value, kind, strict=value is given, dec_hook=_decode_secret)
        except msgspec.ValidationError as error:
            return self._refuse(path, _translate(str(error)))
        if isinstance(read, float) and not math.isfinite(read):
            return self._refuse(path, "must be a finite number")
        if isinstance(read, int) and abs(read) > _MAX_NUMBER:
            return self._refuse(path, f"must be a number up to {_MAX_NUMBER}")
        text = read.reveal() if isinstance(read, Secret) else read
        # Bytes of the environment that are no UTF-8 become surrogates.
        if isinstance(text, str) and any(char == "\0" or "\ud800" <= char <= "\udfff" for char in text):
            return self._refuse(path, "contains a NUL, or a character that is not Unicode")
        return read

    def _expand(self, text: str, path: str) -> str | None:
        """Replace every `${X}` and `${X:-default}`, and `$${` by `${`; None if a variable is missing."""
        missing = False

        def replacement(found: re.Match[str]) -> str:
            nonlocal missing
            if found[1]:
                return found[0][1:]
            named = _VARIABLE.fullmatch(found[2])
            value = self._env.get(named[1]) if named else None
            # As in a shell, an empty variable takes the default, too.
            if named and named[2] is not None:
                return value or named[2]
            if value is None:
                what = f"the environment variable {named[1]} is not set" if named else "${…} must name a variable"
                self._refuse(path, what)
                missing = True
            return value or ""

        expanded = _REFERENCE.sub(replacement, text)
        return None if missing else expanded

    def _refuse(self, path: str, message: str) -> _Refused:
        self._problems.refuse(path, message)
        return _REFUSED


def unwrap(kind: Any) -> tuple[Any, PartialStructMarker | None]:
    """Return the type without annotations and None, and its `PartialStructMarker` mark if it has one."""
    partial = None
    if get_origin(kind) is Annotated:
        kind, *notes = get_args(kind)
        partial = next((note for note in notes if isinstance(note, PartialStructMarker)), None)
    if get_origin(kind) in (Union, UnionType):
        choices = [choice for choice in get_args(kind) if choice is not NoneType]
        kind = choices[0] if len(choices) == 1 else kind
    return kind, partial


def _placeholder(kind: Any) -> Any:
    """Make a value of this type for one that cannot be read, so that the rest of the file can be checked."""
    bare, partial = unwrap(kind)
    if partial is not None:
        return {}
    if isinstance(bare, type) and issubclass(bare, Struct):
        return bare(
            **{field.name: _placeholder(field.type) for field in msgspec.structs.fields(bare) if field.required}
        )
    match get_origin(bare):
        # Of several types any will do: the value is never used.
        case origin if origin is Annotated or origin in (Union, UnionType):
            return _placeholder(get_args(bare)[0])
        case origin if origin is Literal:
            return get_args(bare)[0]
        case origin if origin is tuple:
            return ()
        case origin if isinstance(origin, type) and issubclass(origin, Mapping):
            return {}
    return Secret("") if bare is Secret else bare()


def _decode_secret(kind: type, value: Any) -> Secret:
    if not isinstance(value, str):
        raise TypeError("must be text; put it in quotes")
    return Secret(value)


def _translate(message: str) -> str:
    """Rewrite the library's error message for a person."""
    found = _EXPECTED.fullmatch(message)
    if found is None:
        return message.partition(" - at ")[0]
    expected = " or ".join(_TYPE_NAMES.get(name, name) for name in found[1].split(" | ") if name != "null")
    # msgspec writes the bounds of floats as 0.0, which a person would write as 0.
    bound = (found[2] or "").replace(".0", "")
    if bound == "of length >= 1":
        return "must not be empty"
    got = f", not {_TYPE_NAMES.get(found[3], found[3])}" if found[3] else ""
    return f"must be {expected}{f' {bound}' if bound else ''}{got}"


def _kind_of(value: Any) -> str:
    names = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


# PyYAML may be built without libyaml; the loader in Python is slower and does the same.
class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # whichever there is
    """A safe loader that records each key given twice and keeps its first value."""

    def __init__(self, text: bytes) -> None:
        super().__init__(text)
        self.repeated: list[tuple[yaml.Mark, str]] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for pair in list(node.value):
            key = pair[0]
            # `<<` may stand several times: it merges another mapping into this one.
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    self.repeated.append((key.start_mark, key.value))
                    node.value.remove(pair)
                seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping
