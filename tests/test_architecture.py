"""Who may import whom: the layers of docs/architecture.md, held by reading every import."""

import ast
import builtins
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "toolgate"
LAYERS: dict[str, set[str]] = {
    # values and framing
    "conversation": set(),
    "wire": {"conversation"},
    "scheduling": set(),
    "processes": set(),
    "telemetry": {"conversation"},
    "change_notifications": {"conversation"},
    # models
    "dialects": {"conversation", "wire"},
    "engine": {"conversation", "scheduling"},
    "bridge": {"conversation", "wire", "engine", "scheduling"},
    "upstreams": {"conversation", "wire", "dialects", "engine", "processes", "scheduling", "bridge"},
    "text_tools": {"conversation", "wire", "dialects", "engine", "upstreams"},
    "config": {"conversation", "dialects", "upstreams"},
    # what is stored, and runs that survive their process
    "storage": {"conversation", "scheduling"},
    "runs": {"conversation", "engine", "storage", "change_notifications"},
    # the listener, and who is let in
    "auth": {"conversation", "wire", "config", "storage", "telemetry", "upstreams"},
    "http": {"conversation", "wire", "config", "engine", "scheduling", "telemetry", "auth"},
    "limits": {
        *("conversation", "wire", "config", "engine", "storage", "telemetry", "upstreams"),
        *("change_notifications", "runs", "http"),
    },
    # tools
    "tools": {
        *("conversation", "wire", "dialects", "engine", "upstreams", "processes", "scheduling"),
        *("storage", "runs", "auth", "http", "bridge"),
    },
    "approvals": {"conversation", "wire", "engine", "scheduling", "change_notifications", "tools"},
    # what clients call
    "api": {
        *("conversation", "wire", "dialects", "engine", "upstreams", "config", "storage", "runs", "scheduling"),
        *("telemetry", "change_notifications", "auth", "http", "limits", "tools", "approvals", "bridge"),
    },
    "console": {"conversation", "dialects", "http"},
    "mcp": {"conversation", "wire", "processes", "telemetry", "auth", "http", "tools", "api"},
    # processes
    "workers": {
        *("conversation", "wire", "config", "limits", "processes"),
        *("change_notifications", "telemetry", "upstreams", "bridge"),
    },
    "app": {
        *("conversation", "wire", "dialects", "engine", "upstreams", "text_tools", "config", "storage", "runs"),
        *("scheduling", "telemetry", "change_notifications", "auth", "http", "limits"),
        *("tools", "approvals", "api", "mcp", "workers"),
        "console",
        "bridge",
    },
    "cli": {
        *("conversation", "wire", "dialects", "upstreams", "config", "storage", "auth", "tools", "mcp"),
        *("change_notifications", "workers", "app"),
    },
    "lm": {"conversation", "tools"},
    "testing": {"conversation", "engine", "dialects", "app", "upstreams", "config", "tools"},
    "__init__": set(),
}
MODULES = sorted(SOURCE.rglob("*.py"))


@cache
def imported(path: Path) -> set[str]:
    """The dotted names of ours that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.startswith("toolgate.")}


def layer(name: str) -> str:
    return name.split(".")[1]


def test_a_file_imports_only_from_the_layers_below_its_own() -> None:
    wrong: dict[str, set[str]] = {}
    for path in MODULES:
        name = path.relative_to(SOURCE)
        own = name.parts[0].removesuffix(".py")
        foreign = {layer(one) for one in imported(path)} - {own, "__version__"}
        if not foreign <= LAYERS[own]:
            wrong[str(name)] = foreign - LAYERS[own]
    assert wrong == {}


def folder(name: str) -> str:
    """The folder of the module that a dotted name stands for, or in which it is defined."""
    path = SOURCE.joinpath(*name.split(".")[1:])
    while not path.is_dir() and not path.with_suffix(".py").exists():
        path = path.parent
    return str((path if path.is_dir() else path.parent).relative_to(SOURCE))


def test_no_folder_imports_itself_by_way_of_others() -> None:
    below: dict[str, set[str]] = {}
    for path in MODULES:
        own = str(path.parent.relative_to(SOURCE))
        below.setdefault(own, set()).update(folder(name) for name in imported(path))
    while below:
        leaves = {one for one, others in below.items() if not (others - {one}) & below.keys()}
        assert leaves, f"these folders import each other in a ring: {sorted(below)}"
        below = {one: others for one, others in below.items() if one not in leaves}


def test_a_public_class_name_occurs_once() -> None:
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


@pytest.mark.parametrize(
    "path",
    [p for p in MODULES if "dialects" in p.relative_to(SOURCE).parts],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_a_dialect_knows_no_other_dialect(path: Path) -> None:
    folders = {folder.name for folder in (SOURCE / "dialects").iterdir() if folder.is_dir()}
    own = path.parent.name if path.parent.name in folders else None
    named = {name.split(".")[2] for name in imported(path) if name.startswith("toolgate.dialects.")} & folders
    assert named <= {own}


def foreign_assignments(path: Path) -> list[str]:
    """The statements of a file that set an attribute of another object than `self`."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), ctx=ast.Store()):
                continue
            case ast.Attribute(ctx=ast.Store()) | ast.Call(func=ast.Name(id="setattr")):
                found.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize("path", [p for p in MODULES if p.is_relative_to(SOURCE / "app")], ids=lambda path: path.name)
