"""The settings of upstreams and of the models that they serve, the local model and text prompts included."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from toolgate.config.settings.field import PartialStructMarker, about
from toolgate.config.settings.secret import Secret
from toolgate.dialects.dialect import Quirks
from toolgate.upstreams.catalog import DialectName, ModelCapabilities

ToolMode: TypeAlias = Literal["native", "emulated"]
SystemMode: TypeAlias = Literal["native", "inject"]
ThinkingMode: TypeAlias = Literal["marked", "begun", "unclosed"]


class TimeoutSettings(Struct, frozen=True, kw_only=True):
    """Seconds that an upstream may take."""

    connect: Annotated[float, about("To open a connection, name lookup and TLS included.", gt=0)] = 4.0
    first_byte: Annotated[float, about("From the request to the first byte of the answer.", gt=0)] = 120.0
    idle: Annotated[float, about("Between two pieces of an answer.", gt=0)] = 60.0
    total: Annotated[float, about("For the whole answer.", gt=0)] = 600.0


class BreakerSettings(Struct, frozen=True, kw_only=True):
    """When no requests are sent to a failing upstream."""

    failures: Annotated[
        int,
        about(
            "Failed requests in a row after which no requests are sent to it for a while. If the model has no other"
            " upstream,"
            " only failures to connect count. 0 turns this off.",
            ge=0,
        ),
    ] = 5
    seconds: Annotated[float, about("Seconds before it is tried again.", gt=0)] = 10.0


class UpstreamSettings(Struct, frozen=True, kw_only=True):
    """A service that answers requests to models."""

    provider: Annotated[
        str | None, about("A provider of the table under Upstreams; it gives what is not set here.")
    ] = None
    dialect: Annotated[
        DialectName | None, about("The API that it speaks; by default the first API of the provider.")
    ] = None
    base_url: Annotated[str | None, about("Its URL, with or without /v1; by default the provider's.")] = None
    api_key: Annotated[
        Secret | None,
        about("The key for it, best as ${VARIABLE}; by default the environment variable of the provider."),
    ] = None
    headers: Annotated[Mapping[str, Secret], about("Headers that are sent with every request.")] = {}
    timeouts: Annotated[TimeoutSettings, about("Seconds that it may take to answer.")] = TimeoutSettings()
    breaker: Annotated[BreakerSettings, about("When no requests are sent to it because it fails.")] = BreakerSettings()
    max_connections: Annotated[int, about("Most requests to it at the same time; as many more wait.", ge=1)] = 2000
    quirks: Annotated[
        Mapping[str, Any],
        PartialStructMarker(Quirks),
        about("How it differs from its dialect; by default what the provider table says."),
    ] = {}


class TargetSettings(Struct, frozen=True, kw_only=True):
    """One of several upstreams that serve a model."""

    upstream: Annotated[str, about("The name of the upstream.")]
    model: Annotated[str | None, about("The upstream's own name for the model.")] = None
    weight: Annotated[float, about("Its share of the requests, relative to the other upstreams.", gt=0)] = 1.0


class SamplingDefaultSettings(Struct, frozen=True, kw_only=True):
    """Parameters for requests that do not set them."""

    temperature: Annotated[Annotated[float, Meta(ge=0, le=2)] | None, about("Sampling temperature.")] = None
    top_p: Annotated[Annotated[float, Meta(ge=0, le=1)] | None, about("Nucleus sampling.")] = None
    top_k: Annotated[Annotated[int, Meta(ge=0)] | None, about("Sampling among the k likeliest tokens.")] = None
    max_tokens: Annotated[Annotated[int, Meta(ge=1)] | None, about("Most tokens of an answer.")] = None
    stop: Annotated[tuple[str, ...], about("Texts that end an answer.")] = ()
    seed: Annotated[int | None, about("Seed of the sampling.")] = None
    frequency_penalty: Annotated[
        Annotated[float, Meta(ge=-2, le=2)] | None, about("Penalty by how often a token occurred.")
    ] = None
    presence_penalty: Annotated[
        Annotated[float, Meta(ge=-2, le=2)] | None, about("Penalty for every token that occurred.")
    ] = None
    effort: Annotated[str | None, about("How much to think, as the upstream calls it: low, medium, high …")] = None


class PriceSettings(Struct, frozen=True, kw_only=True):
    """The price of a million tokens."""

    input: Annotated[float, about("The price of a million input tokens.", ge=0)] = 0.0
    output: Annotated[float, about("The price of a million output tokens.", ge=0)] = 0.0


class ModelSettings(Struct, frozen=True, kw_only=True):
    """A model that clients can ask for."""

    name: Annotated[str, about("The public name.")]
    aliases: Annotated[
        tuple[str, ...],
        about(
            "Other names of the model. `*` stands for any characters, so that `gpt-*` or `*` matches the names that"
            " clients ask for."
        ),
    ] = ()
    upstream: Annotated[str | None, about("The upstream that serves it; `builtin` serves `local` and `echo`.")] = None
    model: Annotated[str | None, about("The upstream's own name for it; by default the public name.")] = None
    upstreams: Annotated[
        tuple[TargetSettings, ...], about("Several upstreams that share the requests, instead of one `upstream`.")
    ] = ()
    fallbacks: Annotated[
        tuple[str, ...],
        about("Models to ask, in this order, when this one fails; the fallbacks of a fallback are not used."),
    ] = ()
    retries: Annotated[
        int, about("How often a failed request is repeated, as long as the client has received nothing.", ge=0, le=10)
    ] = 2
    tools: Annotated[
        ToolMode,
        about(
            "`emulated` describes the tools in the prompt and reads calls from the text, for a model without tool"
            " calls of its own."
        ),
    ] = "native"
    system: Annotated[SystemMode, about("`inject` puts system messages into the first user text.")] = "native"
    syntax: Annotated[
        str,
        about("The form in which an emulated model writes its calls, or `auto` to recognise it.", min_length=1),
    ] = "invoke"
    prompts: Annotated[
        str,
        about(
            "The prompt templates of an emulated model: full, short, lean, or a file in text.templates.", min_length=1
        ),
    ] = "full"
    thinking: Annotated[
        ThinkingMode,
        about(
            "How an emulated model writes its reasoning: `marked` between tags, `begun` if its text starts inside"
            " the reasoning,"
            " `unclosed` if a call may end it."
        ),
    ] = "marked"
    reasks: Annotated[
        int, about("How often an emulated model is asked again after a call that cannot be used.", ge=0, le=5)
    ] = 1
    promote: Annotated[
        bool, about("Turn calls that a model writes as text, instead of as tool calls, into tool calls.")
    ] = False
    strict: Annotated[
        bool, about("Refuse a history in which a call has no result; by default an error result is added.")
    ] = False
    whole_arguments: Annotated[
        bool,
        about(
            "Stream the arguments of a call in one piece; the header `x-toolgate-arguments: whole` does so for one request."
        ),
    ] = False
    capabilities: Annotated[
        Mapping[str, Any],
        PartialStructMarker(ModelCapabilities),
        about("What the model can do; by default what the provider table says."),
    ] = {}
    quirks: Annotated[
        Mapping[str, Any],
        PartialStructMarker(Quirks),
        about("Like those of an upstream; they take precedence over those."),
    ] = {}
    price: Annotated[
        PriceSettings, about("The price of a million tokens. Budgets and costs count only models with a price.")
    ] = PriceSettings()
    server_tools: Annotated[
        tuple[str, ...],
        about("The server tools that it may use: names, patterns, source/name or tag:…; an empty list means all."),
    ] = ()
    blocked_tools: Annotated[
        tuple[str, ...], about("The server tools that it may not use, written in the same way.")
    ] = ()
    defaults: Annotated[SamplingDefaultSettings, about("Parameters for requests that do not set them.")] = (
        SamplingDefaultSettings()
    )


class EmbeddedModelSettings(Struct, frozen=True, kw_only=True):
    """The model `local`, which runs on this machine; its weights are downloaded once."""

    enabled: Annotated[
        bool,
        about(
            "Whether the model may be downloaded and run; the variable ENABLE_EMBEDDED_MODEL=false turns it off, too."
        ),
    ] = True
    model: Annotated[
        str,
        about("Its weights: a name that `toolgate models weights` lists, or the path of a GGUF file.", min_length=1),
    ] = "qwen2.5-coder-1.5b"
    folder: Annotated[str | None, about("Where weights are kept; by default the user's cache folder.")] = None
    context: Annotated[int, about("Most tokens of input and output together.", ge=512)] = 8192
    threads: Annotated[Annotated[int, Meta(ge=1)] | None, about("Processors to use; by default all there are.")] = None
    max_tokens: Annotated[int, about("Most tokens of an answer, if the request does not say.", ge=1)] = 2048
    queue: Annotated[int, about("Most requests that wait while another is answered.", ge=0)] = 16
    wait: Annotated[float, about("Seconds for which a request waits for its turn or for the weights.", gt=0)] = 120.0


class AllModelsTextPromptSettings(Struct, frozen=True, kw_only=True):
    """What the prompts of all models that only write text share."""

    templates: Annotated[
        str | None, about("A folder with your own templates; they take precedence over those of Toolgate.")
    ] = None
    instructions: Annotated[str, about("Instructions added for every emulated model.")] = ""
    rules: Annotated[tuple[str, ...], about("Files whose text is added as rules.")] = ()
