"""Fixtures for tests that need a running gateway or a database."""

import gc
import os
import ssl
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from tempfile import gettempdir

import pytest
from httpx._transports import default as httpx_transport
from httpx2._transports import default as httpx2_transport
from hypothesis import settings

from tests.databases import ENGINES, Postgres, running_postgres, storage_of
from tests.stage import Stage, on_stage

os.environ.setdefault("ENABLE_EMBEDDED_MODEL", "false")  # a server started by a test fetches no gigabyte
os.environ["TOOLGATE_BRIDGE_TOKEN_FILE"] = str(Path(gettempdir()) / f"toolgate-tests-{os.getuid()}" / "bridge.token")
settings.register_profile("project", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("project")

PATIENT = ("runs", "chaos", "races", "soak", "workers")
"""Folders whose tests wait for processes, crashes and leases: begun first, they wait while others compute."""
LONG = ("laws/test_loop.py", "text_tools/test_laws.py", "upstreams/local/test_model.py")
"""Files that take longest: each is run by one process, and the others must not wait for it in the end."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect with the garbage collector off, and keep what was collected out of its sight: it all lives to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent

    def place(item: pytest.Item) -> bool:
        path = item.path.relative_to(here)
        return path.parts[0] not in PATIENT and path.as_posix() not in LONG

    items.sort(key=place)


@pytest.fixture(scope="session", autouse=True)
def shared_tls_context() -> Iterator[None]:
    """Read the trusted certificates once and not for each HTTP client, which takes 25 ms of CPU and none connects by TLS."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (httpx_transport, httpx2_transport):
            patch.setattr(module, "create_ssl_context", _with_one_default(module.create_ssl_context))
        yield


def _with_one_default(create: Callable[..., ssl.SSLContext]) -> Callable[..., ssl.SSLContext]:
    default = cache(create)

    def create_ssl_context(verify: object = True, cert: object = None, trust_env: bool = True) -> ssl.SSLContext:
        shared = verify is True and cert is None
        return default(trust_env=trust_env) if shared else create(verify=verify, cert=cert, trust_env=trust_env)

    return create_ssl_context


@pytest.fixture(scope="session")
def stage_of_the_session() -> Iterator[Stage]:
    with on_stage() as stage:
        yield stage


@pytest.fixture
def stage(stage_of_the_session: Stage) -> Stage:
    """The gateway over the scripted upstreams, with no script on yet."""
    stage_of_the_session.play()
    return stage_of_the_session


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real PostgreSQL, one for all tests of a process."""
    with running_postgres() as server:
        yield server


@pytest.fixture(params=ENGINES)
def storage_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty storage, once with each engine."""
    with storage_of(request.param, tmp_path, lambda: request.getfixturevalue("postgres")) as url:
        yield url
