"""The checks of `toolgate doctor`, in the order in which they are printed; each is a function of the configuration."""

import asyncio
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from toolgate import __version__
from toolgate.app.config_build_checks import check_start
from toolgate.app.serve import config_problems
from toolgate.app.tool_sources import ToolSourceFactory, base_of
from toolgate.change_notifications.connect_redis import redis_client
from toolgate.cli.api_client import ApiCallFailed, request_json
from toolgate.cli.database_tasks import describe_error, redacted_url
from toolgate.cli.doctor_findings import DoctorFinding, ok, problem, warning
from toolgate.cli.port_check import port_problem
from toolgate.cli.printing import count
from toolgate.cli.probe_upstreams import probe_all
from toolgate.cli.server_url import server_url
from toolgate.config import Config, ConfigError, load
from toolgate.conversation.errors import ToolgateError
from toolgate.mcp.client import McpSource
from toolgate.storage.database import Database
from toolgate.tools.tool import ToolSource
from toolgate.upstreams.local.weights_cache import WeightsCache, default_folder
from toolgate.upstreams.local.weights_catalog import KNOWN

# How long a tool source may take to bring its tools; commands such as `npx` download their program first.
SOURCE_SECONDS = 20.0
REDIS_SECONDS = 5.0
_LITTLE_SPACE, _NO_SPACE = 2**30, 100 * 2**20
# A line of a Python source's problem that names a file: `my_tools/stock.py, line 1: …` or `my_tools/stock.py:7: …`.
_FILE_OF_PROBLEM = re.compile(r"^([^\n:]+\.py)(?:, line \d+|:\d+)?: ", re.MULTILINE)


def run_checks(
    path: Path | None, url: str, key: str | None, *, url_given: bool, offline: bool
) -> Iterator[DoctorFinding]:
    """Check everything; a configuration that cannot be used ends the checks that need it.

    `url_given` says that a person named the server that commands call: then one that does not answer is reported.
    """
    yield ok("version", f"toolgate {__version__}, Python {platform.python_version()}, {platform.system()}")
    config = None
    try:
        config = load(path, os.environ)
    except ConfigError:
        # Once more with the checks of a start, so that all mistakes are reported together.
        try:
            config = load(path, os.environ, check=check_start)
        except ConfigError as error:
            yield from _mistakes(str(error))
    if config is not None:
        yield from check_config(config)
        yield from check_port(config)
        yield from check_storage(config)
        yield from check_redis(config)
        yield from check_keys(config)
        yield from check_weights(config)
        if not offline:
            yield from check_upstreams(config)
            yield from check_tool_sources(config)
    yield from check_server(url, key, url_given=url_given)


def check_config(config: Config) -> Iterator[DoctorFinding]:
    """Build everything of the configuration that needs no network."""
    name = str(config.source or "the built-in configuration")
    if problems := config_problems(config):
        yield from _mistakes(str(ConfigError(problems, name)))
        return
    default = config.default_model or config.models[0].name
    yield ok("config", f"{name}: {count(len(config.models), 'model')}, by default {default}")
    if not any(model.price.input or model.price.output for model in config.models):
        for key in config.keys:
            if key.budget is not None:
                text = f"the budget of the key {key.name} limits nothing, because no model has a price"
                yield warning("config", text, "Give models a `price` (docs/keys.md).")


def _mistakes(text: str) -> Iterator[DoctorFinding]:
    """Make a finding of each mistake that a ConfigError lists."""
    head, *mistakes = text.splitlines()
    for mistake in mistakes or [head]:
        advice = f"Change the file and run `toolgate doctor` again ({head.rstrip(':')})."
        yield problem("config", mistake.removeprefix("  - "), advice)


def check_port(config: Config) -> Iterator[DoctorFinding]:
    """Look whether the port is free, or taken by a server of ours."""
    host, port = config.server.host, config.server.port
    found = port_problem(host, port)
    if found is None:
        yield ok("port", f"{host} port {port} is free")
        return
    try:
        request_json(server_url(host, port), None, "GET", "/healthz")
        yield ok("port", f"a server answers on {host} port {port}")
    except ApiCallFailed:
        yield problem("port", found, "Choose another `server.port`, or stop the program that has it.")