def test_the_composition_root_sets_no_attribute_of_another_object(path: Path) -> None:
    """Objects get what they need in their constructor, and what changes later by a method."""
    assert foreign_assignments(path) == []


@pytest.mark.parametrize(
    "line", ["a.b = 1", "self.a.b = 1", "a.b, c = 1, 2", "a.b += 1", "a.b: int = 1", "setattr(a, 'b', 1)"]
)
def test_no_way_of_setting_an_attribute_is_overlooked(line: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(line)
    assert foreign_assignments(path)


SOCKETS = {"socket", "ssl", "http.client", "urllib.request", "httpx", "aiohttp", "requests", "websockets"}
OPENING = {"open_connection", "create_connection", "open_unix_connection", "create_server", "start_server"}
OPENERS = ("http/", "workers/", "app/", "api/", "cli/", "upstreams/transport/")
OTHER_OPENERS = {
    "upstreams/local/hub_download.py": "fetches weights in a thread, hours before anybody is served by them",
    "upstreams/stateful_chat/reconnect.py": "names the type of the certificates that it passes on",
    "upstreams/stateful_chat/sliced_connection.py": "parses the frames of a socket that the transport dialled",
    "upstreams/stateful_chat/websocket.py": "speaks frames on a socket that the transport dialled",
    "tools/egress/pinned_transport.py": "connects to addresses that the guard has checked",
    "tools/egress/name_lookup.py": "looks up addresses of hosts in threads of its own",
    "mcp/oauth/redirect.py": "waits on loopback for the browser that comes back from a login",
}


def opens_sockets(path: Path) -> bool:
    """Whether a file imports what sockets are made of, in whole or in part, or has asyncio make one."""
    text = path.read_text()
    if not any(all(part in text for part in name.split(".")) for name in (*SOCKETS, *OPENING)):
        return False
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), names=names):
                modules = [module, *[f"{module}.{alias.name}" for alias in names]]
            case ast.Attribute(attr=name) if name in OPENING:
                return True
            case _:
                continue
        if any(module == name or module.startswith(f"{name}.") for module in modules for name in SOCKETS):
            return True
    return False


def test_only_the_transport_and_the_edge_open_sockets() -> None:
    opening = {str(path.relative_to(SOURCE)) for path in MODULES if opens_sockets(path)}
    others = {where for where in opening if not where.startswith(OPENERS)}
    assert others == set(OTHER_OPENERS)


