"""Fixtures for tests of commands."""

from collections.abc import Iterator

import pytest

from tests.ports import free_port, refusing_port


@pytest.fixture
def closed_port() -> Iterator[int]:
    with refusing_port() as port:
        yield port


@pytest.fixture
def unused_port() -> int:
    return free_port()
