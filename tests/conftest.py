"""Fixtures for tests that need a running gateway."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.stage import Stage, on_stage

os.environ.setdefault("ENABLE_EMBEDDED_MODEL", "false")  # a server started by a test fetches no gigabyte
settings.register_profile("project", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("project")


@pytest.fixture(scope="session")
def stage_of_the_session() -> Iterator[Stage]:
    with on_stage() as stage:
        yield stage


@pytest.fixture
def stage(stage_of_the_session: Stage) -> Stage:
    """The gateway over the scripted upstreams, with no script on yet."""
    stage_of_the_session.play()
    return stage_of_the_session