@pytest.mark.parametrize(
    "line",
    [
        "import socket",
        "import http.client as web",
        "from socket import create_connection",
        "from http import client",
        "from urllib.request import urlopen",
        "from websockets.asyncio.client import connect",
        "asyncio.open_connection('there', 80)",
    ],
)
def test_no_way_of_opening_a_socket_is_overlooked(line: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(line)
    assert opens_sockets(path)


def test_pure_layers_are_free_of_io_and_clocks() -> None:
    banned = {"asyncio", "time", "datetime", "os", "pathlib", "threading"}
    allowed = {
        ("conversation/random_ids.py", "os"),  # to hear of a fork
        ("text_tools/prompts", "pathlib"),
        ("dialects/upstream_errors.py", "time"),
        ("dialects/ollama", "datetime"),
        ("dialects/anthropic", "datetime"),
    }
    for path in MODULES:
        where = str(path.relative_to(SOURCE))
        if not where.startswith(
            (
                "conversation/",
                "wire/",
                "dialects/",
                "text_tools/parsing/",
                "text_tools/call_formats/",
                "text_tools/syntaxes/",
                "text_tools/prompts/",
            )
        ):
            continue
        tree = ast.parse(path.read_text())
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        found = {name for name in names & banned if not any(where.startswith(f) and name == n for f, n in allowed)}
        assert not found, f"{where} imports {found}"


TESTS = Path(__file__).parent
WALL_CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"}
CLOCK_CALL = re.compile(rf"\b(?:{'|'.join(WALL_CLOCKS)})\(")


def reads_wall_clock(node: ast.AST) -> bool:
    """Whether an expression calls `time.monotonic()` or another clock that goes on while other programs run."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="time"), attr=name)) | ast.Call(func=ast.Name(id=name)):
            return name in WALL_CLOCKS
    return False


def measures_duration(node: ast.AST, measured: set[str]) -> bool:
    """Whether an expression holds a difference of wall-clock times, or a name that was given one."""
    for part in ast.walk(node):
        match part:
            case ast.BinOp(op=ast.Sub(), left=left) if any(map(reads_wall_clock, ast.walk(left))):
                return True
            case ast.Name(id=name) if name in measured:
                return True
    return False


def asserted_durations(tree: ast.AST) -> list[int]:
    """The lines whose `assert` compares how long something took."""
    lines = []
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        measured: set[str] = set()
        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if measures_duration(value, set()):
                    measured.add(name)
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value]):
                    measured |= {name} if measures_duration(value, set()) else set()
        for node in ast.walk(function):
            if isinstance(node, ast.Assert) and measures_duration(node.test, measured):
                lines.append(node.lineno)
    return lines


def test_no_test_asserts_how_long_something_took() -> None:
    """A busy machine is no defect: count the work, drive a clock, or measure `time.thread_time()`."""
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        if CLOCK_CALL.search(text := path.read_text())  # parsing all tests takes as long as the other tests here
        for line in asserted_durations(ast.parse(text))
    ]
    assert found == []


@pytest.mark.parametrize(
    "lines",
    [
        "assert time.monotonic() - began < 1",
        "assert 0.1 < perf_counter() - began < 1",
        "took = time.time() - began; assert took < 1",
        "seconds.append(time.monotonic() - began); assert max(seconds) < 1",
        "worst = max(worst, time.monotonic() - began); assert worst < 1",
    ],
)
def test_no_way_of_asserting_a_duration_is_overlooked(lines: str) -> None:
    assert asserted_durations(ast.parse(f"def test():\n    {lines}"))


@pytest.mark.parametrize("lines", ["assert time.thread_time() - began < 1", "assert time.monotonic() < deadline"])
def test_processor_time_and_deadlines_against_hanging_may_be_asserted(lines: str) -> None:
    assert not asserted_durations(ast.parse(f"def test():\n    {lines}"))


PAGE = SOURCE.parent.parent / "docs" / "architecture.md"
REFERENCE = re.compile(r"`([a-z_0-9/]+\.(?:py|yaml))(?:: ([A-Za-z_.]+))?`")
"""`engine/tool_loop.py` or `engine/tool_loop.py: ToolLoop.ask`, as the page names files and what is in them."""


def defined(path: Path) -> set[str]:
    """The names that a file defines: functions, classes, and methods with and without their class."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
            names |= {node.name, *methods} | {f"{node.name}.{method}" for method in methods}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    return names


def test_what_the_architecture_page_names_exists() -> None:
    references = REFERENCE.findall(PAGE.read_text())
    assert len(references) > 40
    for file, name in references:
        # a bare name such as `relay.py` is a file of every dialect
        tops = (SOURCE, SOURCE.parents[1], SOURCE / "dialects" / "openai_chat")
        path = next((top / file for top in tops if (top / file).exists()), None)
        assert path is not None, f"{file} is not there"
        assert not name or name in defined(path), f"{file} has no {name}"


NAMING = re.compile(r"\w\.py\b|`toolgate\.|[A-Z][a-z]+[A-Z]\w+ (?:if|when|unless) ")
"""What a file must hold for a docstring in it to name a file, a module or an exception."""


def documentation(tree: ast.Module) -> list[str]:
    """The docstrings of a file, those below values included."""
    return [
        node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]


def is_a_name_of_ours(dotted: str) -> bool:
    """Whether a dotted name is a package or a module of ours, or something that is named in one."""
    path, names = SOURCE, dotted.split(".")[1:]
    while names and (path / names[0]).is_dir():
        path /= names.pop(0)
    source = path / f"{names[0]}.py" if names and (path / f"{names[0]}.py").exists() else path / "__init__.py"
    rest = names[1:] if source.name != "__init__.py" else names
    return source.exists() and all(re.search(rf"\b{name}\b", source.read_text()) for name in rest)


def test_docstrings_name_files_and_classes_that_exist() -> None:
    """A renamed file or class is renamed where it is described, too."""
    texts = {path: path.read_text() for path in MODULES}
    known = set(dir(builtins)) | {name for text in texts.values() for name in re.findall(r"\bclass (\w+)", text)}
    files = {path.name for folder in ("src", "tests", "bench", "examples") for path in (ROOT / folder).rglob("*.py")}
    stale = []
    for path, source in texts.items():
        for text in documentation(ast.parse(source)) if NAMING.search(source) else ():
            listed = re.findall(r"^ *(?:\w+ \()?(\w+\.py)\)?(?: {2,}|$)", text, re.MULTILINE)
            stale += [(path, name) for name in listed if not (path.parent / name).exists()]
            stale += [(path, name) for name in re.findall(r"\w+\.py\b", text) if name not in files]
            stale += [(path, name) for name in re.findall(r"`(toolgate\.[\w.]+)`", text) if not is_a_name_of_ours(name)]
            classes = re.findall(r"^ *([A-Z]\w+)(?: \(\w+\.py\)| {3,}.* \(\w+\.py\)$)", text, re.MULTILINE)
            classes += re.findall(r"(?<![`.\w])((?:[A-Z][a-z]+){2,})(?= if | when | unless )", text)
            stale += [(path, name) for name in classes if name not in known]
    assert [f"{path.relative_to(SOURCE)}: {name}" for path, name in stale] == []
