"""The servers that race, once for each engine: over PostgreSQL with a Redis, over SQLite without the one they look for."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.app.nodes import running_redis
from tests.databases import ENGINES, storage_of
from tests.races.pair import Pair, running_pair

NOBODY = "redis://127.0.0.1:1"


@pytest.fixture(scope="package", params=ENGINES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two servers over one storage of each engine, until the last of these tests."""
    folder, redis = tmp_path_factory.mktemp("pair"), NOBODY
    with ExitStack() as stack:
        storage = stack.enter_context(storage_of(request.param, folder, lambda: request.getfixturevalue("postgres")))
        if request.param == "postgresql":
            redis = stack.enter_context(running_redis(tmp_path_factory.mktemp("redis"))).url
        yield stack.enter_context(running_pair(folder, storage, redis))
