"""Find the mistakes of a configuration that show only when its parts are built: patterns, folders, templates, hosts.

Every part is built by itself, so that one mistake does not hide the next. Nothing is changed and nothing is served.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from toolgate.app.tool_sources import base_of
from toolgate.approvals.auto_approve import command_pattern, url_pattern
from toolgate.config import Config
from toolgate.conversation.errors import ToolgateError
from toolgate.tools.builtin import NAMES
from toolgate.tools.builtin.granted_folders import GrantedFolders
from toolgate.tools.egress.policy import EgressExemption
from toolgate.tools.selection import parse_tool_query
from toolgate.tools.tool import ToolCallFailed

# Takes the path of a setting and the problem with it.
Report: TypeAlias = Callable[[str, str], None]


def check_start(config: Config, report: Report) -> None:
    """Report everything that keeps a server of this configuration from starting, or a tool source from being found."""
    if config.redis is not None:
        from toolgate.change_notifications.connect_redis import redis_client

        # Any address shows whether the package is installed; errors of the configured one could show its password.
        _try_build(report, "", redis_client, "redis://127.0.0.1")
    _check_models(config, report)
    if config.tools.enabled:
        _check_tools(config, report)
        _check_places(config, report)
        check_reach(config, report)


def check_reach(config: Config, report: Report) -> None:
    """Report the services whose OpenAPI document names a host that tools may not reach."""
    from toolgate.app.tool_sources import ToolSourceFactory
    from toolgate.storage.database import Database

    if not config.tools.http or not config.tools.enabled:
        return
    try:
        # Any database will do, since none is opened: a mistake in `storage` must not hide those found here.
        sources = ToolSourceFactory(config, Database("sqlite:///toolgate.db", connections=1))
    except (ValueError, OSError, ToolgateError):  # a mistake in `tools.reach`, which is reported there
        return
    for name, refused in asyncio.run(sources.refused_services()).items():
        report(f"tools.http.{name}", refused)


def _check_models(config: Config, report: Report) -> None:
    """Build the prompts and find the syntax of each model that needs them."""
    models = [model for model in config.models if model.tools == "emulated" or model.system == "inject"]
    text = config.text
    if not models and not text.templates and not text.rules:
        return
    # Imported when needed: templates are slow to load.
    from toolgate.text_tools.prompts.prompt_renderer import TextToolPromptRenderer
    from toolgate.text_tools.prompts.template_files import COMPLETE, read
    from toolgate.text_tools.syntaxes import syntax

    base = base_of(config)
    folder = base / text.templates if text.templates else None
    if folder is not None and not folder.is_dir():
        report("text.templates", f"{text.templates}: there is no such folder")
        folder = None  # the models' own settings are checked all the same
    paths = {f"text.rules[{number}]": base / rule for number, rule in enumerate(text.rules)}
    rules = [rule for path, rule in paths.items() if _try_build(report, path, read, rule)]
    build = partial(TextToolPromptRenderer, templates_dir=folder, rules=rules)
    shared = _build_problem(build, COMPLETE)
    if shared is not None:
        report("text.templates", shared)
    for model in models:
        problem = _build_problem(build, model.prompts)
        # Templates that all variants share are reported once, above.
        if problem is not None and problem != shared:
            report(f"{model.path}.prompts", problem)
        if model.tools == "emulated" and model.syntax != "auto":
            _try_build(report, f"{model.path}.syntax", syntax, model.syntax)


def _check_tools(config: Config, report: Report) -> None:
    """Build what the settings of tools describe: hosts, folders, patterns and the secret of the webhook."""
    tools, builtin, approvals = config.tools, config.tools.builtin, config.tools.approvals
    for number, entry in enumerate(tools.reach):
        _try_build(report, f"tools.reach[{number}]", EgressExemption.of, entry)
    _try_build(report, "tools.offer", parse_tool_query, list(tools.offer), "tools.offer")
    for number, root in enumerate(builtin.roots):
        _try_build(report, f"tools.builtin.roots[{number}]", GrantedFolders, [base_of(config) / root])
    for number, name in enumerate(builtin.disabled):
        if name not in NAMES:
            known = ", ".join(sorted(NAMES))
            report(f"tools.builtin.disabled[{number}]", f"there is no built-in tool called {name}; known: {known}")
    for number, url in enumerate(approvals.auto_approve_urls):
        _try_build(report, f"tools.approvals.auto_approve_urls[{number}]", url_pattern, url)
    for number, words in enumerate(approvals.auto_approve_commands):
        _try_build(report, f"tools.approvals.auto_approve_commands[{number}]", command_pattern, words)
    if approvals.webhook is not None:
        from toolgate.approvals.webhook import signing_key

        secret = approvals.webhook.secret.reveal() if approvals.webhook.secret else ""
        _try_build(report, "tools.approvals.webhook.secret", signing_key, secret)


def _check_places(config: Config, report: Report) -> None:
    """Report the files and folders of tool sources that do not exist: a server starts, but without their tools."""
    tools, base = config.tools, base_of(config)
    if tools.python:
        from toolgate.tools.sources.python_code_finder import PythonCodeNotFound, find_places

        for number, place in enumerate(tools.python):
            try:
                find_places(place, base)
            except (PythonCodeNotFound, OSError) as error:
                report(f"tools.python[{number}]", str(error))
    for name, server in tools.mcp.items():
        if server.command and server.cwd is not None and not (base / server.cwd).is_dir():
            report(f"tools.mcp.{name}.cwd", f"{server.cwd}: there is no such folder")
    for name, service in tools.http.items():
        remote = service.openapi.lower().startswith(("http:", "https:"))
        if not remote and not (base / service.openapi).exists():
            report(f"tools.http.{name}.openapi", f"{service.openapi}: there is no such file")


def _try_build(report: Report, path: str, build: Callable[..., Any], *arguments: Any) -> bool:
    """Return whether a part can be built; if not, report why."""
    problem = _build_problem(build, *arguments)
    if problem is not None:
        report(path, problem)
    return problem is None


def _build_problem(build: Callable[..., Any], *arguments: Any) -> str | None:
    """Return why a part cannot be built, None if it can."""
    try:
        build(*arguments)
    except (ValueError, OSError, ToolgateError, ToolCallFailed) as error:
        return str(error)
    return None
