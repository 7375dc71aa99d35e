"""The clock and the calculator: small tools whose answers must be right (spec: R1, R2)."""

import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import jsonschema_rs
import pytest

from tests.tools.invoke import run, run_text
from toolgate.tools.builtin import NAMES, BuiltinSource
from toolgate.tools.builtin.calculator import CalculatorTool
from toolgate.tools.builtin.clock import ClockTool
from toolgate.tools.egress import GuardedHttp
from toolgate.tools.tool import ToolCallFailed

NOON = datetime(2026, 7, 1, 12, 0, 0, tzinfo=UTC)
CLOCK = ClockTool(lambda: NOON)


@pytest.mark.parametrize(
    ("zone", "iso"),
    [
        ("UTC", "2026-07-01T12:00:00+00:00"),
        ("Europe/Berlin", "2026-07-01T14:00:00+02:00"),
        ("Asia/Kolkata", "2026-07-01T17:30:00+05:30"),
        ("UTC+2", "2026-07-01T14:00:00+02:00"),
        ("-03:30", "2026-07-01T08:30:00-03:30"),
    ],
)
async def test_the_clock_returns_the_time_of_a_zone(zone: str, iso: str) -> None:
    output = await run(CLOCK, timezone=zone)
    assert output.structured["iso"] == iso


async def test_the_clock_returns_utc_without_a_zone() -> None:
    assert (
        await run_text(CLOCK)
        == "Wednesday, 1 July 2026, 12:00:00 in UTC (UTC+00:00)\nISO 8601: 2026-07-01T12:00:00+00:00"
    )


@pytest.mark.parametrize(
    ("zone", "hint"),
    [
        ("Berlin", "did you mean Europe/Berlin"),
        ("europe/berlin", "did you mean Europe/Berlin"),
        ("Europe/Berln", "Europe/Berlin"),
        ("New York", "America/New_York"),
        ("qqqq", "IANA name"),
        ("../../etc/passwd", "no time zone"),
        ("/etc/passwd", "no time zone"),
        ("Europe", "no time zone"),
        ("a\0b", "no time zone"),
        ("UTC+99", "further"),
    ],
)
async def test_an_unknown_zone_is_refused_with_similar_names(zone: str, hint: str) -> None:
    with pytest.raises(ToolCallFailed, match=hint):
        await run(CLOCK, timezone=zone)


SUMS = [
    ("1 + 2 * 3", "7"),
    ("0.1 + 0.2", "0.3"),
    ("-2 ** 2", "-4"),
    ("2 ** 3 ** 2", "512"),
    ("2 ** -3", "0.125"),
    ("7 // 2", "3"),
    ("-7 % 3", "2"),
    ("(1299.90 * 3) / 2", "1949.85"),
    ("4 ** 0.5", "2"),
    ("sqrt(16) + abs(-3)", "7"),
    ("round(2.675, 2)", "2.68"),
    ("max(1, 2.5, -3)", "2.5"),
    ("1_000 × 3 ÷ 4", "750"),
    ("2^10", "1024"),
    ("99999999999999999999 + 1", "100000000000000000000"),
    ("1e3", "1000"),
    ("gcd(12, 18) * lcm(4, 6)", "72"),
    ("-(-5)", "5"),
    ("factorial(20)", "2432902008176640000"),
]
ROUGH = [
    ("1 / 3", "about 0.333333333333333"),
    ("pi", "about 3.14159265358979"),
    ("sin(0)", "about 0"),
    ("log(8, 2)", "about 3"),
]


@pytest.mark.parametrize(("expression", "result"), SUMS + ROUGH)
async def test_the_calculator_is_exact_where_it_can_be_and_marks_approximations(expression: str, result: str) -> None:
    assert await run_text(CalculatorTool(), expression=expression) == result


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("1 / 0", "division by zero"),
        ("5 5", "an operator is missing"),
        ("2 +", "ends too early"),
        ("(1", "closing parenthesis"),
        ("squrt(2)", "did you mean sqrt"),
        ("x + 1", "not a function or constant"),
        ("__import__('os')", "not part of arithmetic"),
        ("open", "not a function or constant"),
        ("sqrt(-1)", "no real square root"),
        ("(-8) ** (1/3)", "no real power"),
        ("log(0)", "positive"),
        ("exp(9999)", "no finite value"),
        ("1e308 * pi * 1e308", "too large"),
        ("sqrt(1, 2)", "takes 1 arguments"),
        ("1.5.2", "operator is missing"),
        ("١ + ٢", "not part of arithmetic"),
    ],
)
async def test_an_expression_that_cannot_be_evaluated_fails_with_a_message(expression: str, complaint: str) -> None:
    with pytest.raises(ToolCallFailed, match=complaint):
        await run(CalculatorTool(), expression=expression)


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9",
        "9**9**9**9",
        "2**99999999",
        "(1/3)**99999999",
        "factorial(99999999)",
        "factorial(1000)**99",
        "comb(99999999, 3)",
        "1e9999",
        "((2**9999)*3)**2",
        "(" * 900 + "1" + ")" * 900,
        "-" * 1999 + "1",
        "2**" * 600 + "2",
        "9" * 1990 + "**9",
    ],
)
async def test_no_expression_takes_long(expression: str) -> None:
    """fault: T1"""
    began = time.process_time()
    with suppress(ToolCallFailed):
        await run(CalculatorTool(), expression=expression)
    assert time.process_time() - began < 0.5


def test_without_a_grant_there_are_no_file_tools_and_without_permission_no_commands(tmp_path: Path) -> None:
    def names(source: BuiltinSource) -> set[str]:
        return {tool.spec.name for tool in source.tools}

    http = GuardedHttp.__new__(GuardedHttp)
    assert names(BuiltinSource()) == {"clock", "calculator"}
    assert names(BuiltinSource(allow_commands=True)) == {"clock", "calculator"}
    assert names(BuiltinSource([tmp_path], http=http)) == NAMES - {"run_command"}
    assert names(BuiltinSource([tmp_path], http=http, allow_commands=True)) == NAMES
    assert "fetch" not in names(BuiltinSource(http=http, disabled=frozenset({"fetch"})))
    with pytest.raises(ValueError, match="no built-in tool called fech"):
        BuiltinSource(disabled=frozenset({"fech"}))
    with pytest.raises(ValueError, match="is not a folder"):
        BuiltinSource([tmp_path / "missing"])


def test_every_tool_has_an_exact_schema_and_descriptions_for_models_and_people(tmp_path: Path) -> None:
    """spec: R1, R6"""
    source = BuiltinSource([tmp_path], http=GuardedHttp.__new__(GuardedHttp), allow_commands=True)
    for tool in source.tools:
        spec = tool.spec
        jsonschema_rs.meta.validate(dict(spec.input_schema))
        assert spec.input_schema["additionalProperties"] is False
        assert spec.description.endswith(".")
        assert spec.display_name
        assert spec.reference_name
        assert spec.user_description
        assert spec.tags
        assert spec.source == "builtin"
        assert spec.annotations.read_only is not spec.annotations.destructive
    asking = {tool.spec.name for tool in source.tools if tool.spec.approval == "ask"}
    assert asking == {"write_file", "run_command"}
