"""The settings of server tools: their sources, their processes, the limits of a run and the approval policy."""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from toolgate.config.settings.field import KIB, MIB, about
from toolgate.config.settings.secret import Secret

Stance: TypeAlias = Literal["allow", "ask", "deny"]
ToolExecution: TypeAlias = Literal["none", "auto"]
McpTrust: TypeAlias = Literal["pinned", "always", "ask_new"]
McpGrant: TypeAlias = Literal["authorization_code", "client_credentials"]


class McpLoginSettings(Struct, frozen=True, kw_only=True):
    """How to get a token from an MCP server that wants one."""

    grant: Annotated[
        McpGrant,
        about(
            "`authorization_code` is a login of a person in a browser, `client_credentials` uses the client's id and secret."
        ),
    ] = "authorization_code"
    client_id: Annotated[
        str | None, about("The client id at the authorization server; by default Toolgate registers itself.")
    ] = None
    client_secret: Annotated[
        Secret | None, about("The client secret at the authorization server, best as ${VARIABLE}.")
    ] = None
    issuer: Annotated[
        str | None,
        about("The only authorization server to which the secret is sent; by default the one of the first login."),
    ] = None
    scope: Annotated[str | None, about("The OAuth scope to request; by default what the server asks for.")] = None
    audience: Annotated[str | None, about("The audience of tokens, if it is not the URL of the server.")] = None


class McpServerSettings(Struct, frozen=True, kw_only=True):
    """An MCP server that brings tools."""

    command: Annotated[tuple[str, ...], about("The command that starts it, for a server over stdio.")] = ()
    env: Annotated[Mapping[str, Secret], about("Environment variables of the command.")] = {}
    cwd: Annotated[str | None, about("The folder that the command runs in.")] = None
    url: Annotated[str | None, about("Its URL, for a server over streamable HTTP.")] = None
    headers: Annotated[Mapping[str, Secret], about("Headers that are sent to it.")] = {}
    oauth: Annotated[McpLoginSettings | None, about("How to get a token, if it demands one.")] = None
    prefix: Annotated[str | None, about("The prefix of its tools' names; by default the name of the server and _.")] = (
        None
    )
    trust: Annotated[
        McpTrust,
        about(
            "`pinned`: changed tools are not used until a person accepts them. `ask_new`: new tools neither."
            " `always`: all are used."
        ),
    ] = "pinned"
    tags: Annotated[tuple[str, ...], about("Tags that its tools get.")] = ()
    timeout: Annotated[Annotated[float, Meta(gt=0)] | None, about("Seconds that one call may take.")] = None
    connect_timeout: Annotated[
        float, about("Seconds that connecting may take; a command that is downloaded first needs more.", gt=0)
    ] = 10.0
    handshake: Annotated[
        bool, about("Try the handshake of the older protocol revisions first, for a server that keeps a session.")
    ] = False


class OpenApiSettings(Struct, frozen=True, kw_only=True):
    """An HTTP service whose operations are tools."""

    openapi: Annotated[str, about("Path or URL of its OpenAPI document.", min_length=1)]
    base_url: Annotated[str | None, about("The URL of the service, if it is not the one in the document.")] = None
    headers: Annotated[Mapping[str, Secret], about("Headers that are sent to it.")] = {}
    include: Annotated[
        tuple[str, ...], about("Operations that become tools, by id or as `GET /path`; an empty list means all.")
    ] = ()
    exclude: Annotated[tuple[str, ...], about("Operations that do not become tools, written in the same way.")] = ()
    timeout: Annotated[Annotated[float, Meta(gt=0)] | None, about("Seconds that one call may take.")] = None


class BuiltinToolSettings(Struct, frozen=True, kw_only=True):
    """The tools that come with the server."""

    roots: Annotated[
        tuple[str, ...], about("Folders that the file tools may read and write; without any there are no file tools.")
    ] = ()
    commands: Annotated[
        bool, about("Whether there is a tool that runs commands, in one of the roots and after approval.")
    ] = False
    disabled: Annotated[tuple[str, ...], about("Built-in tools that are turned off.")] = ()


class ToolWorkerSettings(Struct, frozen=True, kw_only=True):
    """The processes that Python tools run in."""

    count: Annotated[
        int,
        about("Most processes. One more runs for a key that has none while other keys use all of them.", ge=1, le=256),
    ] = 4
    memory: Annotated[int, about("Bytes of memory that each process may use.", ge=64 * MIB)] = 1024 * MIB
    output: Annotated[int, about("Bytes of output of one call; more is cut.", ge=1 * KIB)] = 8 * MIB
    cpu_seconds: Annotated[int, about("Seconds of processor time of one call.", ge=1)] = 600
    idle_seconds: Annotated[float, about("Seconds after which an unused process ends.", gt=0)] = 60.0
    environment: Annotated[tuple[str, ...], about("Names of environment variables that tools may see.")] = ()
    load_seconds: Annotated[float, about("Seconds that a file may take to load.", gt=0)] = 10.0


class RunLimitSettings(Struct, frozen=True, kw_only=True):
    """Limits of one run with server tools; when one is reached, the model must answer without tools. 0 means no limit."""

    rounds: Annotated[int, about("Rounds of tool calls; `max_tool_rounds` in a request overrides it.", ge=0)] = 10
    calls: Annotated[int, about("Tool calls.", ge=0)] = 128
    tokens: Annotated[int, about("Tokens of all rounds together.", ge=0)] = 0
    cost: Annotated[float, about("Cost of all rounds together, by the model's price.", ge=0)] = 0.0
    seconds: Annotated[float, about("Seconds; the time that a person takes to approve does not count.", ge=0)] = 900.0
    repeats: Annotated[int, about("How often the same call with the same arguments is run.", ge=0)] = 3
    parallel: Annotated[int, about("Calls that run at the same time.", ge=1, le=64)] = 8
    call_seconds: Annotated[float, about("Seconds of one call, unless the tool has its own timeout.", gt=0)] = 10.0
    output: Annotated[int, about("Most characters of a result that are sent to the model.", ge=1000)] = 262144


