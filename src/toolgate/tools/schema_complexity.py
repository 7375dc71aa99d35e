"""Estimate the work that a JSON Schema may cause: the subschemas that a validator tries on one value and on all arguments.

A validator follows every `$ref` and tries every alternative, so 1 KB of schema may stand for 2^30 of them. The counts
here are upper bounds and take time that grows with the schema and the value alone. Knows no validator.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

# Subschemas that may have to be tried on one value when each reference is replaced by what it refers to.
MAX_WIDTH = 100_000
# Pairs of subschemas of which one applies wherever the other does; this bounds the memory of the estimate itself.
MAX_CLOSURES = 200_000
# Subschemas for one and the same value that may be nested in each other: a validator's stack is finite.
MAX_CHAIN = 48
# Subschemas that a schema may be written with.
MAX_NODES = 4000
# References from one subschema to another; an anchor that is defined many times makes many.
MAX_EDGES = 20_000
# Subschemas with an `$id` of their own: each reference is looked up in all of them.
MAX_RESOURCES = 100
# Different patterns in one schema: each is compiled to up to a quarter of a MiB.
MAX_PATTERNS = 256

# Keywords by what their subschemas apply to: the same value, its members, its items.

_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLES = ("not", "if", "then", "else")
_BY_NAME = ("dependentSchemas", "dependencies")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ANY_MEMBER = ("additionalProperties", "unevaluatedProperties", "propertyNames")
_ANY_ITEM = ("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains")
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
_NO_VALUES = frozenset(
    {*_LISTS, *_SINGLES, *_BY_NAME, *_ANY_MEMBER, *_ANY_ITEM, "properties", "patternProperties", "$defs", "definitions"}
)
_EXTERNAL = 200  # evaluations for a schema outside of this one: those of the published drafts
_UNEVALUATED_FACTOR = 3  # times that `unevaluated…` evaluates the keywords beside it, measured
_VALUES_EACH = 8  # listed values that take as long as one evaluation
_CONTAINER = 64  # listed values that take as long as one list or object
# Evaluations that take as long as a pattern that cannot be matched in linear time, measured, and the squared letters
# of its text for one more.
_BACKTRACKING = 200
_SQUARE_EACH = 16
_LETTERS_EACH = 64  # letters that a pattern reads in the time of one evaluation
# Look-around such as `(?=`, `(?<!`, and back-references such as `\1` or `\k<name>`.
_LOOKS_AROUND = re.compile(r"\(\?<?[=!]|\\[1-9]|\\k<")


class SchemaTooComplex(ValueError):
    """A schema that would cause too much work; the text completes "the schema …"."""


class _Node:
    """A subschema: the numbers of those that apply to the same value, to its members and to its items."""

    __slots__ = ("backtracking", "here", "items", "matches", "members", "named", "weight")

    def __init__(self, schema: Mapping[str, Any]) -> None:
        # What trying it costs beside the subschemas that it leads to: comparing with listed values and names.
        values = [
            [value] if word == "const" else value
            for word, value in schema.items()
            if word == "const" or (isinstance(value, list) and word not in _NO_VALUES)
        ]
        listed = sum(_size(one) for value in values for one in value)
        self.weight = 1 + (listed + len(_values(schema.get("properties")))) // _VALUES_EACH
        patterns = _patterns(schema)
        self.matches = len(patterns)
        self.backtracking = sum(1 for pattern in patterns if _LOOKS_AROUND.search(pattern))
        self.here: dict[int, int] = {}
        self.named: dict[str, int] = {}
        self.members: list[int] = []
        self.items: list[int] = []


class SchemaComplexity:
    """The work that a schema may cause; SchemaTooComplex if it is too much for any value.

    The schema's nesting must have been bounded before. `width` is how many subschemas may have to be tried on one value
    anywhere in the arguments, unless the schema is `recursive`; `backtracks` is set if a pattern has look-around or
    back-references.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema
        self._resources, self._anchors = _identified(schema)
        if len(self._resources) > MAX_RESOURCES:
            raise SchemaTooComplex(f"has more than {MAX_RESOURCES} subschemas with an $id")
        self._numbers: dict[int, int] = {}  # by the id of a subschema, which is alive as long as `_root` is
        self._edges = 0
        self._nodes: list[_Node] = []
        self._closures: dict[int, dict[int, int]] = {}
        self._pairs = 0
        self.recursive = False
        self.backtracks = False
        self._distinct: set[str] = set()
        self._add(schema)
        self._check_chains()
        self.width = self._widest()
        if self.width > MAX_WIDTH:
            raise SchemaTooComplex(
                f"stands for more than {MAX_WIDTH} subschemas of one value once its references are followed"
            )

    @property
    def patterns(self) -> int:
        """The number of different patterns."""
        return len(self._distinct)

    def evaluations(self, value: Any, limit: int) -> int:
        """Count how many subschemas a validator may try on this value, not much further than the limit."""
        total = 0
        # Each value with the numbers of the subschemas that apply to it, and how often each does. A stack of its own
        # instead of recursion: arguments may be nested deeply.
        pending: list[tuple[Any, dict[int, int]]] = [(value, {0: 1})]
        while pending and total <= limit:
            value, entered = pending.pop()
            applied = self._applied(entered)
            length = len(value) if isinstance(value, str) else 0
            for number, times in applied.items():
                node = self._nodes[number]
                total += times * node.weight
                if node.matches:
                    total += times * node.matches * (length // _LETTERS_EACH)
                if node.backtracking:  # the pattern is matched with the value, or with each of its names
                    lengths = [len(name) for name in value] if isinstance(value, dict) else [length]
                    work = sum([_BACKTRACKING + length * length // _SQUARE_EACH for length in lengths])
                    total += times * node.backtracking * work
            if isinstance(value, dict):
                pending += self._for_members(value, applied)
            elif isinstance(value, list):
                inner: dict[int, int] = {}
                for number, times in applied.items():
                    _add_all(inner, self._nodes[number].items, times)
                if inner:
                    pending += [(item, inner) for item in value]
        return total

    def _for_members(self, value: dict[str, Any], applied: dict[int, int]) -> list[tuple[Any, dict[int, int]]]:
        common: dict[int, int] = {}
        for number, times in applied.items():
            _add_all(common, self._nodes[number].members, times)
        named = [(self._nodes[number].named, times) for number, times in applied.items() if self._nodes[number].named]
        found: list[tuple[Any, dict[int, int]]] = []
        for name, member in value.items():
            # Shared by all members for which the schema has no name; copied when the first name adds to it.
            inner = common
            for names, times in named:
                if (one := names.get(name)) is not None:
                    inner = dict(inner) if inner is common else inner
                    inner[one] = inner.get(one, 0) + times
            if inner:
                found.append((member, inner))
        return found

    def _applied(self, entered: dict[int, int]) -> dict[int, int]:
        """Return all subschemas that apply to a value to which these apply, and how often."""
        if len(entered) == 1:
            [(number, times)] = entered.items()
            closure = self._closure(number)
            return closure if times == 1 else {one: count * times for one, count in closure.items()}
        applied: dict[int, int] = {}
        for number, times in entered.items():
            for one, count in self._closure(number).items():
                applied[one] = applied.get(one, 0) + count * times
        return applied

    def _closure(self, number: int) -> dict[int, int]:
        found = self._closures.get(number)
        if found is None:
            found = {number: 1}
            for one, times in self._nodes[number].here.items():  # no deeper than the longest chain
                for inner, count in self._closure(one).items():
                    found[inner] = found.get(inner, 0) + count * times
            self._closures[number] = found
            self._pairs += len(found)
            if self._pairs > MAX_CLOSURES:
                raise SchemaTooComplex("has too many subschemas for the same value")
        return found

    def _add(self, schema: Mapping[str, Any]) -> None:
        """Number the subschemas that can be reached from here, by references too, and connect them."""
        self._number(schema)
        pending: list[Mapping[str, Any]] = [schema]

        def numbered(inner: Any) -> Iterator[int]:  # nothing for what is no subschema, such as `true`
            if isinstance(inner, dict):
                if id(inner) not in self._numbers:
                    self._number(inner)
                    pending.append(inner)
                self._edges += 1
                if self._edges > MAX_EDGES:
                    raise SchemaTooComplex(f"has more than {MAX_EDGES} references and subschemas in all")
                yield self._numbers[id(inner)]

        while pending:
            schema = pending.pop()
            node = self._nodes[self._numbers[id(schema)]]
            # What applies to the same value.
            beside = [inner for word in _LISTS if isinstance(schema.get(word), list) for inner in schema[word]]
            beside += [schema.get(word) for word in _SINGLES]
            beside += [inner for word in _BY_NAME for inner in _values(schema.get(word))]
            for word in _REFERENCES:
                if isinstance(reference := schema.get(word), str):
                    beside += self._referred(reference)
            times = _UNEVALUATED_FACTOR if any(word in schema for word in _UNEVALUATED) else 1
            for inner in beside:
                for number in numbered(inner):
                    node.here[number] = node.here.get(number, 0) + times
            # What applies to its members and its items.
            for name, inner in _members(schema.get("properties")):
                for number in numbered(inner):
                    node.named[name] = number
            for inner in (*[schema.get(word) for word in _ANY_MEMBER], *_values(schema.get("patternProperties"))):
                node.members += numbered(inner)
            for word in _ANY_ITEM:
                inner = schema.get(word)
                for one in inner if isinstance(inner, list) else (inner,):
                    node.items += numbered(one)

    def _number(self, schema: Mapping[str, Any]) -> None:
        self._numbers[id(schema)] = len(self._nodes)
        if len(self._nodes) > MAX_NODES:
            raise SchemaTooComplex(f"has more than {MAX_NODES} subschemas")
        node = _Node(schema)
        self._nodes.append(node)
        self.backtracks = self.backtracks or node.backtracking > 0
        self._distinct.update(_patterns(schema))
        if self.patterns > MAX_PATTERNS:
            raise SchemaTooComplex(f"has more than {MAX_PATTERNS} patterns")

    def _referred(self, reference: str) -> list[Any]:
        """Return the subschemas that a reference may mean, or a stand-in for a schema outside of this one."""
        # `other.json#/$defs/a` is a document and a pointer, `#anchor` a name. Relative addresses are not resolved:
        # every resource whose `$id` ends like the reference counts, because the estimate may only be too high.
        place, _, fragment = reference.partition("#")
        tops = [resource for id, resource in self._resources if not place or id.endswith(place.lstrip("./"))]
        if fragment and not fragment.startswith("/"):
            found = self._anchors.get(fragment, [])
        else:
            found = [one for top in (self._root, *tops) if (one := _pointed(top, fragment)) is not None]
        return found or [_STAND_IN]

    def _check_chains(self) -> None:
        """Refuse subschemas that apply to one and the same value in a cycle, or in too long a chain."""
        # A depth-first search with a stack of its own. The state is -1 while a subschema is being visited, so that
        # meeting it again is a cycle, and then the length of its longest chain.
        state: dict[int, int] = {}
        for start in range(len(self._nodes)):
            path = [start] if start not in state else []
            while path:
                number = path[-1]
                state.setdefault(number, -1)
                following = [one for one in self._nodes[number].here if state.get(one, -1) < 0]
                if not following:
                    state[number] = 1 + max([state[one] for one in self._nodes[number].here], default=0)
                    path.pop()
                elif state.get(following[0]) == -1:
                    raise SchemaTooComplex("refers to itself without end")
                elif len(path) > MAX_CHAIN:
                    raise SchemaTooComplex(
                        f"has more than {MAX_CHAIN} subschemas for the same value one inside the other"
                    )
                else:
                    path.append(following[0])
            if state[start] > MAX_CHAIN:
                raise SchemaTooComplex(f"has more than {MAX_CHAIN} subschemas for the same value one inside the other")

    def _widest(self) -> int:
        """Compute how many subschemas may have to be tried at one place of a value; places below it count for themselves.

        A member has one name, so of the subschemas of different names only the most expensive counts.
        """
        # A depth-first search again: a subschema is visited once to find what is below it, and when all of that has
        # its width, a second time. What is below itself is recursive and counts as one here; `evaluations` follows it.
        widths: dict[int, int] = {}
        below: dict[int, list[dict[int, int]]] = {}
        path = [0]
        while path:
            number = path[-1]
            if number in widths:
                path.pop()
            elif number not in below:
                below[number] = self._below(number)
                following = {one for choice in below[number] for one in choice if one not in widths}
                self.recursive = self.recursive or any(one in below for one in following)
                path += [one for one in following if one not in below]
            else:
                here = sum(self._nodes[one].weight * times for one, times in self._closure(number).items())
                items, members, *named = [
                    sum(widths.get(one, 1) * times for one, times in choice.items()) for choice in below[number]
                ]
                widths[number] = min(max(here, items, members + max(named, default=0)), MAX_WIDTH + 1)
                path.pop()
        return widths[0]

    def _below(self, number: int) -> list[dict[int, int]]:
        """Return the subschemas of a value's items, of all its members, and of its members by name."""
        items: dict[int, int] = {}
        members: dict[int, int] = {}
        named: dict[str, dict[int, int]] = {}
        for one, times in self._closure(number).items():
            node = self._nodes[one]
            _add_all(items, node.items, times)
            _add_all(members, node.members, times)
            for name, inner in node.named.items():
                _add_all(named.setdefault(name, {}), [inner], times)
        return [items, members, *named.values()]


# Takes the place of a published draft's meta-schema, the only one outside that a validator knows.
_STAND_IN: dict[str, Any] = {"enum": [None] * (_EXTERNAL * _VALUES_EACH)}


def _add_all(counts: dict[int, int], numbers: list[int], times: int) -> None:
    for number in numbers:
        counts[number] = counts.get(number, 0) + times


def _patterns(schema: Mapping[str, Any]) -> list[str]:
    patterns = [pattern for pattern, _ in _members(schema.get("patternProperties"))]
    return [*patterns, pattern] if isinstance(pattern := schema.get("pattern"), str) else patterns


def _size(value: Any) -> int:
    """Estimate how long it takes to compare with a value; lists and objects take longer than their number of values."""
    if isinstance(value, dict):
        return _CONTAINER + sum(_size(inner) for inner in value.values())
    return _CONTAINER + sum(_size(inner) for inner in value) if isinstance(value, list) else 1


def _members(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _values(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else []


def _identified(schema: Mapping[str, Any]) -> tuple[list[tuple[str, Any]], dict[str, list[Any]]]:
    """Collect the subschemas that have an `$id` or an anchor of their own."""
    resources: list[tuple[str, Any]] = []
    anchors: dict[str, list[Any]] = {}
    pending: list[Any] = [schema]
    while pending:
        current = pending.pop()
        if isinstance(current, dict):
            for word in ("$id", "id"):
                if isinstance(id := current.get(word), str):
                    address, _, anchor = id.partition("#")
                    if address and current is not schema:
                        resources.append((address, current))
                    if anchor:
                        anchors.setdefault(anchor, []).append(current)
            for word in ("$anchor", "$dynamicAnchor"):
                if isinstance(named := current.get(word), str):
                    anchors.setdefault(named, []).append(current)
            pending += current.values()
        elif isinstance(current, list):
            pending += current
    return resources, anchors


def _pointed(top: Any, pointer: str) -> Any:
    """Resolve a JSON pointer; None if it points to nothing."""
    for step in unquote(pointer).split("/")[1:] if pointer else ():
        # In this order: `~01` is the name `~1` and no slash.
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(top, dict):
            top = top.get(step)
        elif isinstance(top, list) and step.isdecimal() and len(step) < 6 and int(step) < len(top):
            top = top[int(step)]
        else:
            return None
    return top
