"""The heavy part of this folder runs under `make conformance` alone; the default suite checks the page that it wrote."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.sdks import SDK, PythonSDK, node_sdk
from tests.conformance.stage import conformance_stage
from tests.stage import Stage

HEAVY = ["test_features.py", "test_examples.py", "test_open_responses.py"]
collect_ignore = [] if os.environ.get("TOOLGATE_CONFORMANCE") else HEAVY


@pytest.fixture(scope="session")
def whole_stage() -> Iterator[Stage]:
    with conformance_stage() as stage:
        yield stage


@pytest.fixture(scope="session")
def python_sdk(whole_stage: Stage) -> Iterator[SDK]:
    sdk = PythonSDK(whole_stage.url)
    yield sdk
    sdk.close()


@pytest.fixture(scope="session")
def node_client(whole_stage: Stage) -> Iterator[SDK]:
    node = os.environ.get("TOOLGATE_NODE")
    if not node:
        pytest.skip("Node is not installed")
    with node_sdk(whole_stage.url, node, Path(os.environ["TOOLGATE_NODE_MODULES"])) as sdk:
        yield sdk
