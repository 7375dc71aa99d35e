"""Every setting of the configuration file: its name, type, default and help, in one place.

The Structs are the table: `reading.py` checks a file against them, `reference.py` writes the documentation from them.
They are the file as a person writes it; `resolve.py` turns it into the `Config` that the server uses. Nothing here does I/O.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from toolgate.config.secret import Secret
from toolgate.dialects.dialect import Quirks
from toolgate.upstreams.catalog import Capabilities, DialectName

Scope: TypeAlias = Literal["chat", "tools", "admin"]
Level: TypeAlias = Literal["debug", "info", "warning", "error"]
LogForm: TypeAlias = Literal["auto", "json", "text"]
ToolMode: TypeAlias = Literal["native", "emulated"]
SystemMode: TypeAlias = Literal["native", "inject"]
ThinkingMode: TypeAlias = Literal["marked", "begun", "unclosed"]
Stance: TypeAlias = Literal["allow", "ask", "deny"]
ToolExecution: TypeAlias = Literal["none", "auto"]
BudgetPeriod: TypeAlias = Literal["day", "month", "total"]
McpTrust: TypeAlias = Literal["pinned", "always", "ask_new"]
McpGrant: TypeAlias = Literal["authorization_code", "client_credentials"]
KeptChats: TypeAlias = Literal["none", "asked", "all"]

KIB = 1024
MIB = 1024 * KIB


def about(text: str, **bounds: Any) -> Meta:
    """The help of a setting and the bounds of its value."""
    return Meta(description=text, **bounds)


class Partial:
    """Marks a mapping that may give some fields of a Struct; those it leaves out are decided elsewhere."""

    def __init__(self, of: type[Struct]) -> None:
        self.of = of


class Limits(Struct, frozen=True, kw_only=True):
    """What a client may send and how long it may take."""

    head_bytes: Annotated[int, about("Bytes of a request's line and headers together.", ge=1 * KIB)] = 32 * KIB
    headers: Annotated[int, about("Headers of a request.", ge=8)] = 100
    url_bytes: Annotated[int, about("Bytes of a request's path and query.", ge=256)] = 8 * KIB
    head_seconds: Annotated[float, about("Time to send the headers.", gt=0)] = 10.0
    body_bytes: Annotated[int, about("Bytes of a request's body.", ge=1 * KIB)] = 10 * MIB
    body_idle_seconds: Annotated[float, about("Silence allowed within a body.", gt=0)] = 30.0
    body_seconds: Annotated[float, about("Time to send the body.", gt=0)] = 120.0
    keep_alive_seconds: Annotated[float, about("How long an idle connection is kept.", gt=0)] = 75.0
    write_stall_seconds: Annotated[float, about("How long a client may leave an answer unread.", gt=0)] = 30.0
    connections: Annotated[int, about("Connections open at a time.", ge=1)] = 4096
    pipelined: Annotated[int, about("Requests sent ahead of their turn on one connection.", ge=1)] = 32
    websockets: Annotated[int, about("WebSockets open at a time; 0 turns them off.", ge=0)] = 1024
    websockets_per_key: Annotated[int, about("WebSockets that one key may have open at a time.", ge=1)] = 128


class Server(Struct, frozen=True, kw_only=True):
    """Where we listen and whom we let in."""

    host: Annotated[str, about("Address to listen on. Any but loopback demands a key.", min_length=1)] = "127.0.0.1"
    port: Annotated[int, about("Port to listen on; 0 takes any that is free.", ge=0, le=65535)] = 8080
    workers: Annotated[int, about("Processes that serve; 0 is one for each processor.", ge=0, le=256)] = 1
    open: Annotated[
        bool, about("Let everybody on this machine in while there is no key, also where there were keys before.")
    ] = False
    hosts: Annotated[
        tuple[str, ...], about("Values of the Host header that are served; none means any, once there are keys.")
    ] = ()
    origins: Annotated[
        tuple[str, ...], about("Web origins whose pages may call us, such as https://app.example.org.")
    ] = ()
    drain_seconds: Annotated[float, about("How long open answers may go on after a request to stop.", ge=0)] = 30.0
    keepalive_seconds: Annotated[
        float, about("Silence after which a stream gets a comment that keeps it open.", gt=0)
    ] = 15.0
    first_event_wait: Annotated[
        float, about("How long a stream waits for the first event, which decides the status code.", ge=0)
    ] = 10.0
    limits: Annotated[Limits, about("What a client may send and how long it may take.")] = Limits()


class KeyBudget(Struct, frozen=True, kw_only=True):
    """What a key may spend."""

    amount: Annotated[float, about("How much, in the currency of the models' prices.", gt=0)]
    period: Annotated[BudgetPeriod, about("In a `day` or `month` of UTC, or in `total`.")] = "month"


class Key(Struct, frozen=True, kw_only=True):
    """A key that clients present."""

    name: Annotated[str, about("Who holds it; logs and metrics say this name.")]
    key: Annotated[Secret, about("The key itself, best as ${VARIABLE}, or its digest as sha256:<64 hex digits>.")]
    scopes: Annotated[tuple[Scope, ...], about("What it may do: chat, tools (register them), admin.")] = ("chat",)
    models: Annotated[
        tuple[str, ...], about("The models it may use, by name, alias or a pattern such as gpt-*; none means all.")
    ] = ()
    tools: Annotated[
        tuple[str, ...], about("The server tools it may use: names, patterns, source/name or tag:…; none means all.")
    ] = ()
    blocked_tools: Annotated[tuple[str, ...], about("The server tools it may not use, in the same words.")] = ()
    requests_per_minute: Annotated[int, about("Requests in any sixty seconds; 0 means no limit.", ge=0)] = 0
    tokens_per_minute: Annotated[
        int, about("Tokens read and written in any sixty seconds; 0 means no limit.", ge=0)
    ] = 0
    concurrency: Annotated[int, about("Requests at a time; 0 means no limit.", ge=0)] = 0
    budget: Annotated[KeyBudget | None, about("What it may spend, by the prices of models.")] = None
    keep_chats: Annotated[
        bool | None, about("Whether all its chats are kept, or none; by default as records.chats says.")
    ] = None


class Timeouts(Struct, frozen=True, kw_only=True):
    """Seconds that an upstream may take."""

    connect: Annotated[float, about("To open a connection, name lookup and TLS included.", gt=0)] = 4.0
    first_byte: Annotated[float, about("From the request to the first byte of the answer.", gt=0)] = 120.0
    idle: Annotated[float, about("Between two pieces of an answer.", gt=0)] = 60.0
    total: Annotated[float, about("For the whole answer.", gt=0)] = 600.0


class Breaker(Struct, frozen=True, kw_only=True):
    """When an upstream that fails is left alone."""

    failures: Annotated[
        int,
        about(
            "Requests that fail in a row until it is left alone; where no other upstream could answer, only failures to"
            " connect count. 0 never does.",
            ge=0,
        ),
    ] = 5
    seconds: Annotated[float, about("How long it is left alone before it is tried again.", gt=0)] = 10.0


class UpstreamEntry(Struct, frozen=True, kw_only=True):
    """Someone who answers for models."""

    provider: Annotated[
        str | None, about("A row of the provider table, from which whatever is not said here is taken.")
    ] = None
    dialect: Annotated[DialectName | None, about("The API that it speaks; by default the provider's first.")] = None
    base_url: Annotated[str | None, about("Where it is, with or without /v1; by default the provider's.")] = None
    api_key: Annotated[
        Secret | None, about("Its key, best as ${VARIABLE}; by default the provider's usual variable.")
    ] = None
    headers: Annotated[Mapping[str, Secret], about("Headers to send with every request.")] = {}
    timeouts: Annotated[Timeouts, about("Seconds that it may take.")] = Timeouts()
    breaker: Annotated[Breaker, about("When it is left alone because it fails.")] = Breaker()
    max_connections: Annotated[int, about("Answers under way from it at a time; as many more may wait.", ge=1)] = 2000
    quirks: Annotated[
        Mapping[str, Any],
        Partial(Quirks),
        about("How it differs from its dialect; by default as the provider's row says."),
    ] = {}


class TargetEntry(Struct, frozen=True, kw_only=True):
    """One of several upstreams that serve a model."""

    upstream: Annotated[str, about("Which upstream.")]
    model: Annotated[str | None, about("The upstream's own name for the model.")] = None
    weight: Annotated[float, about("Its share of the requests, relative to the others.", gt=0)] = 1.0


class Defaults(Struct, frozen=True, kw_only=True):
    """Parameters used where a request says nothing."""

    temperature: Annotated[Annotated[float, Meta(ge=0, le=2)] | None, about("Sampling temperature.")] = None
    top_p: Annotated[Annotated[float, Meta(ge=0, le=1)] | None, about("Nucleus sampling.")] = None
    top_k: Annotated[Annotated[int, Meta(ge=0)] | None, about("Sampling among the k likeliest tokens.")] = None
    max_tokens: Annotated[Annotated[int, Meta(ge=1)] | None, about("Longest answer, in tokens.")] = None
    stop: Annotated[tuple[str, ...], about("Texts that end an answer.")] = ()
    seed: Annotated[int | None, about("Seed of the sampling.")] = None
    frequency_penalty: Annotated[
        Annotated[float, Meta(ge=-2, le=2)] | None, about("Penalty by how often a token came.")
    ] = None
    presence_penalty: Annotated[
        Annotated[float, Meta(ge=-2, le=2)] | None, about("Penalty for a token that came at all.")
    ] = None
    effort: Annotated[str | None, about("How much to think, in the upstream's words: low, medium, high …")] = None


class Price(Struct, frozen=True, kw_only=True):
    """What a million tokens cost."""

    input: Annotated[float, about("Of what the model reads.", ge=0)] = 0.0
    output: Annotated[float, about("Of what it writes.", ge=0)] = 0.0


class ModelEntry(Struct, frozen=True, kw_only=True):
    """A model that clients can ask for."""

    name: Annotated[str, about("The public name.")]
    aliases: Annotated[
        tuple[str, ...],
        about("Other names for it; `*` stands for any characters, so that `gpt-*` or `*` catch what clients ask for."),
    ] = ()
    upstream: Annotated[str | None, about("The upstream that serves it; `builtin` serves `local` and `echo`.")] = None
    model: Annotated[str | None, about("The upstream's own name for it; by default the public name.")] = None
    upstreams: Annotated[
        tuple[TargetEntry, ...], about("Several upstreams among which requests are shared, in place of one.")
    ] = ()
    fallbacks: Annotated[
        tuple[str, ...], about("Models to ask, in order, when this one cannot be had; theirs are not followed.")
    ] = ()
    retries: Annotated[int, about("Further attempts before the first byte went out.", ge=0, le=10)] = 2
    tools: Annotated[ToolMode, about("`emulated` teaches a model that only writes text to call tools.")] = "native"
    system: Annotated[SystemMode, about("`inject` puts system messages into the first user text.")] = "native"
    syntax: Annotated[
        str,
        about("The form in which an emulated model writes its calls, or `auto` to know it by its marks.", min_length=1),
    ] = "invoke"
    prompts: Annotated[
        str, about("The wording for an emulated model: full, short, lean, or a file of text.templates.", min_length=1)
    ] = "full"
    thinking: Annotated[
        ThinkingMode,
        about(
            "How an emulated model writes its reasoning: between marks, `begun` if its text starts inside it, `unclosed` if"
            " a call may end it."
        ),
    ] = "marked"
    reasks: Annotated[int, about("How often an emulated model is asked again for a call it got wrong.", ge=0, le=5)] = 1
    promote: Annotated[
        bool, about("Take a call that a model with tools of its own writes as text for the call it is meant to be.")
    ] = False
    strict: Annotated[bool, about("Refuse a call without a result instead of supplying an error result.")] = False
    whole_arguments: Annotated[
        bool,
        about("Stream a call's arguments in one piece, as `x-toolgate-arguments: whole` asks for one request."),
    ] = False
    capabilities: Annotated[
        Mapping[str, Any], Partial(Capabilities), about("What it can do; by default as the provider's row says.")
    ] = {}
    quirks: Annotated[Mapping[str, Any], Partial(Quirks), about("The same as an upstream's, and before them.")] = {}
    price: Annotated[Price, about("What a million tokens cost, for budgets.")] = Price()
    server_tools: Annotated[
        tuple[str, ...], about("The server tools it may use: names, patterns, source/name or tag:…; none means all.")
    ] = ()
    blocked_tools: Annotated[tuple[str, ...], about("The server tools it may not use, in the same words.")] = ()
    defaults: Annotated[Defaults, about("Parameters used where a request says nothing.")] = Defaults()


class McpLogin(Struct, frozen=True, kw_only=True):
    """How to get a token from an MCP server that wants one."""

    grant: Annotated[McpGrant, about("A person's login in a browser, or a machine's own credentials.")] = (
        "authorization_code"
    )
    client_id: Annotated[str | None, about("Our id there; by default we register ourselves.")] = None
    client_secret: Annotated[Secret | None, about("Our secret there, best as ${VARIABLE}.")] = None
    issuer: Annotated[
        str | None,
        about("The authorization server that our secret may go to; by default the one of the first login."),
    ] = None
    scope: Annotated[str | None, about("What to ask for.")] = None
    audience: Annotated[str | None, about("Who tokens are made out to, if not to the server's own address.")] = None


class McpServer(Struct, frozen=True, kw_only=True):
    """An MCP server that brings tools."""

    command: Annotated[tuple[str, ...], about("The command that starts it, for one that speaks over stdio.")] = ()
    env: Annotated[Mapping[str, Secret], about("Environment variables of the command.")] = {}
    cwd: Annotated[str | None, about("The folder that the command runs in.")] = None
    url: Annotated[str | None, about("Where it is, for one that speaks streamable HTTP.")] = None
    headers: Annotated[Mapping[str, Secret], about("Headers to send to it.")] = {}
    oauth: Annotated[McpLogin | None, about("How to get a token from it, where it wants one.")] = None
    prefix: Annotated[str | None, about("What stands before its tools' names; by default its name and _.")] = None
    trust: Annotated[
        McpTrust, about("`pinned` puts changed tools aside until accepted, `ask_new` new ones too, `always` none.")
    ] = "pinned"
    tags: Annotated[tuple[str, ...], about("Tags that its tools get.")] = ()
    timeout: Annotated[Annotated[float, Meta(gt=0)] | None, about("Seconds that one call may take.")] = None
    connect_timeout: Annotated[
        float, about("Seconds that connecting may take; a command that installs itself first needs more.", gt=0)
    ] = 10.0
    handshake: Annotated[bool, about("Try the older handshake first, for a server that keeps a session.")] = False


class HttpTools(Struct, frozen=True, kw_only=True):
    """An HTTP service whose operations are tools."""

    openapi: Annotated[str, about("Path or URL of its OpenAPI document.", min_length=1)]
    base_url: Annotated[str | None, about("Where it is, if not where the document says.")] = None
    headers: Annotated[Mapping[str, Secret], about("Headers to send to it.")] = {}
    include: Annotated[tuple[str, ...], about("Operations to take, by id or as `GET /path`; none means all.")] = ()
    exclude: Annotated[tuple[str, ...], about("Operations to leave out, in the same words.")] = ()
    timeout: Annotated[Annotated[float, Meta(gt=0)] | None, about("Seconds that one call may take.")] = None


class BuiltinTools(Struct, frozen=True, kw_only=True):
    """The tools that come with the server."""

    roots: Annotated[
        tuple[str, ...], about("Folders whose files the file tools may see; without any there are none.")
    ] = ()
    commands: Annotated[bool, about("Whether there is a tool that runs commands, in a root and after approval.")] = (
        False
    )
    disabled: Annotated[tuple[str, ...], about("Built-in tools that are not wanted.")] = ()


class Workers(Struct, frozen=True, kw_only=True):
    """The processes that Python tools run in."""

    count: Annotated[
        int,
        about(
            "How many there are at most, and one more for a key that has none while others have them all.", ge=1, le=256
        ),
    ] = 4
    memory: Annotated[int, about("Bytes of memory that each may use.", ge=64 * MIB)] = 1024 * MIB
    output: Annotated[int, about("Bytes of output that one call may give.", ge=1 * KIB)] = 8 * MIB
    cpu_seconds: Annotated[int, about("Processor time of one call.", ge=1)] = 600
    idle_seconds: Annotated[float, about("After which an unused one ends.", gt=0)] = 60.0
    environment: Annotated[tuple[str, ...], about("Names of environment variables that tools may see.")] = ()
    load_seconds: Annotated[float, about("Time that a file may take to load.", gt=0)] = 10.0


class RunLimits(Struct, frozen=True, kw_only=True):
    """What one run with server tools may use up before it must answer with what it has; 0 means no limit."""

    rounds: Annotated[int, about("Rounds of tool calls; a request may say `max_tool_rounds`.", ge=0)] = 10
    calls: Annotated[int, about("Tool calls.", ge=0)] = 128
    tokens: Annotated[int, about("Tokens of all rounds together.", ge=0)] = 0
    cost: Annotated[float, about("Cost of all rounds together, by the model's price.", ge=0)] = 0.0
    seconds: Annotated[float, about("Time; a person's thinking time does not count.", ge=0)] = 900.0
    repeats: Annotated[int, about("How often the very same call is run.", ge=0)] = 3
    parallel: Annotated[int, about("Calls that run at a time.", ge=1, le=64)] = 8
    call_seconds: Annotated[float, about("Time of one call, unless its tool says otherwise.", gt=0)] = 10.0
    output: Annotated[int, about("Characters of a result that reach the model.", ge=1000)] = 262144


class ApprovalRule(Struct, frozen=True, kw_only=True):
    """What holds for the calls that it fits."""

    stance: Annotated[Stance, about("What happens with calls that fit.")]
    tools: Annotated[tuple[str, ...], about("Names or patterns of tools; none means all.")] = ()
    sources: Annotated[tuple[str, ...], about("Sources such as builtin or mcp/files; none means all.")] = ()
    tags: Annotated[tuple[str, ...], about("Tags of which a tool has one; none means any tool.")] = ()
    callers: Annotated[tuple[str, ...], about("Names of keys; none means all.")] = ()


class Webhook(Struct, frozen=True, kw_only=True):
    """Who is told of every new approval."""

    url: Annotated[str, about("Where it is posted to.", min_length=1)]
    secret: Annotated[Secret | None, about("The key of its signature, best as ${VARIABLE}.")] = None


class Approvals(Struct, frozen=True, kw_only=True):
    """When a person is asked before a tool runs."""

    rules: Annotated[tuple[ApprovalRule, ...], about("Read in order; the first that fits decides.")] = ()
    default: Annotated[Stance, about("For tools that may change something, where no rule fits.")] = "ask"
    read_only: Annotated[Stance, about("For tools that only read and reach nothing outside.")] = "allow"
    open_world: Annotated[Stance, about("For tools that only read, but from the outside world.")] = "ask"
    never_auto: Annotated[tuple[str, ...], about("Tools for which every single call is asked about.")] = ()
    auto_approve: Annotated[bool, about("Ask about nothing that may be asked about; not for never_auto.")] = False
    auto_approve_urls: Annotated[tuple[str, ...], about("URL patterns that are not asked about.")] = ()
    auto_approve_commands: Annotated[
        tuple[tuple[str, ...], ...], about("Beginnings of commands, word by word, that are not asked about.")
    ] = ()
    trusted: Annotated[
        tuple[str, ...], about("Sources that are believed when they say that a tool only reads, or destroys nothing.")
    ] = ("builtin", "python", "http/*", "mcp/*")
    self_approval: Annotated[
        bool | None,
        about("Whether a caller may answer for their own calls; by default where there is one key at most."),
    ] = None
    expiry_seconds: Annotated[float, about("How long a question stands.", gt=0)] = 3600.0
    hold_seconds: Annotated[float, about("How long a stream is held for the answer.", ge=0)] = 120.0
    max_pending_per_run: Annotated[int, about("Questions that one run may put.", ge=1)] = 20
    workspace: Annotated[str, about("The workspace for which consent can be given.")] = ""
    webhook: Annotated[Webhook | None, about("Who is told of every new question.")] = None


class Tools(Struct, frozen=True, kw_only=True):
    """The server's own tools: where they come from, and how they are run."""

    enabled: Annotated[bool, about("Whether there are server tools; ENABLE_TOOLS=false turns them off, too.")] = True
    execution: Annotated[
        ToolExecution, about("`auto` runs server tools for every request that does not say `tool_execution`.")
    ] = "none"
    offer: Annotated[
        tuple[str, ...], about("Tools offered to every request that does not say `use_server_tools`; * means all.")
    ] = ()
    builtin: Annotated[BuiltinTools, about("The tools that come with the server.")] = BuiltinTools()
    python: Annotated[tuple[str, ...], about("Folders and modules with Python tools.")] = ()
    mcp: Annotated[Mapping[str, McpServer], about("MCP servers by name.")] = {}
    http: Annotated[Mapping[str, HttpTools], about("HTTP services by name.")] = {}
    reach: Annotated[
        tuple[str, ...], about("Private hosts, addresses and networks that tools may reach; public ones they may.")
    ] = ()
    context: Annotated[Mapping[str, str | bool | float], about("Context keys for the when-clauses of tools.")] = {}
    group_above: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        about("Server tools above which they are grouped behind others; by default what the model takes."),
    ] = None
    mcp_sessions: Annotated[
        int, about("Sessions that one key may have with our own MCP server; 0 for none, with several nodes.", ge=0)
    ] = 1000
    mcp_session_seconds: Annotated[float, about("After which an unused session ends.", gt=0)] = 3600.0
    workers: Annotated[Workers, about("The processes that Python tools run in.")] = Workers()
    limits: Annotated[RunLimits, about("What one run may use up.")] = RunLimits()
    approvals: Annotated[Approvals, about("When a person is asked first.")] = Approvals()


