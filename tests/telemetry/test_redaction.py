"""Secrets are removed from texts that are logged or shown (E6, fault: O1, T4)."""

import json

import pytest

from toolgate.telemetry.redaction import _SLICE, Redactor, hint, outline

KNOWN = "a-secret-of-no-known-shape-42"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("Incorrect API key provided: sk-proj-abcdefghijklmnop1234.", "Incorrect API key provided: sk-…1234."),
        ("key sk-abcdefgh12345678 is bad", "key sk-…5678 is bad"),
        ("sk-ant-api03-abcdefgh12345678-AA", "sk-…8-AA"),
        ("gsk_abcdefgh12345678 xai-abcdefgh12345678", "gsk_…5678 xai-…5678"),
        ("ghp_abcdefghijklmnop1234", "ghp_…1234"),
        ("github_pat_abcdefghijklmnop1234", "github_pat_…1234"),
        ("AIzaSyA1234567890abcdefghij", "AIza…ghij"),
        ("Authorization: Bearer abc.def-ghi_1234567890", "Authorization: Bearer …7890"),
        ("authorization=Basic dXNlcjpwYXNzd29yZDEyMzQ=", "authorization=Basic …MzQ="),
        ("sent Bearer shorty", "sent Bearer …"),
        ("https://h/v1?api_key=abcdefghijklmnopqrst&x=1", "https://h/v1?api_key=…qrst&x=1"),
        ("https://h/v1?key=abcdefghijklmnopqrst", "https://h/v1?key=…qrst"),
        ('{"api_key": "abcdefghijklmnopqrst"}', '{"api_key": "…qrst"}'),
        ('{\\"access_token\\":\\"abcdefghijklmnopqrst\\"}', '{\\"access_token\\":\\"…qrst\\"}'),
        ("x-api-key: abcdefghijklmnopqrst", "x-api-key: …qrst"),
        ("password=hunter2 next", "password=… next"),
        ("postgresql://user:p4ssw0rd-very-long-1@db:5432/x", "postgresql://user:…ng-1@db:5432/x"),
        ("redis://:pw@h", "redis://:…@h"),
        ("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "token eyJ…dXJl"),
        (f"it said {KNOWN} twice: {KNOWN}", "it said …e-42 twice: …e-42"),
    ],
)
def test_only_the_end_of_a_secret_is_left(text: str, redacted: str) -> None:
    redact = Redactor([KNOWN])
    assert redact(text) == redacted
    assert redact(redact(text)) == redacted


@pytest.mark.parametrize(
    "text",
    [
        *("", "plain words", "gpt-5-mini-2025-08-07", "call_abcdefghijklmnop12345678", "/v1/chat/completions"),
        *("max_completion_tokens is not supported by the upstream", "the model 'tg' does not exist", "99 tokens left"),
        *("tool_choice must be none, auto or required.", "http://127.0.0.1:11434/api/chat", "task-based"),
        *("The upstream's answer holds no choices.", "keys[0].models", "Qwen/Qwen3-8B", "risk-free-of-any-harm"),
    ],
)
def test_a_text_without_secrets_is_unchanged(text: str) -> None:
    assert Redactor([KNOWN])(text) == text


def test_known_secrets_inside_one_another_are_all_found() -> None:
    redact = Redactor(["abcdefghij", "abcdefghijklmnopqrstuvwxyz"])
    assert redact("abcdefghijklmnopqrstuvwxyz abcdefghij") == "…wxyz …"


def test_a_configured_secret_that_is_too_short_is_ignored() -> None:
    assert Redactor(["k", "", "none"])("a key of none") == "a key of none"


def test_a_short_secret_shows_nothing_of_itself() -> None:
    assert (hint("short"), hint("0123456789abcdef")) == ("…", "…cdef")


@pytest.mark.parametrize("place", range(_SLICE - 60, _SLICE + 4, 3))
@pytest.mark.parametrize(
    "secret",
    [
        "Authorization: Bearer abc.def-ghi_1234567890",
        '{"api_key": "abcdefghijklmnopqrst"}',
        "redis://user:p4ssw0rd-very-long-1@h",
        "token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    ],
)
def test_a_secret_is_found_wherever_it_lies_in_a_long_text(secret: str, place: int) -> None:
    redact = Redactor()
    before, after = "x " * (place // 2), " y" * _SLICE
    assert redact(f"{before}{secret}{after}") == f"{before}{redact(secret)}{after}"


def test_a_secret_longer_than_one_search_is_found_whole() -> None:
    for length in (_SLICE - 5, _SLICE, 3 * _SLICE, 5 * _SLICE + 1):
        assert Redactor()(f"a password={'p' * length}1234 b") == "a password=…1234 b"


class TestOutline:
    def test_an_outline_has_names_and_types(self) -> None:
        shape = outline('{"city": "Paris", "n": 3, "deep": {"ok": true, "none": null}, "list": [1, 2]}')
        assert json.loads(shape) == {
            "city": "<5 characters>",
            "n": "<number>",
            "deep": {"ok": "<flag>", "none": "<null>"},
            "list": "<list of 2>",
        }

    @pytest.mark.parametrize("text", ["", "{", "canary", '{"a": canary}'])
    def test_an_outline_of_invalid_json_has_its_length(self, text: str) -> None:
        assert outline(text) == f"<{len(text)} characters>"

    def test_an_outline_has_no_values(self) -> None:
        deep = '{"a": {"b": {"c": {"d": {"e": "canary"}}}}}'
        for text in ('{"x": "canary"}', '["canary"]', '"canary"', deep):
            assert "canary" not in outline(text)

    def test_long_arguments_are_described_by_their_length_alone(self) -> None:
        long = '{"text": "' + "x" * 20_000 + '"}'
        assert outline(long) == f"<{len(long)} characters>"

    def test_an_outline_is_short_however_many_arguments_there_are(self) -> None:
        many = json.dumps({f"name{number}" * 20: number for number in range(1000)})
        assert len(outline(many)) <= 1024
