"""What LangChain's clients need of the tests around them."""

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def clients_that_nobody_closes() -> Iterator[None]:
    """LangChain leaves connections to the garbage collector: collect them here, where that is no news."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()
