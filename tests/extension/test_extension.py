"""The extension for VS Code: types, lint, its own tests under node, and its package (spec: V1, V2, V4)."""

import zipfile
from pathlib import Path

import pytest

from tests.node import npm_ci, run_node
from tests.stage import MEMORY, QUIET, served
from toolgate.app.asgi_app import Toolgate
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
