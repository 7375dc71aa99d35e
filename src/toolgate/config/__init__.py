"""The configuration: one file, loaded into immutable values; every setting has a default and a help text.

`load` returns a `Config` or raises a `ConfigError` with every mistake; `diff` compares two for a reload.
"""

from toolgate.config.base_urls import is_loopback
from toolgate.config.errors import ConfigError, ConfigProblem
from toolgate.config.load import load
from toolgate.config.reload_diff import ConfigChanges, diff
from toolgate.config.resolve import short_key_warnings
from toolgate.config.resolved_config import BUILTIN, VSCODE, Config, ModelConfig, TargetConfig, UpstreamConfig
from toolgate.config.settings import (
    BreakerSettings,
    KeySettings,
    LogSettings,
    RequestLimitSettings,
    ServerSettings,
    ServerToolSettings,
    TimeoutSettings,
)
from toolgate.config.settings.secret import Secret

__all__ = [
    "BUILTIN",
    "VSCODE",
    "BreakerSettings",
    "Config",
    "ConfigChanges",
    "ConfigError",
    "ConfigProblem",
    "KeySettings",
    "LogSettings",
    "ModelConfig",
    "RequestLimitSettings",
    "Secret",
    "ServerSettings",
    "ServerToolSettings",
    "TargetConfig",
    "TimeoutSettings",
    "UpstreamConfig",
    "diff",
    "is_loopback",
    "load",
    "short_key_warnings",
]
