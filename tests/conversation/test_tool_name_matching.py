"""Names of tools that a model spells otherwise than they were declared."""

import pytest

from toolgate.conversation.tool_name_matching import CallNameCorrector

GPT_OSS = ["functions.get_weather", "get_weather<|channel|>commentary", "functions.get_weather <|constrain|>json"]
"""Names with parts of the model's own format, as servers of it are known to send them."""


@pytest.mark.parametrize(
    "written", ["Get_Weather", "getWeather", "get-weather", "GET.WEATHER", "get weather", *GPT_OSS]
)
def test_another_spelling_means_the_declared_tool_with_a_warning(written: str) -> None:
    names = CallNameCorrector(["get_weather", "now"])
    assert names.correct(written) == names.correct(written) == "get_weather"
    assert names.warnings == [f"the model called {written!r}, which was taken for 'get_weather'"]


@pytest.mark.parametrize(
    ("written", "declared"),
    [
        ("get_weather", ["get_weather", "GetWeather"]),
        ("get-weather", ["get_weather", "GetWeather"]),
        ("weather", ["get_weather"]),
        ("", ["_"]),
        ("--", ["_"]),
        ("a" * 1000, ["A" * 1000]),
        ("now", []),
    ],
)
def test_a_declared_an_ambiguous_and_an_unknown_name_stay_as_they_are(written: str, declared: list[str]) -> None:
    names = CallNameCorrector(declared)
    assert names.correct(written) == written
    assert not names.warnings
