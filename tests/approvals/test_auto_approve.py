"""URLs and commands approved beforehand, and all that merely looks like them (fault: A6)."""

from decimal import Decimal
from typing import Any

import pytest

from toolgate.approvals.auto_approve import command_pattern, commands_match, url_pattern, urls_match

GOOD = "https://good.io"


@pytest.mark.parametrize(
    ("pattern", "url"),
    [
        (GOOD, "https://good.io"),
        (GOOD, "https://good.io/"),
        (GOOD, "HTTPS://GOOD.io/a/b?q=1&r=%20x#frag"),
        (GOOD, "https://good.io:443/x"),
        ("good.io", "https://good.io/x"),
        ("GOOD.io/*", "https://good.io/x"),
        ("http://good.io:8080", "http://good.io:8080/x"),
        ("https://good.io/docs", "https://good.io/docs"),
        ("https://good.io/docs", "https://good.io/docs/a?b=/../c"),
        ("https://good.io/docs/*", "https://good.io/docs/a"),
        ("*.good.io", "https://a.b.good.io/"),
        ("xn--bcher-kva.example", "https://xn--bcher-kva.example/"),
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000/x"),
    ],
)
def test_a_pattern_means_its_host_and_what_is_below_its_path(pattern: str, url: str) -> None:
    assert url_pattern(pattern).matches(url)


@pytest.mark.parametrize(
    ("pattern", "url"),
    [
        (GOOD, "https://good.io.evil.com/"),
        (GOOD, "https://evilgood.io/"),
        (GOOD, "https://sub.good.io/"),
        (GOOD, "https://good.io@evil.com/"),
        (GOOD, "https://good.io:443@evil.com/"),
        (GOOD, "https://user:pass@good.io/"),
        (GOOD, "https://evil.com/good.io"),
        (GOOD, "https://evil.com?https://good.io/"),
        (GOOD, "https://evil.com#@good.io/"),
        (GOOD, "https://good.io#@evil.com/"),
        (GOOD, "https://good.io?@evil.com/"),
        (GOOD, "https://good.io\\@evil.com/"),
        (GOOD, "https://evil.com\\@good.io/"),
        (GOOD, "https:\\\\good.io/"),
        (GOOD, "https:/good.io/"),
        (GOOD, "https:good.io"),
        (GOOD, "//good.io/"),
        (GOOD, "good.io"),
        (GOOD, "https://good.io./"),
        (GOOD, "https://good.io:/"),
        (GOOD, "https://good.io:8443/"),
        (GOOD, "https://good.io:99999999/"),
        (GOOD, "http://good.io/"),
        (GOOD, "ftp://good.io/"),
        (GOOD, "javascript://good.io/%0aalert(1)"),
        (GOOD, " https://good.io/"),
        (GOOD, "https://good.io/\n"),
        (GOOD, "https://good.io\n.evil.com/"),
        (GOOD, "https://good.io\t/"),
        (GOOD, "https://good.io\u3002evil.com/"),
        (GOOD, "https://good\u3002io/"),
        (GOOD, "https://go\u200bod.io/"),
        (GOOD, "https://g\u043e\u043ed.io/"),
        (GOOD, "https://xn--gd-nmca.io/"),
        (GOOD, "https://%67ood.io/"),
        (GOOD, "https://good%2eio/"),
        (GOOD, "https://[good.io]/"),
        (GOOD, "https://good.io/../x"),
        (GOOD, ""),
        ("https://kiss.io", "https://\u212aiss.io/"),
        ("https://kiss.io", "https://ki\u017f\u017f.io/"),
        ("*.good.io", "https://good.io/"),
        ("*.good.io", "https://evilgood.io/"),
        ("*.good.io", "https://a.good.io.evil.com/"),
        ("*.good.io", "https://xn--pypal-4ve.good.io/"),
        ("http://127.0.0.1", "http://2130706433/"),
        ("http://127.0.0.1", "http://0x7f.1/"),
        ("https://good.io/docs", "https://good.io/docsecret"),
        ("https://good.io/docs", "https://good.io/Docs"),
        ("https://good.io/docs", "https://good.io/docs/../admin"),
        ("https://good.io/docs", "https://good.io/docs/.."),
        ("https://good.io/docs", "https://good.io/docs/%2e%2e/admin"),
        ("https://good.io/docs", "https://good.io/docs%2f..%2fadmin"),
        ("https://good.io/docs", "https://good.io/docs/%252e%252e/admin"),
        ("https://good.io/docs", "https://good.io//evil.com/docs"),
    ],
)
def test_what_is_not_surely_meant_matches_nothing(pattern: str, url: str) -> None:
    assert not url_pattern(pattern).matches(url)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "*",
        "*.io",
        "https://",
        "https://*",
        "https://good.io*",
        "https://u@good.io",
        "https://good.*/",
        "ftp://good.io",
    ],
)
def test_a_pattern_that_cannot_be_read_or_means_too_much_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"pattern|top-level"):
        url_pattern(text)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ({"url": "https://good.io/a"}, True),
        ({"urls": ["https://good.io/a", "https://good.io/b"], "limit": 3}, True),
        ({"url": "https://good.io/a", "note": "a colon: fine"}, True),
        ({"urls": ["https://good.io/a", "https://evil.com"]}, False),
        ({"urls": []}, False),
        ({"url": 1}, False),
        ({"url": ["https://good.io", None]}, False),
        ({"url": {"href": "https://good.io"}}, False),
        ({"query": "https://good.io"}, False),
        ({"url": "https://good.io/a", "proxy": "http://evil.com"}, False),
        ({"url": "https://good.io/a", "headers": {"referer": ["//evil.com"]}}, False),
        ({"url": "https://good.io/a", "https://evil.com": 1}, False),
    ],
)
def test_every_url_of_a_call_must_be_meant(arguments: dict[str, Any], meant: bool) -> None:
    assert urls_match([url_pattern(GOOD)], arguments) is meant