class ApprovalRuleSettings(Struct, frozen=True, kw_only=True):
    """A rule of the approval policy."""

    stance: Annotated[Stance, about("What happens with the calls that match.")]
    tools: Annotated[tuple[str, ...], about("Names or patterns of tools; an empty list means all.")] = ()
    sources: Annotated[tuple[str, ...], about("Sources such as builtin or mcp/files; an empty list means all.")] = ()
    tags: Annotated[
        tuple[str, ...], about("Tags, of which the tool has at least one; an empty list means all tools.")
    ] = ()
    callers: Annotated[tuple[str, ...], about("Names of keys; an empty list means all.")] = ()


class WebhookSettings(Struct, frozen=True, kw_only=True):
    """A URL to which every new approval is posted."""

    url: Annotated[str, about("The URL.", min_length=1)]
    secret: Annotated[Secret | None, about("The secret with which deliveries are signed, best as ${VARIABLE}.")] = None


class ApprovalSettings(Struct, frozen=True, kw_only=True):
    """When a person is asked before a tool runs."""

    rules: Annotated[tuple[ApprovalRuleSettings, ...], about("Rules; the first that matches a call decides.")] = ()
    default: Annotated[Stance, about("The stance for tools that may change something, if no rule matches.")] = "ask"
    read_only: Annotated[
        Stance, about("The stance for tools that only read, and only local data, if no rule matches.")
    ] = "allow"
    open_world: Annotated[
        Stance, about("The stance for tools that only read, but from the outside world, if no rule matches.")
    ] = "ask"
    never_auto: Annotated[
        tuple[str, ...], about("Tools of which every call is asked about, whatever was granted before.")
    ] = ()
    auto_approve: Annotated[
        bool, about("Approve every call that would be asked about, except calls of the tools in `never_auto`.")
    ] = False
    auto_approve_urls: Annotated[
        tuple[str, ...], about("URL patterns; calls whose URLs all match are approved without asking.")
    ] = ()
    auto_approve_commands: Annotated[
        tuple[tuple[str, ...], ...],
        about("Beginnings of commands as lists of words; commands that begin so are approved without asking."),
    ] = ()
    trusted: Annotated[
        tuple[str, ...],
        about(
            "Sources whose annotations count, such as that a tool only reads; tools of other sources are asked about."
        ),
    ] = ("builtin", "python", "http/*", "mcp/*")
    self_approval: Annotated[
        bool | None,
        about(
            "Whether a key may approve the calls that it asked for itself. By default it may if there is at most one key."
        ),
    ] = None
    expiry_seconds: Annotated[float, about("Seconds after which an unanswered question expires.", gt=0)] = 3600.0
    hold_seconds: Annotated[float, about("Seconds for which a stream waits for a person's answer.", ge=0)] = 120.0
    max_pending_per_run: Annotated[
        int, about("Most unapproved questions of one run; further calls that would ask are denied.", ge=1)
    ] = 20
    workspace: Annotated[
        str, about("The name of the workspace for which calls can be approved with the level `workspace`.")
    ] = ""
    webhook: Annotated[WebhookSettings | None, about("A URL to which every new question is posted.")] = None


class ServerToolSettings(Struct, frozen=True, kw_only=True):
    """The server's own tools: where they come from, and how they are run."""

    enabled: Annotated[bool, about("Whether there are server tools; ENABLE_TOOLS=false turns them off, too.")] = True
    execution: Annotated[
        ToolExecution, about("`auto` runs server tools for every request without `tool_execution`.")
    ] = "none"
    offer: Annotated[
        tuple[str, ...], about("Tools that are offered to every request without `use_server_tools`; * means all.")
    ] = ()
    builtin: Annotated[BuiltinToolSettings, about("The tools that come with the server.")] = BuiltinToolSettings()
    python: Annotated[tuple[str, ...], about("Folders and modules with Python tools.")] = ()
    mcp: Annotated[Mapping[str, McpServerSettings], about("MCP servers by name.")] = {}
    http: Annotated[Mapping[str, OpenApiSettings], about("HTTP services by name.")] = {}
    reach: Annotated[
        tuple[str, ...],
        about("Private hosts, addresses and networks that tools may reach. Public hosts are always allowed."),
    ] = ()
    context: Annotated[Mapping[str, str | bool | float], about("Values for the `when` conditions of tools.")] = {}
    group_above: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        about(
            "Number of server tools above which they are offered in groups that the model opens; by default the"
            " number of tools that the model takes."
        ),
    ] = None
    mcp_sessions: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        about(
            "Most sessions of one key with the MCP server at /mcp; 0 turns sessions off, which several nodes need."
            " By default 1000, or 0 where `redis` is set. With several workers there are none."
        ),
    ] = None
    mcp_session_seconds: Annotated[float, about("Seconds after which an unused MCP session ends.", gt=0)] = 3600.0
    workers: Annotated[ToolWorkerSettings, about("The processes that Python tools run in.")] = ToolWorkerSettings()
    limits: Annotated[RunLimitSettings, about("Limits of one run with server tools.")] = RunLimitSettings()
    approvals: Annotated[ApprovalSettings, about("When a person is asked before a tool runs.")] = ApprovalSettings()