class Embedded(Struct, frozen=True, kw_only=True):
    """The model `local`, which runs on this machine; its weights are fetched once."""

    enabled: Annotated[
        bool, about("Whether it may be fetched and run; ENABLE_EMBEDDED_MODEL=false turns it off, too.")
    ] = True
    model: Annotated[
        str,
        about("Its weights: a name that `toolgate models weights` lists, or the path of a GGUF file.", min_length=1),
    ] = "qwen2.5-coder-1.5b"
    folder: Annotated[str | None, about("Where weights are kept; by default the user's cache folder.")] = None
    context: Annotated[int, about("Tokens of input and output together.", ge=512)] = 8192
    threads: Annotated[Annotated[int, Meta(ge=1)] | None, about("Processors to use; by default all there are.")] = None
    max_tokens: Annotated[int, about("Longest answer where a request does not say.", ge=1)] = 2048
    queue: Annotated[int, about("Requests that may wait while it answers another.", ge=0)] = 16
    wait: Annotated[float, about("Seconds that a request waits for its turn, or for the weights.", gt=0)] = 120.0


class TextPrompts(Struct, frozen=True, kw_only=True):
    """What models that only write text are told."""

    templates: Annotated[str | None, about("A folder with templates of your own, which go before those shipped.")] = (
        None
    )
    instructions: Annotated[str, about("Instructions added for every emulated model.")] = ""
    rules: Annotated[tuple[str, ...], about("Files whose text is added as rules.")] = ()


