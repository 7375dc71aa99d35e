"""The configuration: one file, every setting with default and help, read once into values that never change.

`load` gives a `Config` or a `ConfigError` with all that is wrong; `diff` says what a changed one can change at run time.
"""

from toolgate.config.addresses import is_loopback
from toolgate.config.loading import load
from toolgate.config.problems import ConfigError, Problem
from toolgate.config.reloading import Changes, diff
from toolgate.config.secret import Secret
from toolgate.config.settings import Breaker, Key, Limits, Log, Server, Timeouts, Tools
from toolgate.config.values import BUILTIN, Config, Model, Target, Upstream

__all__ = [
    "BUILTIN",
    "Breaker",
    "Changes",
    "Config",
    "ConfigError",
    "Key",
    "Limits",
    "Log",
    "Model",
    "Problem",
    "Secret",
    "Server",
    "Target",
    "Timeouts",
    "Tools",
    "Upstream",
    "diff",
    "is_loopback",
    "load",
]
