"""docs/configuration.md names every setting, and none that does not exist (spec: E3)."""

import ast
import builtins
import inspect
import io
import re
from pathlib import Path

import pytest

from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.cli import requests, runs
from toolgate.cli.chat.approval_dialog import ApprovalDialog
from toolgate.cli.chat.command import chat
from toolgate.cli.chat.conversation import ConversationClient
from toolgate.cli.chat.slash_commands import SlashCommands
from toolgate.cli.chat.state_files import ChatStateFiles
from toolgate.cli.chat.transcript import MarkdownTranscript
from toolgate.cli.chat.turn import ChatSession
from toolgate.cli.chat.view import AnswerView
from toolgate.cli.keys import SCOPES
from toolgate.config import Config, Secret, load
from toolgate.config.reference import QUIRKS, renewed, settings
from toolgate.dialects.dialect import Quirks
from toolgate.upstreams.catalog import catalog

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"
TEXT = PAGE.read_text("utf-8")
SETTINGS = list(settings())
EXAMPLES = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
ENV = {row.key: "a-key" for row in catalog().rows.values() if row.key} | {"TOOLGATE_KEY": "k", "MY_KEY": "k"}


def test_the_reference_equals_the_tables() -> None:
    assert renewed(TEXT) == TEXT, "run `python -m toolgate.config.reference docs/configuration.md`"


def test_every_setting_has_help_that_is_a_sentence() -> None:
    assert [one.path for one in SETTINGS if not re.fullmatch(r"[A-Z`].*[.…]", one.help)] == []


def test_every_quirk_is_explained_and_nothing_else_is() -> None:
    assert set(QUIRKS) == set(Quirks.__struct_fields__)


def test_every_setting_that_the_text_names_exists() -> None:
    known = {one.path for one in SETTINGS}
    words = {part for path in known for part in re.split(r"[.\[\]<>]+", path) if part}
    sections = {path.split(".")[0] for path in known}
    prose = re.sub(r"```.*?```|<!-- (\w+) -->.*?<!-- /\1 -->", "", TEXT, flags=re.DOTALL)
    for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)*)`", prose):
        first, _, rest = name.partition(".")
        if rest and first in sections:
            assert name in known, f"{name} is not a setting"
        elif "_" in name:
            assert name in words, f"{name} is not a setting"


@pytest.mark.parametrize("text", EXAMPLES, ids=range(len(EXAMPLES)))
def test_every_example_can_be_used(tmp_path: Path, text: str) -> None:
    path = tmp_path / "toolgate.yaml"
    path.write_text(text)
    assert load(path, ENV).source == path


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3
    assert len(SETTINGS) > 80


def test_the_distribution_has_a_name_that_is_ours() -> None:
    """`toolgate` on PyPI is somebody else's: an instruction to install it would bring a stranger's package."""
    root = PAGE.parent.parent
    pages = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("src/**/*.py")]
    assert len(pages) > 100
    named = re.compile(r"pip install[^\n`]*\btoolgate(?!-server|_server)\b(?!/)")
    assert [str(page) for page in pages if named.search(page.read_text("utf-8"))] == []


DOCS = sorted([*(PAGE.parent).glob("*.md"), *PAGE.parent.parent.glob("*.md")])
OLDER = ("CHANGELOG", "CONTRIBUTING", "architecture", "conformance", "performance")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_every_link_leads_to_a_page_and_a_heading(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", _FENCE.sub("", page.read_text("utf-8"))):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        assert found.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(found), f"{page.name} links to {target}"


def test_every_path_of_the_repository_that_a_page_or_a_script_names_exists() -> None:
    root = PAGE.parent.parent
    scripts = [*(root / "scripts").iterdir(), root / "Makefile", root / ".ci" / "run"]
    for file in [*[page for page in DOCS if page.stem != "CHANGELOG"], *filter(Path.is_file, scripts)]:
        for path in re.findall(
            r"(?<![\w./])((?:tests|scripts|bench|src/toolgate)/[\w./-]*\w)", file.read_text("utf-8")
        ):
            assert (root / path).exists() or "node_modules" in path, f"{file.name} names {path}"


def test_the_index_names_every_page() -> None:
    index = (PAGE.parent / "README.md").read_text("utf-8")
    assert [
        page.name for page in PAGE.parent.glob("*.md") if f"({page.name}" not in index and page.name != "README.md"
    ] == []


def test_the_page_on_the_terminal_has_every_option_and_command_of_the_chat() -> None:
    text = (PAGE.parent / "terminal.md").read_text("utf-8")
    shared = {"--url", "--key"}  # of all commands, in the text above the table
    options = {name for parameter in inspect.signature(chat).parameters.values() for name in option_names(parameter)}
    assert {name for row in re.findall(r"^\| (`-.+?`) \|", text, re.M) for name in re.findall(r"--?[a-z-]+", row)} == (
        options - shared
    )
    view = AnswerView(io.StringIO(), io.StringIO())
    client = ConversationClient("", None, model=None, tools=True, instructions=None, session="")
    dialog = ApprovalDialog(client, view, None)
    commands = SlashCommands(
        ChatSession(client, view, dialog, MarkdownTranscript(), ChatStateFiles(Path())), [], []
    ).commands
    shown = dict(re.findall(r"^\| `(/\w+)(?: (.+?))?` \|", text, re.M))
    assert {name: argument.replace("\\|", "|") for name, argument in shown.items()} == {
        name: command.argument for name, command in commands.items()
    }


def option_names(parameter: inspect.Parameter) -> list[str]:
    return [
        name
        for note in getattr(parameter.annotation, "__metadata__", ())
        for name in (note.default, *(note.param_decls or ()))  # Typer keeps the first name as the default until it runs
        if isinstance(name, str) and name.startswith("-")
    ]


@pytest.mark.parametrize(("command", "fields"), [("runs", runs.FIELDS), ("requests", requests.FIELDS)])
def test_the_index_has_every_column_that_a_pipe_gets(command: str, fields: tuple[str, ...]) -> None:
    index = (PAGE.parent / "README.md").read_text("utf-8")
    (columns,) = re.findall(rf"^\| `toolgate {command}` \| (.+) \|$", index, re.M)
    written = [column.replace(" in ms", "").split(" ")[0] for column in columns.split(", ")]
    assert written == [field.split("_")[0] for field in fields]


def test_retention_is_reported_as_it_is() -> None:
    days = {one.path.removeprefix("records.days."): one.default.strip("`") for one in SETTINGS if ".days." in one.path}
    records, storage = [(PAGE.parent / name).read_text("utf-8") for name in ("records.md", "storage.md")]
    (shown,) = re.findall(r"days: \{(.*?)\}", records)
    assert dict(pair.split(": ") for pair in shown.split(", ")) == days
    emitted = re.findall(r"(\d+) days \(`records\.days\.(\w+)`\)", storage)
    assert len(emitted) >= 2
    assert [(number, name) for number, name in emitted if days[name] != number] == []


PROGRAMS = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in DOCS
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S))
]


