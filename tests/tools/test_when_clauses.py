"""When-clauses mean what they mean in the editor, and hostile ones cost nothing (spec: R5)."""

import re
import sys
import time
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.tools.when_clauses import MAX_DEPTH, MAX_LENGTH, WhenError, parse

CONTEXT = {
    "on": True,
    "off": False,
    "lang": "python",
    "count": 3,
    "version": "1.5",
    "empty": "",
    "file": "src/main.test.py",
    "open": ["python", "go", 3],
    "known": {"python": 1},
    "odd.key-name": "x",
    "spaced": "two words",
}


@pytest.mark.parametrize(
    ("clause", "expected"),
    [
        ("on", True),
        ("off", False),
        ("missing", False),
        ("empty", False),
        ("lang", True),
        ("!on", False),
        ("!missing", True),
        ("!!on", True),
        ("true", True),
        ("false || on", True),
        ("!false", True),
        ("lang == python", True),
        ("lang == 'python'", True),
        ('lang == "python"', True),
        ("lang==python", True),
        ("lang === python", True),
        ("lang != go", True),
        ("missing == python", False),
        ("missing != python", True),
        ("spaced == 'two words'", True),
        ("empty == ''", True),
        ("on == true", True),
        ("missing == false", True),
        ("on != true", False),
        ("on == 'true'", True),
        ("count == 3", True),
        ("count == 3.0", True),
        ("count == three", False),
        ("count < 4", True),
        ("count < 3", False),
        ("count <= 3", True),
        ("count>2", True),
        ("count >= 3.5", False),
        ("version > 1.4", True),
        ("missing < 4", False),
        ("lang < 4", False),
        ("count < many", False),
        ("on < 4", False),
        ("lang in open", True),
        ("lang in known", True),
        ("count in open", True),
        ("on in open", False),
        ("lang in missing", False),
        ("lang not in open", False),
        ("missing not in open", True),
        ("lang in lang", False),
        (r"file =~ /\.test\.py$/", True),
        (r"file =~ /^SRC\//i", True),
        (r"file =~ /^SRC\//", False),
        (r"file =~ /[/]main/ && on", True),
        ("file =~ /a b/ || on", True),
        ("missing =~ /./", False),
        ("count =~ /3/", False),
        ("odd.key-name == x", True),
        ("off && off || on", True),
        ("on || off && off", True),
        ("(on || off) && off", False),
        ("!on || on", True),
        ("!(on && off)", True),
        ("!(lang == go) && on", True),
        ("lang == in", False),
        ("lang == 'not' || lang == '&&'", False),
    ],
)
def test_a_clause_means_what_it_means_in_the_editor(clause: str, expected: bool) -> None:
    assert parse(clause).holds(CONTEXT) is expected


