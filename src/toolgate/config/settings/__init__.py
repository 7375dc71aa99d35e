"""Every setting of the configuration file: its name, type, default and help.

`RootSettings` is the whole table and is assembled here from the modules of its sections. `parse.py` checks a file against
the Structs, `reference.py` generates the documentation from them, and `resolve.py` turns what they hold into the `Config`
that the server uses. Nothing here does I/O.
"""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct

from toolgate.config.settings.field import about
from toolgate.config.settings.models import (
    AllModelsTextPromptSettings,
    BreakerSettings,
    EmbeddedModelSettings,
    ModelSettings,
    PriceSettings,
    SamplingDefaultSettings,
    SystemMode,
    TargetSettings,
    ThinkingMode,
    TimeoutSettings,
    ToolMode,
    UpstreamSettings,
)
from toolgate.config.settings.records import (
    DurableRunSettings,
    KeptChats,
    RecordSettings,
    ResponsesApiSettings,
    RetentionSettings,
)
from toolgate.config.settings.secret import Secret
from toolgate.config.settings.server import (
    BudgetPeriod,
    KeyBudgetSettings,
    KeySettings,
    LogFormat,
    LogLevel,
    LogSettings,
    RequestLimitSettings,
    Scope,
    ServerSettings,
)
from toolgate.config.settings.tools import (
    ApprovalRuleSettings,
    ApprovalSettings,
    BuiltinToolSettings,
    McpGrant,
    McpLoginSettings,
    McpServerSettings,
    McpTrust,
    OpenApiSettings,
    RunLimitSettings,
    ServerToolSettings,
    Stance,
    ToolExecution,
    ToolWorkerSettings,
    WebhookSettings,
)
from toolgate.config.settings.vscode import VscodeSettings

__all__ = [
    "ECHO",
    "LOCAL",
    "AllModelsTextPromptSettings",
    "ApprovalRuleSettings",
    "ApprovalSettings",
    "BreakerSettings",
    "BudgetPeriod",
    "BuiltinToolSettings",
    "DurableRunSettings",
    "EmbeddedModelSettings",
    "KeptChats",
    "KeyBudgetSettings",
    "KeySettings",
    "LogFormat",
    "LogLevel",
    "LogSettings",
    "McpGrant",
    "McpLoginSettings",
    "McpServerSettings",
    "McpTrust",
    "ModelSettings",
    "OpenApiSettings",
    "PriceSettings",
    "RecordSettings",
    "RequestLimitSettings",
    "ResponsesApiSettings",
    "RetentionSettings",
    "RootSettings",
    "RunLimitSettings",
    "SamplingDefaultSettings",
    "Scope",
    "ServerSettings",
    "ServerToolSettings",
    "Stance",
    "SystemMode",
    "TargetSettings",
    "ThinkingMode",
    "TimeoutSettings",
    "ToolExecution",
    "ToolMode",
    "ToolWorkerSettings",
    "UpstreamSettings",
    "VscodeSettings",
    "WebhookSettings",
]

LOCAL = ModelSettings(name="local", upstream="builtin", model="local")
ECHO = ModelSettings(name="echo", upstream="builtin", model="echo")


class RootSettings(Struct, frozen=True, kw_only=True):
    """The configuration file."""

    server: Annotated[ServerSettings, about("The address of the server, and which clients are let in.")] = (
        ServerSettings()
    )
    keys: Annotated[tuple[KeySettings, ...], about("Keys of clients; without any, only this machine is served.")] = ()
    upstreams: Annotated[
        Mapping[str, UpstreamSettings], about("The services that answer requests to models, by name.")
    ] = {}
    models: Annotated[
        tuple[ModelSettings, ...], about("Models that clients can use; without any, the built-in `local` and `echo`.")
    ] = (LOCAL, ECHO)
    default_model: Annotated[
        str | None, about("The model for requests without one, by name or alias; by default the first of `models`.")
    ] = None
    tools: Annotated[ServerToolSettings, about("The server's own tools: where they come from and how they run.")] = (
        ServerToolSettings()
    )
    vscode: Annotated[VscodeSettings, about("The bridge over which VS Code lends its models and tools.")] = (
        VscodeSettings()
    )
    embedded: Annotated[EmbeddedModelSettings, about("The model `local`, which runs on this machine.")] = (
        EmbeddedModelSettings()
    )
    text: Annotated[AllModelsTextPromptSettings, about("Prompts of models that only write text.")] = (
        AllModelsTextPromptSettings()
    )
    storage: Annotated[Secret, about("The database: sqlite:///… or postgresql://…")] = Secret("sqlite:///toolgate.db")
    storage_pool: Annotated[
        int, about("Most connections of each worker to PostgreSQL; SQLite needs one.", ge=1, le=100)
    ] = 8
    redis: Annotated[
        Secret | None,
        about("The Redis or Valkey through which several nodes share limits and notifications: redis://…"),
    ] = None
    records: Annotated[RecordSettings, about("Which records are kept, and for how long.")] = RecordSettings()
    responses: Annotated[ResponsesApiSettings, about("The memory of the Responses API, and background responses.")] = (
        ResponsesApiSettings()
    )
    runs: Annotated[DurableRunSettings, about("How background runs survive the end of their process.")] = (
        DurableRunSettings()
    )
    log: Annotated[LogSettings, about("The log.")] = LogSettings()
