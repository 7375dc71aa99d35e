"""spec: T6: malformed arguments are repaired where they can mean only one thing, and described for the model where not."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.text_tools.parsed import NOW, WEATHER
from tests.text_tools.strategies import law
from toolgate.text_tools.parsing.argument_repair import describe_problem, repair, unwrap


@pytest.mark.parametrize(
    ("arguments", "repaired", "fix_text"),
    [
        ('{"a": 1,}', {"a": 1}, "comma"),
        ("{'a': 'b \"c\"'}", {"a": 'b "c"'}, "single quotes"),
        ("{a: 1, b-c: 2}", {"a": 1, "b-c": 2}, "keys"),
        ('{"a": True, "b": None}', {"a": True, "b": None}, "Python"),
        ('```json\n{"a": 1}\n```', {"a": 1}, "fence"),
        ('{"a": "x\ny"}', {"a": "x\ny"}, "line breaks"),
        ('{"a": "\\d"}', {"a": "\\d"}, "backslashes"),
        ('{"a": 1}}', {"a": 1}, "surplus"),
        ('{"a": .5}', {"a": 0.5}, "numbers"),
        ('{"a": (1, 2)}', {"a": [1, 2]}, "parentheses"),
    ],
)
def test_arguments_that_can_mean_one_thing_are_repaired_and_the_fix_is_named(
    arguments: str, repaired: object, fix_text: str
) -> None:
    done = repair(arguments)
    assert done is not None
    assert json.loads(done.arguments) == repaired
    assert any(fix_text in fix for fix in done.fixes), done.fixes


@pytest.mark.parametrize("arguments", ['{"a": 1', '{"a": [1, {"b": "c"}', '{"a": {"b": true'])
def test_brackets_are_closed_for_a_model_that_stopped_by_itself(arguments: str) -> None:
    assert repair(arguments) is None
    done = repair(arguments, cut=False)
    assert done is not None
    assert done.fixes == ("missing closing brackets were added",)
    json.loads(done.arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        '{"a": "x',
        '{"a"',
        '{"a":',
        '{"a": 1,',
        '{"a": tru',
        '{"a": foo}',
        '{"a": [1, 2}',
        "[1]",
        "city=Paris",
        '{"a" 1}',
        "x",
    ],
)
def test_arguments_that_would_take_a_guess_are_not_repaired(arguments: str) -> None:
    assert repair(arguments) is None
    assert repair(arguments, cut=False) is None


def test_valid_arguments_are_unchanged() -> None:
    text = '{"a": 1.50, "b": 123456789012345678901234567890}'
    done = repair(text)
    assert done is not None
    assert (done.arguments, done.fixes) == (text, ())


@law(200)
@given(st.text(st.sampled_from("{}[]\"':,ab1 \\\nTrue"), max_size=20))
def test_a_repair_is_always_an_object(text: str) -> None:
    for cut in (True, False):
        done = repair("{" + text, cut=cut)
        if done is not None:
            assert isinstance(json.loads(done.arguments), dict)


def test_arguments_in_a_wrapper_are_taken_out_where_the_tool_has_no_such_parameter() -> None:
    done = unwrap('{"arguments": {"city": "Paris", "days": 1.50}}', WEATHER)
    assert done is not None
    assert done.arguments == '{"city": "Paris", "days": 1.50}'
    assert unwrap('{"city": {"a": 1}}', WEATHER) is None
    assert unwrap('{"input": {"a": 1}, "city": "x"}', WEATHER) is None


def test_the_description_of_a_problem_names_the_mistake_and_its_place() -> None:
    fix_text = describe_problem("get_weather", '{"city": Paris}', WEATHER)
    assert "expecting value at character 10" in fix_text
    assert "city (string)" in fix_text
    assert "was not run" in fix_text
    assert "now takes no arguments" in describe_problem("now", "[1]", NOW)
    assert "a JSON array and not an object" in describe_problem("now", "[1]", NOW)