class KeepDays(Struct, frozen=True, kw_only=True):
    """Days for which records are kept; 0 means until somebody deletes them."""

    responses: Annotated[int, about("Responses that nobody has continued since.", ge=0)] = 30
    conversations: Annotated[int, about("Conversation objects, from when they were made.", ge=0)] = 0
    chats: Annotated[int, about("Chats, from the last thing said in them.", ge=0)] = 30
    invocations: Annotated[int, about("What is noted of runs of server tools.", ge=0)] = 90
    usage: Annotated[int, about("What keys have used, day by day.", ge=0)] = 400
    approvals: Annotated[int, about("Approvals that are closed.", ge=0)] = 90


class Records(Struct, frozen=True, kw_only=True):
    """What is kept of what clients do, and for how long."""

    chats: Annotated[
        KeptChats, about("Which plain chats are kept: `none`, those `asked` for by `store: true`, or `all`.")
    ] = "asked"
    arguments: Annotated[
        bool, about("Keep the arguments of server tools with their runs, and not only a digest of them.")
    ] = False
    days: Annotated[KeepDays, about("Days for which records are kept; 0 means until they are deleted.")] = KeepDays()


class Responses(Struct, frozen=True, kw_only=True):
    """What requests may continue, and responses that are made in the background."""

    past_bytes: Annotated[
        int,
        about("Bytes of earlier turns, conversations and referenced items that a request may continue.", ge=1 * KIB),
    ] = 16 * MIB
    past_items: Annotated[int, about("Items of the same.", ge=1)] = 10_000

    background_per_caller: Annotated[
        int, about("Responses of one key that may be made in the background at a time, on all nodes.", ge=1)
    ] = 16
    stream_bytes: Annotated[
        int, about("Bytes of events that are kept of a streamed one, so that it can be resumed.", ge=1)
    ] = 16 * 1024 * 1024
    stream_keep_seconds: Annotated[float, about("For how long after its end.", ge=0)] = 86_400.0


