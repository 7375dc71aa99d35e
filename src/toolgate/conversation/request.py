"""Define the request to a model, independent of any dialect: messages, tools, tool choice and settings."""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from toolgate.conversation.message import NO_EXTRA, Extra, Message
from toolgate.conversation.usage_tally import UsageTally

ToolKind: TypeAlias = Literal["function", "freeform", "hosted"]


class ToolDef(Struct, frozen=True):
    """A tool offered to the model.

    A `function` takes JSON by its schema, a `freeform` tool takes text (perhaps by the grammar in `format`),
    a `hosted` one is run by the provider and known to its own dialect only, which finds it complete in `extra`.
    `namespace` groups functions where a dialect has namespaces.
    """

    name: str
    description: str | None = None
    input_schema: Mapping[str, Any] | None = None
    strict: bool | None = None
    kind: ToolKind = "function"
    format: Mapping[str, Any] | None = None
    namespace: str | None = None
    extra: Extra = NO_EXTRA


class ToolChoice(Struct, frozen=True):
    """Whether the model may, must or must not call tools; `names` restricts it to those; `parallel` None is unspecified."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()
    parallel: bool | None = None


class ApprovalResponse(Struct, frozen=True):
    """The client's answer to an approval request."""

    approval: str
    approve: bool
    reason: str | None = None


class ToolServer(Struct, frozen=True):
    """A tool server that a request names and whose tools the gateway offers for it.

    `allowed` None means all of its tools. `approval_required` are the tools whose calls need approval, None meaning all
    but those in `approval_exempt`.
    """

    label: str
    url: str | None = None
    allowed: frozenset[str] | None = None
    approval_required: frozenset[str] | None = frozenset()
    approval_exempt: frozenset[str] = frozenset()


class StructuredOutputFormat(Struct, frozen=True):
    """Text by a JSON Schema, or any JSON object when `schema` is None."""

    schema: Mapping[str, Any] | None = None
    name: str = "answer"
    description: str | None = None
    strict: bool | None = None


def schema_with_description(output: StructuredOutputFormat) -> Mapping[str, Any] | None:
    """Return the schema with its description inside, for an upstream that has no other field for it."""
    if output.schema is None or output.description is None or "description" in output.schema:
        return output.schema
    return {"description": output.description, **output.schema}


class ReasoningSettings(Struct, frozen=True):
    """How much the model should reason: an effort level, a token budget, or both; `summary` asks for a summary.

    With `adaptive` the model decides whether to reason at all.
    """

    enabled: bool = True
    effort: str | None = None
    budget: int | None = None
    summary: str | None = None
    adaptive: bool = False


def effort_of(thinking: ReasoningSettings) -> str | None:
    """Return the effort level for an upstream that takes nothing else; None leaves it to the model.

    A token budget is mapped to the nearest level.
    """
    if not thinking.enabled:
        return "none"
    if thinking.effort:
        return thinking.effort
    if thinking.budget is not None:
        # The other way round, `dialects/anthropic` encodes low as 2,048 tokens, medium as 8,192 and high as 16,384.
        return "low" if thinking.budget <= 2048 else "medium" if thinking.budget <= 12288 else "high"
    return None if thinking.adaptive or thinking.summary else "medium"


class RequestSettings(Struct, frozen=True):
    """Sampling, limits and options; None means the upstream's default. `service_tier` is one of OpenAI's values."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    output: StructuredOutputFormat | None = None
    thinking: ReasoningSettings | None = None
    user: str | None = None
    choices: int = 1
    verbosity: str | None = None
    service_tier: str | None = None
    cache_key: str | None = None
    cache_retention: str | None = None
    safety_identifier: str | None = None
    metadata: Mapping[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


NO_SETTINGS = RequestSettings()


# Settings for the account, the cache and the abuse checks of a hosted provider, by their fields in OpenAI's APIs.
HOSTED_SETTINGS: Mapping[str, str] = {
    "user": "user",
    "service_tier": "service_tier",
    "prompt_cache_key": "cache_key",
    "prompt_cache_retention": "cache_retention",
    "safety_identifier": "safety_identifier",
    "metadata": "metadata",
}


class OptionalSettingsEncoder:
    """Two or more settings that few requests specify and an encoder treats alike, by their field in the dialect.

    All are read at once, and one comparison shows that a request specifies none of them.
    """

    def __init__(self, **names: str) -> None:
        self._fields = tuple(names)
        self._read = attrgetter(*names.values())  # of two names or more it returns a tuple
        self._unset = self._read(NO_SETTINGS)

    def fields(self, settings: RequestSettings) -> dict[str, Any]:
        """Return the fields of the settings that the request specifies."""
        values = self._read(settings)
        if values == self._unset:
            return {}
        return {name: value for name, value in zip(self._fields, values, strict=True) if value is not None}

    def warnings(self, settings: RequestSettings) -> list[str]:
        """Return a warning for each specified setting, for a dialect that has no field for any of them."""
        values = self._read(settings)
        if values == self._unset:
            return []
        given = zip(self._fields, values, strict=True)
        # False and 0 ask for what happens anyway, and need no warning; a seed of 0 is a seed like any other.
        return [f"{name} has no place here" for name, value in given if value or (name == "seed" and value == 0)]


class ModelRequest(Struct, frozen=True):
    """A request to a model: the conversation so far, the offered tools and the settings of the answer.

    `tool_choice` None means that the client did not specify it.
    `dialect` is the client's; `relay` permits passing an answer in that dialect on unchanged.
    `warnings` lists what was changed or dropped so far; `headers` are headers of the client that an upstream of the same
    dialect should receive. `decisions` answer approval requests.
    `caller` is the name of the client's key: upstreams share their slots among callers, and peers keep conversations of
    different callers apart. `tally` adds up the usage of every upstream that is asked.
    `request_id` is the same for all questions that one request of a client leads to.
    `editor` names the window of an editor whose models may answer, empty for any window; None permits none.
    """

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolDef, ...] = ()
    tool_choice: ToolChoice | None = None
    settings: RequestSettings = NO_SETTINGS
    stream: bool = False
    dialect: str = ""
    extra: Extra = NO_EXTRA
    warnings: tuple[str, ...] = ()
    relay: bool = True
    headers: Mapping[str, str] = {}
    decisions: tuple[ApprovalResponse, ...] = ()
    caller: str = ""
    tally: UsageTally | None = None
    editor: str | None = None
    request_id: str = ""
    small: bool = False  # known to be small, so that it is not measured before it is encoded