@pytest.mark.parametrize(
    ("clause", "column", "word"),
    [
        ("", 1, "a key"),
        ("a &&", 5, "a key"),
        ("a && || b", 6, "a key"),
        ("a b", 3, "`&&` or `||`"),
        ("(a", 1, "never closed"),
        ("a)", 2, "`&&` or `||`"),
        ("a ==", 5, "a value"),
        ("a = b", 3, "'='"),
        ("a & b", 3, "'&'"),
        ("a == 'b", 6, "not expected"),
        ("a =~ b", 5, "/pattern/"),
        ("a =~ /(/", 7, "no pattern"),
        ("a =~ /(?=b)/", 7, "no pattern"),
        (r"a =~ /(b)\1/", 7, "no pattern"),
        ("a =~ /b{999}{999}/", 7, "no pattern"),
        ("a =~ /b/x", 9, "flag 'x'"),
        ("a not b", 7, "`in`"),
        ("a in 'b'", 6, "a key"),
        ("!a == b", 4, "parentheses"),
        ("'a' == b", 1, "a key"),
        ("(" * (MAX_DEPTH + 1) + "a" + ")" * (MAX_DEPTH + 1), MAX_DEPTH + 1, "deeper"),
        ("!" * 4000 + "a", MAX_DEPTH + 1, "deeper"),
        ("a" * (MAX_LENGTH + 1), MAX_LENGTH + 1, "characters"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_column(clause: str, column: int, word: str) -> None:
    with pytest.raises(WhenError, match=re.escape(word)) as caught:
        parse(clause)
    assert caught.value.column == column
    assert str(caught.value).endswith(f"at column {column}")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "(.*a){20}$", "a*a*a*a*a*a*b"])
def test_a_hostile_pattern_takes_no_longer_than_a_plain_one(pattern: str) -> None:
    clause = parse(f"text =~ /{pattern}/")
    started = time.thread_time()
    clause.holds({"text": "a" * 100_000 + "!"})
    assert time.thread_time() - started < 5  # a backtracking engine takes hours


def test_half_a_character_is_matched_without_complaint() -> None:
    assert parse("text =~ /b/").holds({"text": "\ud800b"})


def calls_of_a_clause(terms: int) -> int:
    """Count the calls that parsing and evaluating a clause of so many terms makes."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        assert parse(" && ".join(["on"] * terms)).holds(CONTEXT)
    finally:
        sys.setprofile(None)
    return calls


def test_the_work_for_a_clause_grows_with_its_length_alone() -> None:
    assert calls_of_a_clause(600) < 5 * calls_of_a_clause(150)


Tree: TypeAlias = Any
KEYS = st.sampled_from(["a", "b", "c.d", "e-f"])
WORDS = st.sampled_from(["x", "y", "1", "2.5", "true"])
LEAVES: st.SearchStrategy[Tree] = st.one_of(
    st.tuples(st.just("key"), KEYS),
    st.tuples(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), KEYS, WORDS),
    st.tuples(st.sampled_from(["in", "not in"]), KEYS, KEYS),
)
TREES: st.SearchStrategy[Tree] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.just("!"), inner),
        st.tuples(st.sampled_from(["&&", "||"]), inner, inner),
    ),
    max_leaves=12,
)
VALUES = st.one_of(st.booleans(), st.sampled_from(["x", "y", "2.5", ""]), st.integers(0, 3), st.just(["x", 1, True]))
RANK = {"||": 1, "&&": 2, "!": 4, "key": 5}


def written(tree: Tree, around: int = 0) -> str:
    """The clause with no more parentheses than it needs."""
    match tree:
        case ("key", key):
            text = key
        case ("!", inner):
            text = f"!{written(inner, 4)}"
        case ("&&" | "||" as sign, left, right):
            text = f"{written(left, RANK[sign])} {sign} {written(right, RANK[sign] + 1)}"
        case (sign, key, value):
            text = f"{key} {sign} {value}"
    return f"({text})" if RANK.get(tree[0], 3) < around else text


def number(value: Any) -> float:
    try:
        return float("nan") if type(value) in (bool, list) or value is None else float(value)
    except ValueError:
        return float("nan")


def truth(tree: Tree, context: dict[str, Any]) -> bool:
    """The reference: what the editor's documentation says, word by word."""
    match tree:
        case ("key", key):
            return bool(context.get(key))
        case ("!", inner):
            return not truth(inner, context)
        case ("&&", left, right):
            return truth(left, context) and truth(right, context)
        case ("||", left, right):
            return truth(left, context) or truth(right, context)
        case ("in", key, holder):
            held, item = context.get(holder), context.get(key)
            return type(held) is list and any(one == item and type(one) is type(item) for one in held)
        case ("not in", key, holder):
            return not truth(("in", key, holder), context)
        case ("==", key, "true"):
            return bool(context.get(key))
        case ("==", key, word):
            value = context.get(key)
            return value == word if type(value) is str else number(value) == number(word)
        case ("!=", key, word):
            return not truth(("==", key, word), context)
        case (sign, key, word):
            left, right = number(context.get(key)), number(word)
            return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[sign]
    raise AssertionError(tree)


@given(TREES, st.dictionaries(KEYS, VALUES))
def test_every_clause_agrees_with_the_reference(tree: Tree, context: dict[str, Any]) -> None:
    assert parse(written(tree)).holds(context) is truth(tree, context)


@given(st.text(alphabet="ab!&|()=<>~/'\" int", max_size=40))
def test_any_text_is_read_or_refused_with_a_column(text: str) -> None:
    assert 0 <= column_of_complaint(text) <= len(text) + 1


def column_of_complaint(text: str) -> int:
    """0 if there is none."""
    try:
        parse(text).holds({"a": 1})
    except WhenError as error:
        return error.column
    return 0
