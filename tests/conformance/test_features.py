"""Every cell of the matrix, streamed and whole."""

import pytest

from tests.conformance.features import CELLS, FEATURES, Cell, Scene
from tests.stage import Stage

TRIED = [
    pytest.param(cell, stream, id=f"{cell.id}-{'streamed' if stream else 'whole'}")
    for cell in CELLS
    if cell.reason is None
    for stream in FEATURES[cell.feature].ways
]


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")  # the SDK's own
@pytest.mark.parametrize(("cell", "stream"), TRIED)
def test_a_feature(whole_stage: Stage, cell: Cell, stream: bool, request: pytest.FixtureRequest) -> None:
    sdk = request.getfixturevalue("python_sdk" if cell.language == "python" else "node_client")
    FEATURES[cell.feature].run(Scene(whole_stage, sdk, cell.client, cell.upstream, stream))
