"""`toolgate check`: files, folders and templates that are not there, and warnings (spec: E2, fault: R2)."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.app.startup_helpers import print_banner
from toolgate.cli.commands import app
from toolgate.config import load

SHOP = """
openapi: 3.0.0
servers: [{url: "http://127.0.0.1:9/shop"}]
paths: {/items: {get: {operationId: list_items, summary: List the items}}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(text: str, **env: str) -> Result:
    Path("toolgate.yaml").write_text(text)
    return CliRunner().invoke(app, ["check"], env={"COLUMNS": "200", **env})


def mistakes(text: str, **env: str) -> list[str]:
    result = check(text, **env)
    assert result.exit_code == 2
    return [line.removeprefix("  - ") for line in result.stderr.splitlines()[1:]]


def test_files_and_folders_of_tools_that_are_not_there_are_mistakes_but_the_server_starts(folder: Path) -> None:
    text = """
tools:
  python: [./nothing, ./there, "./there/*.py", some.module, "~nobody.here/x.py"]
  mcp: {a: {command: [sh], cwd: ./gone}, b: {command: [sh], cwd: ./there}, c: {url: "https://example.org/mcp"}}
  http: {shop: {openapi: ./shop.yaml}, far: {openapi: "https://example.org/openapi.json"}}
"""
    (folder / "there").mkdir()
    assert mistakes(text) == [
        "tools.python[0]: ./nothing: there is no such file or folder",
        "tools.python[4]: ~nobody.here/x.py: there is no such file or folder",
        "tools.mcp.a.cwd: ./gone: there is no such folder",
        "tools.http.shop.openapi: ./shop.yaml: there is no such file",
    ]
    Toolgate(load(Path("toolgate.yaml"), {}))
    assert check(text, ENABLE_TOOLS="false").exit_code == 0


def test_a_mistake_in_the_storage_does_not_hide_a_service_that_may_not_be_reached(folder: Path) -> None:
    (folder / "shop.yaml").write_text(SHOP)
    found = mistakes("storage: mysql://h\ntools: {http: {shop: {openapi: ./shop.yaml}}}\n")
    assert [one.partition(":")[0] for one in found] == ["storage", "tools.http.shop"]


EMULATED = "upstream: builtin, model: echo, tools: emulated"


def test_a_missing_folder_of_templates_does_not_hide_other_mistakes_of_prompts() -> None:
    assert mistakes(
        f"text: {{templates: ./no, rules: [a.md]}}\nmodels: [{{name: m, {EMULATED}, prompts: nosuch}}]\n"
    ) == [
        "text.templates: ./no: there is no such folder",
        "text.rules[0]: a.md: No such file or directory",
        "models[0].prompts: nosuch.yaml: there is no such file of templates; there are full, lean, short",
    ]


def test_a_mistake_in_templates_that_all_variants_share_is_reported_once(folder: Path) -> None:
    (folder / "own").mkdir()
    (folder / "own" / "full.yaml").write_text("tols: x\n")
    (folder / "own" / "mine.yaml").write_text("sistem: x\n")
    models = [f"{{name: {name}, {EMULATED}, prompts: {name}}}" for name in ("full", "short", "mine")]
    assert mistakes(f"text: {{templates: own}}\nmodels: [{', '.join(models)}]\n") == [
        "text.templates: own/full.yaml:1: no template is called 'tols'; did you mean 'tools'?",
        "models[2].prompts: own/mine.yaml:1: no template is called 'sistem'; did you mean 'system'?",
    ]


def test_a_model_is_named_by_its_place_in_the_file_whatever_is_wrong_with_the_others() -> None:
    text = f"""
models:
  - {{name: local, upstream: builtin}}
  - {{name: a, upstream: nowhere, tools: emulated, syntax: nonsense}}
  - {{name: b, {EMULATED}, syntax: nonsense}}
"""
    paths = ["models[1].upstream", "models[1].syntax", "models[2].syntax"]
    for enabled in ("true", "false"):
        found = mistakes(text, ENABLE_EMBEDDED_MODEL=enabled)
        assert [one.partition(":")[0] for one in found] == paths
    valid = text.replace("nowhere", "builtin, model: echo")
    found = mistakes(valid, ENABLE_EMBEDDED_MODEL="false")
    assert [one.partition(":")[0] for one in found] == paths[1:]


def test_a_short_key_is_warned_of_by_check_and_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    text = "server: {host: 0.0.0.0}\nkeys: [{name: ann, key: short}]\n"
    warning = "Warning: the key ann has fewer than 16 characters, and 0.0.0.0 can be reached from other machines"
    checked = check(text)
    assert checked.exit_code == 0
    assert warning in checked.stderr
    print_banner("http://0.0.0.0:8080", load(Path("toolgate.yaml"), {}))
    assert warning in capsys.readouterr().err
    assert "Warning" not in check(text.replace("0.0.0.0", "127.0.0.1")).stderr
