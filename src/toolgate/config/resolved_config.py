"""The configuration as the server uses it: every default filled in, every name resolved. Values only."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from toolgate.config.settings import (
    AllModelsTextPromptSettings,
    BreakerSettings,
    DurableRunSettings,
    EmbeddedModelSettings,
    KeySettings,
    LogSettings,
    PriceSettings,
    RecordSettings,
    ResponsesApiSettings,
    ServerSettings,
    ServerToolSettings,
    SystemMode,
    ThinkingMode,
    TimeoutSettings,
    ToolMode,
    VscodeSettings,
)
from toolgate.config.settings.secret import Secret
from toolgate.conversation.request import RequestSettings
from toolgate.dialects.dialect import Quirks
from toolgate.upstreams.catalog import DialectName, ModelCapabilities

# The upstream that is always there: it serves `local`, the model on this machine, and `echo`.
BUILTIN = "builtin"

# The upstream of models that VS Code lends over the bridge.
VSCODE = "vscode"

LOCAL = "local"


class UpstreamConfig(Struct, frozen=True, kw_only=True):
    """A service that serves models; a dialect's paths are added to `base_url`, which has no slash at its end."""

    name: str
    dialect: DialectName
    base_url: str
    api_key: Secret | None = None
    headers: Mapping[str, Secret] = {}
    timeouts: TimeoutSettings = TimeoutSettings()
    breaker: BreakerSettings = BreakerSettings()
    max_connections: int = 2000
    quirks: Quirks = Quirks()
    provider: str | None = None


class TargetConfig(Struct, frozen=True, kw_only=True):
    """One upstream of a model: its own name for the model, its share of the requests, and its quirks."""

    upstream: str
    model: str
    weight: float = 1.0
    quirks: Quirks = Quirks()


class ModelConfig(Struct, frozen=True, kw_only=True):
    """A model that clients can ask for; there is at least one target, and fallbacks are public names.

    `path` is where the file defines it, such as `models[0]`, for messages.
    """

    name: str
    path: str = ""
    aliases: tuple[str, ...] = ()
    targets: tuple[TargetConfig, ...]
    fallbacks: tuple[str, ...] = ()
    retries: int = 2
    tools: ToolMode = "native"
    system: SystemMode = "native"
    syntax: str = "invoke"
    prompts: str = "full"
    thinking: ThinkingMode = "marked"
    reasks: int = 1
    promote: bool = False
    strict: bool = False
    whole_arguments: bool = False
    price: PriceSettings = PriceSettings()
    server_tools: tuple[str, ...] = ()
    blocked_tools: tuple[str, ...] = ()
    capabilities: ModelCapabilities = ModelCapabilities()
    defaults: RequestSettings = RequestSettings()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the public name and the aliases."""
        return (self.name, *self.aliases)


ECHO = ModelConfig(name="echo", targets=(TargetConfig(upstream=BUILTIN, model="echo"),))


class TruncatedConfigFileCheck(Struct, frozen=True, kw_only=True):
    """What shows that a file was truncated: its top-level settings, whether its last line has an end, and its text."""

    sections: frozenset[str] = frozenset()
    ends_line: bool = False
    # The file may hold keys, so its text must not appear in a log or a traceback.
    text: Secret = Secret("")

    def is_beginning_of(self, other: "TruncatedConfigFileCheck") -> bool:
        """Return whether this file is the other one, cut off."""
        ours, theirs = self.text.reveal(), other.text.reveal()
        return len(ours) < len(theirs) and theirs.startswith(ours)


class Config(Struct, frozen=True, kw_only=True):
    """The whole configuration; `source` is its file, None for the built-in configuration."""

    server: ServerSettings = ServerSettings()
    keys: tuple[KeySettings, ...] = ()
    upstreams: Mapping[str, UpstreamConfig] = {}
    models: tuple[ModelConfig, ...] = (ECHO,)
    default_model: str | None = None
    tools: ServerToolSettings = ServerToolSettings()
    vscode: VscodeSettings = VscodeSettings()
    embedded: EmbeddedModelSettings = EmbeddedModelSettings()
    text: AllModelsTextPromptSettings = AllModelsTextPromptSettings()
    storage: Secret = Secret("sqlite:///toolgate.db")
    storage_pool: int = 8
    redis: Secret | None = None
    records: RecordSettings = RecordSettings()
    responses: ResponsesApiSettings = ResponsesApiSettings()
    runs: DurableRunSettings = DurableRunSettings()
    log: LogSettings = LogSettings()
    source: Path | None = None
    outline: TruncatedConfigFileCheck = TruncatedConfigFileCheck()

    def is_local(self, model: ModelConfig) -> bool:
        """Return whether the model is the embedded one."""
        return any(target.upstream == BUILTIN and target.model == LOCAL for target in model.targets)

    def by_name(self) -> dict[str, ModelConfig]:
        """Map each name of every model to the model."""
        return {name: model for model in self.models for name in model.names}

    def secrets(self) -> tuple[str, ...]:
        """Return all texts that must never be shown: keys, headers, and addresses that hold a password."""
        found = [upstream.api_key for upstream in self.upstreams.values()]
        found += [value for upstream in self.upstreams.values() for value in upstream.headers.values()]
        found += [
            value for server in self.tools.mcp.values() for value in (*server.headers.values(), *server.env.values())
        ]
        found += [value for service in self.tools.http.values() for value in service.headers.values()]
        found += [server.oauth.client_secret for server in self.tools.mcp.values() if server.oauth]
        webhook = self.tools.approvals.webhook
        found += [webhook.secret] if webhook else []
        addresses = [address for address in (self.storage, self.redis) if address]
        # PostgreSQL takes a password in the query, too.
        found += [one for one in addresses if "@" in one.reveal() or "password=" in one.reveal()]
        return tuple(dict.fromkeys(secret.reveal() for secret in found if secret))
