"""`make conformance`: every client API over every upstream API with the official SDKs, counted and published.

`features.py` says what is tried, `clients.py` encodes it in the four APIs, `sdks.py` sends requests through the SDKs of
Python and Node, `suites.py` lists the further suites that are counted, and `report.py` writes docs/conformance.md.
Everything talks to a gateway on this machine whose upstreams are played by a script (`stage.py`).
"""

import pytest

pytest.register_assert_rewrite("tests.conformance.features")
