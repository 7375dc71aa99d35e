"""The items of a response can be read page by page, also by a server that was started anew (spec: D1)."""

from pathlib import Path
from typing import Any, Literal

import pytest
from openai import OpenAI

from tests.api.records.record_server import RecordServer, record_server
from toolgate.config import Secret


def client_of(kept: RecordServer) -> OpenAI:
    return OpenAI(base_url=f"{kept.url}/v1", api_key="ann-key", max_retries=0)


def texts(items: Any) -> list[str]:
    return ["".join([part.text for part in item.content]) for item in items]


@pytest.fixture
def storage(tmp_path: Path) -> Secret:
    return Secret(f"sqlite:///{tmp_path}/toolgate.db")


@pytest.fixture
def made(storage: Secret) -> list[str]:
    """Three responses, each of which continues the one before."""
    ids: list[str] = []
    with record_server(storage=storage) as kept, client_of(kept) as client:
        kept.play("A", "B", "C")
        for question in ("1", "2", "3"):
            previous: Any = {"previous_response_id": ids[-1]} if ids else {}
            ids.append(client.responses.create(model="openai_chat", input=question, **previous).id)
    return ids


@pytest.mark.parametrize("limit", [1, 2, 100])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_input_items_are_the_same_after_a_restart(
    storage: Secret, made: list[str], order: Literal["asc", "desc"], limit: int
) -> None:
    with record_server(storage=storage) as kept, client_of(kept) as client:
        items = list(client.responses.input_items.list(made[-1], order=order, limit=limit))
        assert texts(items) == ["1", "A", "2", "B", "3"][:: 1 if order == "asc" else -1]
        assert len({item.id for item in items}) == 5
        again = list(client.responses.input_items.list(made[-1], order=order))
        assert [item.id for item in again] == [item.id for item in items]
        first = client.responses.retrieve(made[0])
        assert first.output_text == "A"


def test_a_response_whose_past_was_deleted_still_has_its_own_items(storage: Secret, made: list[str]) -> None:
    with record_server(storage=storage) as kept, client_of(kept) as client:
        client.responses.delete(made[0])
        assert texts(client.responses.input_items.list(made[-1])) == ["3"]
