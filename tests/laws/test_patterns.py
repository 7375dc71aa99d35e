"""No pattern takes time that grows faster than the text it looks at: text comes from strangers.

Every pattern of the package is tried, in each way in which it is used, on texts that are made from its own letters. A
pattern that is made inside a function has to be listed here with an example.
"""

import ast
import fnmatch
import importlib
import re
import time
from collections.abc import Callable, Iterator
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest

import toolgate
from toolgate.text_tools.syntaxes import syntaxes

try:
    from re import _parser as parser  # type: ignore[attr-defined]  # private, and the only reader of patterns
except ImportError:  # pragma: no cover
    parser = pytest.importorskip("sre_parse")

TOP = Path(toolgate.__file__).parent
WAYS = ("search", "match", "fullmatch", "sub", "split", "findall", "finditer")
LENGTH = 8000
ENOUGH = 0.02
"""Seconds of CPU: what takes less is not looked at again."""

BY_STRANGERS_NEVER = "made of the configuration or of the code, and used on the same"


def marks() -> Iterator[str]:
    """The patterns by which calls in text begin."""
    for syntax in syntaxes().values():
        yield from [marker.pattern for marker in syntax.markers(("search", "a_b")) if marker.pattern]


WORDS = "made of plain words alone"
INSIDE: dict[str, tuple[str, str] | str] = {
    "cli/chat/inline_markdown.py:_code_span": (r"(?<!`)`{3}(?!`)", "search"),
    "config/errors.py:note": (r"tools\.mcp\.a\.(command|url)", "fullmatch"),
    "conversation/call_ids.py:fit_id": (r"[a-zA-Z0-9_-]{1,64}", "fullmatch"),
    "dialects/anthropic/encode_messages.py:__init__": (r"[a-zA-Z0-9_-]+", "fullmatch"),
    "dialects/upstream_errors.py:without_rejected_settings": (r"\bservice_tier\b", "search"),
    "http/application.py:__init__": (r"/v1/responses/([^/]+)/items/(.+)", "fullmatch"),
    "api/openapi.py:_operation": BY_STRANGERS_NEVER,
    "api/openapi.py:openapi_document": BY_STRANGERS_NEVER,
    "storage/migrations.py:_create": BY_STRANGERS_NEVER,
    "text_tools/parsing/call_marker_search.py:__init__": ("|".join(dict.fromkeys(marks())), "search"),
    "text_tools/parsing/input_buffer.py:__init__": WORDS,
    "text_tools/parsing/call_rendering.py:identifier": (r"[\w.:/-]+", "fullmatch"),
    "text_tools/parsing/call_rendering.py:python_name": (r"[\w.$-]+", "fullmatch"),
    "tools/selection.py:_compiled": (fnmatch.translate("*a*b*[c-e]*a?*"), "match"),
    "tools/builtin/search_files.py:_matcher": (fnmatch.translate("*a*b*[c-e]*a?*"), "match"),
    "tools/registry.py:find": (fnmatch.translate("*a*b*[c-e]*a?*"), "match"),
    "mcp/oauth/discovery.py:challenge_parameter": (
        r'(?:^|[\s,])scope\s*+=\s*+(?:"([^"]*+)"|([^\s,"]+))',
        "search",
    ),
    "tools/sources/openapi/operation.py:_spec": (r"[^A-Za-z0-9_-]+|__+", "sub"),
    "tools/sources/openapi/operation.py:_plain": (r"[^A-Za-z0-9_.-]+", "sub"),
    "tools/sources/openapi/operation.py:read": (r"[?#\\\s]", "search"),
    "tools/sources/openapi/encode_parameters.py:path_with": (r"[/\\]", "split"),
    "tools/sources/openapi/schema.py:_reference": (r"[^A-Za-z0-9_.-]", "sub"),
    "upstreams/local/control_tokens.py:__init__": ("[<[]", "finditer"),
    "upstreams/echo.py:events": (r"\S+\s*|\s+", "findall"),
}


MODULES = [
    path.relative_to(TOP).as_posix()
    for path in sorted(TOP.rglob("*.py"))
    if re.search(rf"\bre\.(compile|{'|'.join(WAYS)})\b", path.read_text())
]


def is_pattern(node: ast.AST) -> bool:
    """Whether this makes a pattern, or uses one that is written there."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in ("compile", *WAYS)
    )


def functions_with_patterns(name: str) -> Iterator[str]:
    pending: list[tuple[ast.AST, str]] = [(ast.parse((TOP / name).read_text()), "")]
    while pending:
        node, function = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = function or node.name
        if function and is_pattern(node):
            yield f"{name}:{function}"
        pending += [(inner, function) for inner in ast.iter_child_nodes(node)]


def uses(name: str) -> dict[str, set[str]]:
    """The methods that a module calls on each of its names, as `_ONE.match` or `(_ONE if … else _OTHER).match`."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse((TOP / name).read_text())):
        if isinstance(node, ast.Attribute) and node.attr in WAYS:
            values = (node.value.body, node.value.orelse) if isinstance(node.value, ast.IfExp) else (node.value,)
            for value in values:
                if isinstance(value, ast.Name):
                    found.setdefault(value.id, set()).add(node.attr)
    return found