@pytest.mark.parametrize("code", PROGRAMS)
def test_every_program_can_be_compiled_and_sets_what_it_uses(code: str) -> None:
    """tests/test_readme.py runs those that need a server."""
    nodes = list(ast.walk(ast.parse(code)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    imports = [one for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for one in node.names]
    definitions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    known = {name.id for name in names if isinstance(name.ctx, ast.Store)} | set(dir(builtins))
    known |= {one.asname or one.name.split(".")[0] for one in imports} | {one.name for one in definitions}
    known |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    used = {name.id for name in names if isinstance(name.ctx, ast.Load)}
    assert sorted(used - known) == []


VAGUE = re.compile(r"\b(who|no|some|any|every)(ever|body)\b", re.IGNORECASE)
"""Words that leave open who does a thing: a page names the client, the key, the operator or the server."""


@pytest.mark.parametrize("page", [page for page in DOCS if page.stem not in OLDER], ids=lambda page: page.name)
def test_a_page_names_the_subject_of_an_action(page: Path) -> None:
    lines = _FENCE.sub("", page.read_text("utf-8")).splitlines()
    assert [line for line in lines if VAGUE.search(line)] == []


def test_help_texts_and_error_messages_name_the_subject_of_an_action() -> None:
    output = [one.help for one in SETTINGS]
    for path in sorted(PAGE.parent.parent.glob("src/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Raise(exc=ast.Call(args=[ast.Constant(value=str()) | ast.JoinedStr() as text, *_])):
                    output.append(ast.unparse(text))
                case ast.keyword(arg="help", value=ast.Constant(value=str(help))):
                    output.append(help)
    assert len(output) > 800
    assert [text for text in output if VAGUE.search(text)] == []


OURS = [page for page in DOCS if page.stem not in OLDER]
ROUTES = re.compile(r"`((?:GET|POST|DELETE)(?:`?, `?(?:GET|POST|DELETE))*) (/(?:v1|api)/[^`\s?]*)")


def served() -> dict[tuple[str, str], str | None]:
    """Every route of a server, and the scope that it needs."""
    gate = Toolgate(Config(storage=Secret("sqlite://")), builtin={})
    return {(one.method, one.path): one.scope for one in gate.endpoints}


def test_every_route_that_a_page_names_is_served() -> None:
    routes = served()
    named = {
        (page.name, method, re.sub(r"\{\w+\}", "{}", path))
        for page in OURS
        for methods, path in ROUTES.findall(page.read_text("utf-8"))
        for method in re.findall(r"[A-Z]+", methods)
    }
    assert len(named) > 40
    assert sorted(one for one in named if one[1:] not in routes and "…" not in one[2]) == []


def test_the_scopes_are_reported_as_they_are() -> None:
    routes = served()
    text = (PAGE.parent / "keys.md").read_text("utf-8")
    rows = {scope: row for scope, row in re.findall(r"^\| `(\w+)` \| (.+) \|$", text, re.MULTILINE) if scope in SCOPES}
    assert set(rows) == set(SCOPES)
    emitted = {
        ("POST", "/v1/tools"): "registering and accepting tools",
        ("POST", "/v1/tools/{}/accept"): "registering and accepting tools",
        ("GET", "/v1/keys"): "managing keys",
        ("GET", "/metrics"): "metrics",
        ("GET", "/v1/tools"): "the list of server tools",
        ("POST", "/mcp"): "the MCP server at `/mcp`",
        ("GET", "/v1/approvals"): "approvals of its own calls",
        ("GET", "/v1/usage"): "its own usage",
    }
    assert [route for route, words in emitted.items() if words not in rows[routes[route] or ""]] == []
