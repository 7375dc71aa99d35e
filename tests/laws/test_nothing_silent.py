"""Nothing silent (spec: Y10): every field of the SDKs' request types arrives, has its effect here, or is named in a warning.

The types of the installed SDKs are walked (`sdk_fields.py`), and each field is sent through the HTTP edge over all four
upstreams (`fields.py`), so that a new version of an SDK adds cases. The table in `docs/compatibility.md` is the same run.
"""

import re

import pytest

from tests.laws.fields import COMPATIBILITY, EQUIVALENT, SAYS_NOTHING, Outcomes, run, table


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    return run()


def test_no_field_of_any_sdk_is_lost_in_silence(outcomes: Outcomes) -> None:
    silent = [
        f"{path} {field} over {upstream}"
        for (path, field), found in outcomes.items()
        for upstream, outcome in found.items()
        if outcome == "silent"
    ]
    assert silent == []


def test_the_types_were_walked_to_their_leaves(outcomes: Outcomes) -> None:
    known = {
        "/v1/chat/completions messages[user].content[image_url].image_url.detail=low",
        "/v1/chat/completions messages[assistant].audio.id",
        "/v1/responses input[message].content[input_image].detail=high",
        "/v1/responses text.verbosity=low",
        "/v1/messages messages[user].content[document].citations.enabled",
        "/v1/messages tools[custom].input_examples",
        "/api/chat options.mirostat",
        "/api/generate suffix",
    }
    assert known - {" ".join(field) for field in outcomes} == set()
    assert len(outcomes) > 1000


def test_a_field_of_the_clients_own_api_arrives(outcomes: Outcomes) -> None:
    lost = [field for field, found in outcomes.items() if found[_OWN[field[0]]] in ("warning", "silent")]
    assert lost == []


_OWN = {
    "/v1/chat/completions": "openai_chat",
    "/v1/responses": "openai_responses",
    "/v1/messages": "anthropic",
    "/api/chat": "ollama",
    "/api/generate": "ollama",
}


def test_every_excuse_of_the_tables_is_needed(outcomes: Outcomes) -> None:
    """A pattern that excuses nothing would excuse the next loss."""
    cases: dict[str, list[str]] = {"mapped": [], "default": []}
    for (path, field), found in outcomes.items():
        for upstream, outcome in found.items():
            cases.setdefault(outcome, []).append(f"{_OWN[path]} {field} {upstream}")
    tables = {"mapped": EQUIVALENT, "default": SAYS_NOTHING}
    idle = [
        pattern
        for outcome, table in tables.items()
        for pattern in table
        if not any(re.fullmatch(pattern, case) for case in cases[outcome])
    ]
    assert idle == []


def test_the_table_of_fields_in_the_documentation_is_current(outcomes: Outcomes) -> None:
    assert table(outcomes) in COMPATIBILITY.read_text(), "run `python -m tests.laws.fields --write`"