def patterns(value: Any, depth: int = 3) -> Iterator[re.Pattern[Any]]:
    """Those in a module's value."""
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, (tuple, list, dict)) and depth:
        for one in value.values() if isinstance(value, dict) else value:
            yield from patterns(one, depth - 1)


def patterns_of(path: str) -> Iterator[tuple[str, re.Pattern[Any], str]]:
    """Each pattern among a module's values, its name, and a method that it calls on it (`search` if none is seen)."""
    module = importlib.import_module("toolgate." + path.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))
    used = uses(path)
    for name, value in vars(module).items():
        for pattern in patterns(value):
            for way in sorted(used.get(name, ())) or ["search"]:
                yield name, pattern, way


def letters(tree: Any) -> Iterator[str]:
    """Stretches of letters that the pattern asks for, and one letter of every class."""
    literal = ""
    for operator, argument in tree:
        word = str(operator)
        if word == "LITERAL":
            literal += chr(argument)
            continue
        if literal:
            yield literal
            literal = ""
        if word == "IN":
            yield from _of_class(argument)
        elif word == "NOT_LITERAL" or word == "ANY":
            yield "a"
        elif word in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            yield from letters(argument[2])
        elif word == "SUBPATTERN":
            yield from letters(argument[3])
        elif word == "ATOMIC_GROUP":
            yield from letters(argument)
        elif word in ("ASSERT", "ASSERT_NOT"):
            yield from letters(argument[1])
        elif word == "BRANCH":
            yield from chain.from_iterable(map(letters, argument[1]))
    if literal:
        yield literal


def _of_class(members: Any) -> Iterator[str]:
    negated = any(str(operator) == "NEGATE" for operator, _ in members)
    for operator, argument in members:
        match str(operator):
            case "LITERAL":
                yield chr(argument)
            case "RANGE":
                yield chr(argument[0])
            case "CATEGORY":
                yield from {"CATEGORY_SPACE": " \n", "CATEGORY_DIGIT": "1"}.get(str(argument), "a")
    if negated:
        yield "a"


def example(tree: Any) -> str:
    """A short text that fits, or nearly."""
    text = ""
    for operator, argument in tree:
        match str(operator):
            case "LITERAL":
                text += chr(argument)
            case "IN":
                text += next(iter(_of_class(argument)), "a") if argument[0][0] != parser.NEGATE else "a"
            case "ANY" | "NOT_LITERAL":
                text += "a"
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                text += example(argument[2]) * min(max(argument[0], 1), 20)
            case "SUBPATTERN":
                text += example(argument[3])
            case "ATOMIC_GROUP":
                text += example(argument)
            case "BRANCH":
                text += example(argument[1][0])
    return text


def texts(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str, str]]:
    """How texts begin, what they repeat, and an end that spoils a match: made of what the pattern asks for."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    tree = parser.parse(source, pattern.flags & ~re.LOCALE)
    atoms = list(dict.fromkeys([*letters(tree), "a", " "]))[:14]
    starts = list(dict.fromkeys(["", *[example(tree[:place]) for place in range(1, len(tree) + 1)]]))[:8]
    pairs = [one + other for one, other in product(atoms, atoms) if one != other]
    yield from product(starts, atoms, ("", "\x01"))
    yield from product(("",), pairs, ("", "\x01"))


def worked(pattern: re.Pattern[Any], way: str, text: str) -> float:
    """Seconds of CPU."""
    given: Any = text if isinstance(pattern.pattern, str) else text.encode("utf-8", "replace")
    used: Callable[..., Any] = getattr(pattern, way)
    began = time.thread_time()
    if way == "sub":
        used("", given) if isinstance(given, str) else used(b"", given)
    elif way == "finditer":
        for _ in used(given):
            pass
    else:
        used(given)
    return time.thread_time() - began


def hold(pattern: re.Pattern[Any], way: str, name: str) -> None:
    for start, word, end in texts(pattern):
        times = LENGTH // len(word)
        if worked(pattern, way, start + word * times + end) < ENOUGH:
            continue
        once = min(worked(pattern, way, start + word * times + end) for _ in range(3))
        twice = min(worked(pattern, way, start + word * 2 * times + end) for _ in range(3))
        assert twice < 3 * once, (name, way, start, word, end, once, twice)


@pytest.mark.parametrize("path", [path for path in MODULES if not path.startswith("upstreams/local/engine")])
def test_a_pattern_takes_time_that_grows_with_the_text_and_no_faster(path: str) -> None:
    for name, pattern, way in patterns_of(path):
        hold(pattern, way, name)


def test_so_does_one_that_a_function_makes() -> None:
    for name, example in INSIDE.items():
        if not isinstance(example, str):
            pattern, way = example
            hold(re.compile(pattern), way, name)


def test_every_pattern_that_a_function_makes_is_listed_here() -> None:
    assert {function for path in MODULES for function in functions_with_patterns(path)} == set(INSIDE)
