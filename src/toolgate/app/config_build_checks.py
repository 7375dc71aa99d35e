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
    """Report everything that keeps a server of this configuration from starting."""
    if config.redis is not None:
        from toolgate.change_notifications.connect_redis import redis_client

        # Any address shows whether the package is installed; errors of the configured one could show its password.
        _try_build(report, "", redis_client, "redis://127.0.0.1")
    _check_models(config, report)
    if config.tools.enabled:
        _check_tools(config, report)
        check_reach(config, report)


def check_reach(config: Config, report: Report) -> None:
    """Report the services whose OpenAPI document names a host that tools may not reach."""
    from toolgate.app.tool_sources import ToolSourceFactory
    from toolgate.storage.database import Database

    if not config.tools.http or not config.tools.enabled:
        return
    try:
        sources = ToolSourceFactory(config, Database(config.storage.reveal(), connections=1))
    except (ValueError, OSError, ToolgateError):  # a mistake of another setting, which is reported there
        return
    for name, refused in asyncio.run(sources.refused_services()).items():
        report(f"tools.http.{name}", refused)


def _check_models(config: Config, report: Report) -> None:
    """Build the prompts and find the syntax of each model that needs them."""
    models = [model for model in config.models if model.tools == "emulated" or model.system == "inject"]
    if not models:
        return
    from toolgate.text_tools.prompts.prompt_renderer import (
        TextToolPromptRenderer,  # imported when needed: templates are slow to load
    )
    from toolgate.text_tools.syntaxes import syntax

    base, text = base_of(config), config.text
    build = partial(
        TextToolPromptRenderer,
        templates_dir=base / text.templates if text.templates else None,
        rules=[base / rule for rule in text.rules],
    )
    usable = _try_build(report, "text", build, "full")  # once: a bad template would be reported for every model
    for model in models:
        if usable:
            _try_build(report, f"models.{model.name}.prompts", build, model.prompts)
        if model.tools == "emulated" and model.syntax != "auto":
            _try_build(report, f"models.{model.name}.syntax", syntax, model.syntax)


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


def _try_build(report: Report, path: str, build: Callable[..., Any], *arguments: Any) -> bool:
    """Return whether a part can be built; if not, report why."""
    try:
        build(*arguments)
    except (ValueError, OSError, ToolgateError, ToolCallFailed) as error:
        report(path, str(error))
        return False
    return True
