"""The extension for VS Code: types, lint, its own tests under node, and its package (spec: V1, V2, V4)."""

import asyncio
import ssl
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme

from tests.node import npm_ci, run_node
from tests.stage import MEMORY, QUIET, in_a_thread, served
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import Config, Secret, ServerSettings
from toolgate.config.settings import KeySettings

EXTENSION = Path(__file__).parents[2] / "editors" / "vscode"
PACKAGED = {
    "[Content_Types].xml",
    "extension.vsixmanifest",
    "extension/LICENSE.txt",
    "extension/changelog.md",
    "extension/dist/extension.js",
    "extension/media/icon.png",
    "extension/media/toolgate.svg",
    "extension/package.json",
    "extension/readme.md",
    *(f"extension/walkthrough/{name}.md" for name in ("ask", "chat", "gateway", "lend", "tools")),
}

NODE_MODULES = ("child_process", "crypto", "fs/promises", "os", "path")


@pytest.fixture(scope="module")
def modules() -> Path:
    """The development tools of the extension; it has no other dependencies."""
    return npm_ci(EXTENSION)


def test_the_sources_have_no_type_errors(modules: Path) -> None:
    run_node(modules / "typescript" / "bin" / "tsc", "--noEmit", cwd=EXTENSION)


def test_the_sources_pass_the_linter(modules: Path) -> None:
    run_node(modules / "eslint" / "bin" / "eslint.js", "--max-warnings", "0", ".", cwd=EXTENSION)


def test_the_extension_passes_its_own_tests_under_node(modules: Path) -> None:
    assert modules.exists()
    files = sorted(path.relative_to(EXTENSION) for path in (EXTENSION / "test").glob("*.test.ts"))
    assert files
    run_node("--import", "./test/register.mjs", "--test", "--test-reporter=dot", *files, cwd=EXTENSION)


def test_the_extension_works_with_the_real_gateway(modules: Path) -> None:
    assert modules.exists()
    with served(Toolgate(Config(server=ServerSettings(port=0), storage=MEMORY, log=QUIET))) as url:
        test = ("--import", "./test/register.mjs", "--test", "--test-reporter=tap", "test/real/gateway.test.ts")
        run_node(*test, cwd=EXTENSION, env={"TOOLGATE_TEST_URL": url})


def test_the_extension_joins_a_gateway_by_a_key(modules: Path) -> None:
    assert modules.exists()
    key = KeySettings(name="editor", key=Secret("tg-editor"), scopes=("chat", "tools", "bridge"))
    config = Config(server=ServerSettings(port=0), storage=MEMORY, log=QUIET, keys=(key,))
    with served(Toolgate(config)) as url:
        test = ("--import", "./test/register.mjs", "--test", "--test-reporter=tap", "test/real/key.test.ts")
        run_node(*test, cwd=EXTENSION, env={"TOOLGATE_TEST_URL": url, "TOOLGATE_TEST_KEY": "tg-editor"})


def test_the_extension_joins_a_gateway_behind_tls_by_a_key(modules: Path, tmp_path: Path) -> None:
    """As on another machine: `wss`, a certificate that the editor trusts, and a key with no other scope than `bridge`."""
    assert modules.exists()
    authority, trusted = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(trusted))
    keys = (
        KeySettings(name="laptop", key=Secret("tg-laptop"), scopes=("bridge",)),
        KeySettings(name="client", key=Secret("tg-client"), scopes=("chat",)),
    )
    config = Config(server=ServerSettings(port=0), storage=MEMORY, log=QUIET, keys=keys)
    with served(Toolgate(config)) as url, in_a_thread(tls_proxy(url, authority)) as secure:
        test = ("--import", "./test/register.mjs", "--test", "--test-reporter=tap", "test/real/tls.test.ts")
        env = {"TOOLGATE_TEST_URL": secure, "TOOLGATE_TEST_KEY": "tg-laptop", "TOOLGATE_TEST_CLIENT_KEY": "tg-client"}
        run_node(*test, cwd=EXTENSION, env={**env, "NODE_EXTRA_CA_CERTS": str(trusted)})
        with pytest.raises(AssertionError, match="No gateway answers"):
            run_node(*test, cwd=EXTENSION, env=env)  # without the certificate


@asynccontextmanager
async def tls_proxy(url: str, authority: trustme.CA) -> AsyncIterator[str]:
    """Ends TLS and passes bytes on, as a proxy before the gateway does; its URL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    target = urlsplit(url)

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                sink.write(data)
                await sink.drain()
        sink.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward = await asyncio.open_connection(target.hostname, target.port)
        await asyncio.gather(copy(reader, onward[1]), copy(onward[0], writer))

    server = await asyncio.start_server(serve, "localhost", 0, ssl=context)
    async with server:
        yield f"https://localhost:{server.sockets[0].getsockname()[1]}"


def test_the_package_contains_what_it_must_and_nothing_else(modules: Path, tmp_path: Path) -> None:
    package = tmp_path / "toolgate.vsix"
    run_node("build.mjs", cwd=EXTENSION)
    options = ("--no-dependencies", "--allow-missing-repository", "--out", package)
    run_node(modules / "@vscode" / "vsce" / "vsce", "package", *options, cwd=EXTENSION)
    with zipfile.ZipFile(package) as archive:
        assert set(archive.namelist()) == PACKAGED
        bundle = archive.read("extension/dist/extension.js").decode()
    assert "sourceMappingURL" not in bundle
    assert set(_required(bundle)) == {"vscode", *(f"node:{name}" for name in NODE_MODULES)}


def _required(bundle: str) -> list[str]:
    return [part.split('"', 1)[0] for part in bundle.split('require("')[1:]]