def check_storage(config: Config) -> Iterator[DoctorFinding]:
    """Look at the tables of the database, and at the space on its disk."""
    url = redacted_url(config)
    database = Database(config.storage.reveal(), connections=1)
    folder = database.path.parent if database.path is not None else None
    try:
        yield asyncio.run(_tables(database, url))
    except ToolgateError as error:
        yield problem("database", describe_error(config, error), "Check `storage`, and that the database runs.")
    if folder is not None and folder.is_dir():
        if not os.access(folder, os.W_OK):
            yield problem("database", f"{folder} is not writable", "Change its owner, or choose another `storage`.")
        free = shutil.disk_usage(folder).free
        text = f"{free / 1e9:.1f} GB free at {folder.resolve()}"
        if free >= _LITTLE_SPACE:
            yield ok("disk", text)
        else:
            make = problem if free < _NO_SPACE else warning
            yield make("disk", text, "Delete files, or keep records for fewer days (docs/records.md).")


async def _tables(database: Database, url: str) -> DoctorFinding:
    try:
        if database.path is not None and not database.path.exists():
            return ok("database", f"{url}: there is no file yet; a server creates it")
        now = await database.status()
    finally:
        await database.aclose()
    if now.version > now.newest:
        text = f"{url} was used by a newer version ({now.version} of the tables, this program knows {now.newest})"
        return problem("database", text, "Use the newer program, or restore a backup.")
    if now.version < now.newest:
        text = f"{url}: version {now.version} of the tables, the newest is {now.newest}"
        return warning("database", text, "A server upgrades them when it starts; `toolgate db migrate` does it now.")
    return ok("database", f"{url}: version {now.version} of the tables, the newest")


def check_redis(config: Config) -> Iterator[DoctorFinding]:
    """Send Redis a PING, if it is configured."""
    if config.redis is None:
        return
    started = time.perf_counter()
    try:
        asyncio.run(_ping(config.redis.reveal()))
        yield ok("redis", f"answers in {(time.perf_counter() - started) * 1000:.0f} ms")
    # What `redis_client` raises if the optional package is missing.
    except ValueError as error:
        yield problem("redis", str(error), "Install the package, or remove `redis`.")
    except Exception as error:  # noqa: BLE001 - the client raises errors of many kinds
        text = f"does not answer: {type(error).__name__}"
        yield problem("redis", text, "Check `redis`, and that it runs; until then limits hold for each process alone.")


async def _ping(url: str) -> None:
    client = redis_client(url, socket_connect_timeout=REDIS_SECONDS, socket_timeout=REDIS_SECONDS)
    try:
        await client.ping()
    finally:
        await client.aclose()


def check_keys(config: Config) -> Iterator[DoctorFinding]:
    """Look at the keys of the configuration; keys of the database are known to a running server only."""
    if not config.keys:
        yield ok("keys", "none in the configuration: only this machine may send requests, without a key")
        return
    yield ok("keys", ", ".join([f"{key.name} ({', '.join(key.scopes)})" for key in config.keys[:20]]))
    if not any("admin" in key.scopes for key in config.keys):
        yield warning(
            "keys", "no key has the scope admin", "Add it to one, to manage keys and to see the requests of all keys."
        )
    approving = [key for key in config.keys if {"tools", "admin"} <= set(key.scopes)]
    if len(config.keys) > 1 and config.tools.enabled and config.tools.approvals.self_approval is None and not approving:
        text = "no key can approve tool calls: with several keys, none approves its own"
        yield warning(
            "keys", text, "Give one the scopes tools and admin, or set `tools.approvals.self_approval: true`."
        )


def check_weights(config: Config) -> Iterator[DoctorFinding]:
    """Look whether the local model can run, if the configuration uses it."""
    if not config.embedded.enabled or not any(config.is_local(model) for model in config.models):
        return
    chosen = config.embedded.model
    if find_spec("xllamacpp") is None:
        advice = "Run pip install '.[embedded]' in the clone of Toolgate, or set `embedded.enabled: false`."
        yield problem("local model", "its runtime, the package xllamacpp, is not installed", advice)
        return
    folder = Path(config.embedded.folder) if config.embedded.folder else default_folder(os.environ)
    if chosen.endswith(".gguf"):
        path = base_of(config) / chosen
        if path.is_file():
            yield ok("local model", f"{path}, {path.stat().st_size / 1e9:.1f} GB")
        else:
            yield problem("local model", f"{path} does not exist", "Change `embedded.model`.")
        return
    held = {one.name: one for one in WeightsCache(folder).entries()}
    if chosen in held:
        yield ok("local model", f"{chosen}, {held[chosen].size / 1e9:.1f} GB in {folder}")
        return
    if chosen not in KNOWN:
        yield problem(
            "local model", f"there are no weights {chosen}", "`toolgate models weights` lists those there are."
        )
        return
    size = KNOWN[chosen].size
    text = f"the weights {chosen} ({size / 1e9:.1f} GB) are not here yet"
    # The folder of the cache may not exist yet; the disk is that of its nearest parent.
    existing = next(one for one in (folder, *folder.resolve().parents) if one.is_dir())
    if shutil.disk_usage(existing).free < size + _NO_SPACE:
        yield problem("local model", f"{text}, and do not fit on the disk", "Make room, or set `embedded.folder`.")
    else:
        yield warning(
            "local model", text, "A server downloads them when it starts; `toolgate models pull` does it now."
        )


