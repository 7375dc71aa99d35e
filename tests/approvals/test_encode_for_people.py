"""Approvals are shown to people without anything hidden or disguised (fault: A3)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.approvals.builders import call, open_service, tool
from toolgate.approvals import encode_for_people as showing
from toolgate.approvals.encode_for_people import ascii_name, escape_deceptive, one_line, shown_arguments
from toolgate.tools.tool import CallPreview

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain text, 1 < 2 & <b>", "plain text, 1 < 2 & <b>"),
        ("Größe, naïve, 日本語, привет, Ωmega?", "Größe, naïve, 日本語, привет, \\u03a9mega?"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("a\u200bb\u200d\ufeff", "a\\u200bb\\u200d\\ufeff"),
        ("\x1b[2J\x1b[1;1Hfine\x07", "\\u001b[2J\\u001b[1;1Hfine\\u0007"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("a\u2028b\u00a0c\u3000", "a\\u2028b\\u00a0c\\u3000"),
        ("\U000e0041\U000e0042", "\\udb40\\udc41\\udb40\\udc42"),
        ("x\ufe0f\u3164\u2800\u034f", "x\\ufe0f\\u3164\\u2800\\u034f"),
        ("p\u0430ypal", "p\\u0430ypal"),
        ("ｇｏｏｄ 𝐠𝐨𝐨𝐝", "\\uff47\\uff4f\\uff4f\\uff44 \\ud835\\udc20\\ud835\\udc28\\ud835\\udc28\\ud835\\udc1d"),
        ("\x7f\x85", "\\u007f\\u0085"),
        ("\ud800", "\\ud800"),
    ],
)
def test_characters_that_deceive_are_written_out(text: str, seen: str) -> None:
    assert escape_deceptive(text) == seen


def test_letters_after_an_escape_are_no_mixed_word() -> None:
    assert shown_arguments('{"a":"\\nпривет"}') == '{"a":"\\nпривет"}'


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_arguments_stay_json_with_the_same_meaning_whole_and_on_one_line(value: dict[str, Any]) -> None:
    seen = shown_arguments(json.dumps(value, indent=3))
    assert json.loads(seen) == value
    assert seen.isprintable()


def test_nothing_is_cut_from_arguments_however_long() -> None:
    value = {"first": "harmless", "padding": "\n" * 10_000 + " " * 10_000, "z": "rm -rf /"}
    seen = shown_arguments(json.dumps(value))
    assert seen.endswith('"z":"rm -rf /"}')
    assert json.loads(seen) == value
    assert "\n" not in seen


def test_numbers_are_shown_as_they_were_written() -> None:
    assert shown_arguments('{"b": 1.10, "a": 12345678901234567890123, "c": 1e400}') == (
        '{"a":12345678901234567890123,"b":1.10,"c":1E+400}'
    )


def test_a_name_is_ascii_and_so_looks_like_no_other() -> None:
    assert ascii_name("delete_fil\u0435") == "delete_fil\\u0435"
    assert ascii_name("дом") == "\\u0434\\u043e\\u043c"
    assert ascii_name(None) is None


def test_a_title_cannot_pretend_to_be_escaped_and_notes_what_is_left_out() -> None:
    assert one_line("a\\u202eb\u202e") == "a\\\\u202eb\\u202e"
    long = one_line("x" * 5000)
    assert long is not None
    assert long.endswith("x … (1000 more characters)")
    assert one_line(None) is None


async def test_an_approver_sees_digest_origin_definition_and_taint() -> None:
    """(fault: A3, T10)"""
    spec = tool("files__delete", source="mcp/fi\u200bles", origin="delete")
    asked = call(
        spec,
        {"b": "\u202e", "a": 1},
        preparation=CallPreview("Deleting", "Delete\u202e?", "Really\nreally?"),
        tainted=True,
    )
    async with open_service() as service:
        await service.decide(asked)
        [pending] = await service.pending()
        seen = showing.approval_json(pending)
        await service.answer(pending.id, True, by="ann", level="session", arguments='{"a":\n2}', reason="ok\x1b")
        after = showing.approval_json(await service.find(pending.id, by="ann"))
        [grant] = [showing.grant_json(grant) for grant in await service.grants()]
    assert (seen["tool"], seen["source"], seen["origin"]) == ("files__delete", "mcp/fi\\u200bles", "delete")
    assert seen["arguments"] == '{"a":1,"b":"\\u202e"}'
    assert (seen["title"], seen["question"], seen["message"]) == ("Delete\\u202e?", "Really\\nreally?", "Deleting")
    assert seen["tainted"] is True
    assert seen["digest"] == pending.digest
    assert (seen["state"], seen["level"], seen["edited_arguments"]) == ("pending", None, None)
    assert (after["state"], after["level"], after["edited_arguments"]) == ("approved", "session", '{"a":2}')
    assert (after["reason"], after["answered_by"]) == ("ok\\u001b", "ann")
    assert (grant["tool"], grant["level"], grant["place"]) == ("files__delete", "session", "s1")