STATUS = [command_pattern(["git", "status"]), command_pattern(["ls"])]


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ({"command": ["git", "status"]}, True),
        ({"argv": ["git", "status", "--short", "src/a.py"], "timeout": 3}, True),
        ({"cmd": ["ls"], "limit": Decimal("1.5"), "cwd": None}, True),
        ({"command": "git status"}, False),
        ({"command": "git status; rm -rf /"}, False),
        ({"command": []}, False),
        ({"command": ["git"]}, False),
        ({"command": ["git", "push"]}, False),
        ({"command": ["git", "-c", "alias.status=!sh", "status"]}, False),
        ({"command": ["git status"]}, False),
        ({"command": ["./git", "status"]}, False),
        ({"command": ["GIT", "status"]}, False),
        ({"command": ["FOO=1", "git", "status"]}, False),
        ({"command": ["env", "FOO=1", "git", "status"]}, False),
        ({"command": ["export", "FOO=1", "&&", "git", "status"]}, False),
        ({"command": ["git", "status", ";", "rm"]}, False),
        ({"command": ["git", "status", "$(rm)"]}, False),
        ({"command": ["git", "status", "`rm`"]}, False),
        ({"command": ["git", "status", "a\nrm -rf /"]}, False),
        ({"command": ["git", "status", "a\n"]}, False),
        ({"command": ["git", "status", "&"]}, False),
        ({"command": ["git", "status", "|", "sh"]}, False),
        ({"command": ["git", "status", ">", "/etc/passwd"]}, False),
        ({"command": ["git", "status", "%PATH%"]}, False),
        ({"command": ["git", "status", ""]}, False),
        ({"command": ["git", "status", 1]}, False),
        ({"command": ["git", "status"], "shell": True}, False),
        ({"command": ["git", "status"], "env": {"GIT_PAGER": "sh"}}, False),
        ({"command": ["git", "status"], "cwd": "/evil"}, False),
        ({"command": ["git", "status"], "argv": ["rm"]}, False),
        ({"path": ["git", "status"]}, False),
    ],
)
def test_a_command_is_a_list_that_begins_with_the_words_of_a_pattern(arguments: dict[str, Any], meant: bool) -> None:
    assert commands_match(STATUS, arguments) is meant


@pytest.mark.parametrize(
    "words",
    [
        [],
        [""],
        ["git status"],
        ["git", ";"],
        ["sh"],
        ["/bin/bash", "-c"],
        ["sudo", "ls"],
        ["env"],
        ["PowerShell.exe"],
        ["A=1", "ls"],
    ],
)
def test_a_command_pattern_that_would_let_anything_run_is_refused(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"pattern|runs whatever"):
        command_pattern(words)


def test_long_text_is_read_in_linear_time() -> None:
    long = "a" * 2_000_000
    assert not urls_match([url_pattern(GOOD)], {"url": "https://" + "a." * 200_000, "x": long})
    assert not urls_match([url_pattern(GOOD)], {"url": f"https://good.io{long}"})