class Runs(Struct, frozen=True, kw_only=True):
    """How runs in the background survive their process."""

    lease_seconds: Annotated[
        float, about("After which another node goes on with the runs of one that is not heard of any more.", ge=1)
    ] = 6.0
    look_seconds: Annotated[
        float, about("How often a node says that it is there, and looks for runs that nobody has.", gt=0, le=60)
    ] = 2.0
    crashes: Annotated[int, about("Crashes without any progress after which a run is given up.", ge=1)] = 3
    ask_again: Annotated[
        bool,
        about("Ask a person whether a call that was cut off shall be run again; otherwise its outcome is unknown."),
    ] = True


class Log(Struct, frozen=True, kw_only=True):
    """What is logged and how."""

    level: Annotated[Level, about("The least level that is written.")] = "info"
    format: Annotated[LogForm, about("`json`, `text`, or `auto`: text on a terminal, JSON elsewhere.")] = "auto"


LOCAL = ModelEntry(name="local", upstream="builtin", model="local")
ECHO = ModelEntry(name="echo", upstream="builtin", model="echo")


class File(Struct, frozen=True, kw_only=True):
    """The configuration file."""

    server: Annotated[Server, about("Where we listen and whom we let in.")] = Server()
    keys: Annotated[tuple[Key, ...], about("Keys that clients present; without any, only loopback is served.")] = ()
    upstreams: Annotated[Mapping[str, UpstreamEntry], about("Who answers for models, by name.")] = {}
    models: Annotated[
        tuple[ModelEntry, ...], about("Models that clients can ask for; without any, the built-in `local` and `echo`.")
    ] = (LOCAL, ECHO)
    default_model: Annotated[
        str | None, about("The model for requests that name none, by name or alias; by default the first of `models`.")
    ] = None
    tools: Annotated[Tools, about("Where the server's own tools come from.")] = Tools()
    embedded: Annotated[Embedded, about("The model `local`, which runs on this machine.")] = Embedded()
    text: Annotated[TextPrompts, about("What models that only write text are told.")] = TextPrompts()
    storage: Annotated[Secret, about("Where conversations and runs are kept: sqlite:///… or postgresql://…")] = Secret(
        "sqlite:///toolgate.db"
    )
    storage_pool: Annotated[
        int, about("Connections that this node keeps to PostgreSQL at most; SQLite needs one.", ge=1, le=100)
    ] = 8
    redis: Annotated[Secret | None, about("Where several nodes share their counts: redis://…")] = None
    records: Annotated[Records, about("What is kept of what clients do, and for how long.")] = Records()
    responses: Annotated[Responses, about("Responses that are made in the background.")] = Responses()
    runs: Annotated[Runs, about("How runs in the background survive their process.")] = Runs()
    log: Annotated[Log, about("What is logged and how.")] = Log()
