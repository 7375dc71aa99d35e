"""The configuration as the server uses it: every default filled in, every name resolved. Values only."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from toolgate.config.secret import Secret
from toolgate.config.settings import (
    Breaker,
    Embedded,
    Key,
    Log,
    Price,
    Records,
    Responses,
    Runs,
    Server,
    SystemMode,
    TextPrompts,
    ThinkingMode,
    Timeouts,
    ToolMode,
    Tools,
)
from toolgate.conversation.request import Settings
from toolgate.dialects.dialect import Quirks
from toolgate.upstreams.catalog import Capabilities, DialectName

BUILTIN = "builtin"
"""The upstream that is always there: it serves `local`, the model on this machine, and `echo`."""

LOCAL = "local"


class Upstream(Struct, frozen=True, kw_only=True):
    """Someone who answers for models; a dialect's paths are added to `base_url`, which has no slash at its end."""

    name: str
    dialect: DialectName
    base_url: str
    api_key: Secret | None = None
    headers: Mapping[str, Secret] = {}
    timeouts: Timeouts = Timeouts()
    breaker: Breaker = Breaker()
    max_connections: int = 2000
    quirks: Quirks = Quirks()
    provider: str | None = None


class Target(Struct, frozen=True, kw_only=True):
    """One upstream of a model: its own name for the model, its share of the requests, how to speak to it."""

    upstream: str
    model: str
    weight: float = 1.0
    quirks: Quirks = Quirks()


class Model(Struct, frozen=True, kw_only=True):
    """A model that clients can ask for; there is at least one target, and fallbacks are public names."""

    name: str
    aliases: tuple[str, ...] = ()
    targets: tuple[Target, ...]
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
    price: Price = Price()
    server_tools: tuple[str, ...] = ()
    blocked_tools: tuple[str, ...] = ()
    capabilities: Capabilities = Capabilities()
    defaults: Settings = Settings()

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that it goes by."""
        return (self.name, *self.aliases)


ECHO = Model(name="echo", targets=(Target(upstream=BUILTIN, model="echo"),))


class Outline(Struct, frozen=True, kw_only=True):
    """What a file that was cut off is known by: the settings at its top level, and whether its last line has an end."""

    sections: frozenset[str] = frozenset()
    ends_line: bool = False


class Config(Struct, frozen=True, kw_only=True):
    """All of it; `source` is the file it came from, None for the built-in defaults."""

    server: Server = Server()
    keys: tuple[Key, ...] = ()
    upstreams: Mapping[str, Upstream] = {}
    models: tuple[Model, ...] = (ECHO,)
    default_model: str | None = None
    tools: Tools = Tools()
    embedded: Embedded = Embedded()
    text: TextPrompts = TextPrompts()
    storage: Secret = Secret("sqlite:///toolgate.db")
    storage_pool: int = 8
    redis: Secret | None = None
    records: Records = Records()
    responses: Responses = Responses()
    runs: Runs = Runs()
    log: Log = Log()
    source: Path | None = None
    outline: Outline = Outline()

    def is_local(self, model: Model) -> bool:
        """Whether the model runs on this machine."""
        return any(target.upstream == BUILTIN and target.model == LOCAL for target in model.targets)

    def by_name(self) -> dict[str, Model]:
        """Every model under each of its names."""
        return {name: model for model in self.models for name in model.names}

    def secrets(self) -> tuple[str, ...]:
        """What must never be shown: the upstreams' keys and headers, and addresses that hold a password."""
        found = [upstream.api_key for upstream in self.upstreams.values()]
        found += [value for upstream in self.upstreams.values() for value in upstream.headers.values()]
        found += [
            value for server in self.tools.mcp.values() for value in (*server.headers.values(), *server.env.values())
        ]
        found += [value for service in self.tools.http.values() for value in service.headers.values()]
        found += [server.oauth.client_secret for server in self.tools.mcp.values() if server.oauth]
        webhook = self.tools.approvals.webhook
        found += [webhook.secret] if webhook else []
        found += [address for address in (self.storage, self.redis) if address and _holds_password(address.reveal())]
        return tuple(dict.fromkeys(secret.reveal() for secret in found if secret))


def _holds_password(address: str) -> bool:
    """PostgreSQL takes one behind the question mark, too."""
    return "@" in address or "password=" in address