def check_upstreams(config: Config) -> Iterator[DoctorFinding]:
    """Ask every upstream for its models, all at once."""
    if not config.upstreams:
        return
    for name, answer in probe_all(config.upstreams.values()).items():
        upstream = config.upstreams[name]
        if answer.ok:
            yield ok("upstream", f"{name} ({upstream.base_url}): {answer.report}")
        else:
            advice = "Check its `base_url`, its key, and that this machine reaches it."
            yield problem("upstream", f"{name} ({upstream.base_url}): {answer.report}", advice)


def check_tool_sources(config: Config) -> Iterator[DoctorFinding]:
    """Open every tool source as a server does, and close it again."""
    if not config.tools.enabled:
        yield ok("tools", "turned off")
        return
    yield from asyncio.run(_open_sources(config))


async def _open_sources(config: Config) -> list[DoctorFinding]:
    # In memory, so that a definition that is seen here is not pinned as accepted for the server.
    database = Database(None)
    await database.open()
    try:
        sources = list(ToolSourceFactory(config, database).configured())
        return list(await asyncio.gather(*[_open_source(source, base_of(config)) for source in sources]))
    finally:
        await database.aclose()


async def _open_source(source: ToolSource, base: Path) -> DoctorFinding:
    changed = asyncio.Event()
    try:
        async with asyncio.timeout(SOURCE_SECONDS):
            await source.open(changed.set)
            if isinstance(source, McpSource):
                await source.settled()
            # Other sources load after `open` returns, and report tools or a problem as a change.
            elif not source.tools and source.problem is None and source.name != "builtin":
                await changed.wait()
        if source.problem is None:
            return ok("tools", f"{source.name}: {count(len(source.tools), 'tool')}")
        return problem(
            "tools", f"{source.name}: {source.problem}", _advice_for_source(source.name, source.problem, base)
        )
    except TimeoutError:
        text = f"{source.name}: no tools within {SOURCE_SECONDS:.0f} seconds"
        return problem("tools", text, "Start its command or open its address by hand.")
    finally:
        await source.aclose()


def _advice_for_source(name: str, text: str, base: Path) -> str:
    """Say what to correct: the files of Python tools that cannot be loaded, or else the settings of the source."""
    if name != "python":
        page = {"mcp": "docs/mcp.md", "http": "docs/http-tools.md"}.get(name.partition("/")[0], "docs/tools.md")
        return f"Correct `tools.{name.replace('/', '.')}` ({page})."
    files = dict.fromkeys([file for file in _FILE_OF_PROBLEM.findall(text) if (base / file).is_file()])
    return f"Correct {', '.join(files) or '`tools.python`'} (docs/tools.md)."


def check_server(url: str, key: str | None, *, url_given: bool) -> Iterator[DoctorFinding]:
    """Ask the server that other commands would call how it is."""
    try:
        status = request_json(url, key, "GET", "/v1/status")
    except ApiCallFailed as error:
        # Without a status there was no response at all.
        if error.status is None and url_given:
            yield warning("server", f"none answers at {url}", "Start it, or correct --url or TOOLGATE_URL.")
        elif error.status is None:
            yield ok("server", f"none answers at {url}; `toolgate serve` starts one")
        elif error.status == 401:
            yield warning("server", f"{url} refuses the key", "Give a key with --key or TOOLGATE_KEY.")
        else:
            yield warning("server", f"{url}: {error}", "Another program, or another version, may serve there.")
        return
    yield ok("server", f"{url}: version {status.get('version')}, {count(status.get('models') or 0, 'model')}")
    if status.get("version") != __version__:
        text = f"the server is version {status.get('version')}, this program is {__version__}"
        yield warning("server", text, "Restart the server, or use the program that belongs to it.")
    match status.get("local_model"):
        case {"state": "downloading" | "loading" | "absent" as state, **more} if more.get("message"):
            yield warning("server", f"local model: {state}, {more['message']}", "Wait, or read the log of the server.")
