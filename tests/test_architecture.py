"""Who may import whom: the layers of docs/architecture.md, held by reading every import."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "toolgate"
LAYERS: dict[str, set[str]] = {
    "conversation": set(),
    "wire": {"conversation"},
    "scheduling": set(),
    "dialects": {"conversation", "wire"},
    "text": {"conversation", "wire"},
    "engine": {"conversation", "scheduling"},
    "processes": set(),
    "tools": {"conversation", "wire", "processes", "scheduling"},
    "storage": {"conversation", "scheduling"},
    "limits": {"conversation"},
    "telemetry": {"conversation"},
    "upstreams": {"conversation", "wire", "dialects", "text", "engine", "processes", "scheduling"},
    "runs": {"conversation", "engine", "storage"},
    "config": {"conversation", "dialects", "upstreams"},
    "testing": {"conversation", "engine", "dialects", "server", "upstreams", "config", "tools"},
    "lm": {"conversation", "tools"},
}
MODULES = sorted(SOURCE.rglob("*.py"))


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


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_imports_only_from_the_layers_below_its_own(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if own not in LAYERS:  # server and cli may see everything
        return
    foreign = {layer(name) for name in imported(path)} - {own, "__version__"}
    assert foreign <= LAYERS[own], f"{path.relative_to(SOURCE)} imports {foreign - LAYERS[own]}"


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


SOCKETS = {"socket", "ssl", "http.client", "urllib.request", "httpx", "aiohttp", "requests", "websockets"}
OPENING = {"open_connection", "create_connection", "open_unix_connection", "create_server", "start_server"}
OPENERS = ("server/", "cli/", "upstreams/transport/")
OTHER_OPENERS = {
    "upstreams/embedded/hub.py": "fetches weights in a thread, hours before anybody is served by them",
    "upstreams/peers/peer.py": "names the type of the certificates that it passes on",
    "upstreams/peers/websocket.py": "speaks frames on a socket that the transport dialled",
    "tools/sources/mcp/oauth/redirect.py": "waits on loopback for the browser that comes back from a login",
}


def opens_sockets(path: Path) -> bool:
    """Whether a file imports what sockets are made of, in whole or in part, or has asyncio make one."""
    for node in ast.walk(ast.parse(path.read_text())):
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
        ("conversation/ids.py", "os"),  # to hear of a fork
        ("text/prompts", "pathlib"),
        ("dialects/refusals.py", "time"),
        ("dialects/ollama", "datetime"),
        ("dialects/anthropic", "datetime"),
    }
    for path in MODULES:
        where = str(path.relative_to(SOURCE))
        if not where.startswith(("conversation/", "wire/", "dialects/", "text/")):
            continue
        tree = ast.parse(path.read_text())
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        found = {name for name in names & banned if not any(where.startswith(f) and name == n for f, n in allowed)}
        assert not found, f"{where} imports {found}"
