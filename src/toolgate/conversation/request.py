"""What a client asks of a model, in no dialect."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from toolgate.conversation.message import NO_EXTRA, Extra, Message
from toolgate.conversation.tally import UsageTally

ToolKind: TypeAlias = Literal["function", "freeform", "hosted"]


class ToolDef(Struct, frozen=True):
    """A tool offered to the model.

    A `function` takes JSON by its schema, a `freeform` tool takes text (perhaps by the grammar in `format`),
    a `hosted` one is run by the provider and known to its own dialect alone, which finds it whole in `extra`.
    `namespace` groups functions where a dialect has that notion.
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
    """Whether the model may, must or must not call; `names` narrows it to those tools; `parallel` None means unsaid."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()
    parallel: bool | None = None


class Decision(Struct, frozen=True):
    """The client's answer to an approval that it was asked for."""

    approval: str
    approve: bool
    reason: str | None = None


class ToolServer(Struct, frozen=True):
    """A server of tools that a request names, to be used on its behalf.

    `allowed` None means all of its tools. `asking` are those for which a person is to be asked first, None meaning all but
    those in `unasked`.
    """

    label: str
    url: str | None = None
    allowed: tuple[str, ...] | None = None
    asking: frozenset[str] | None = frozenset()
    unasked: frozenset[str] = frozenset()


class OutputFormat(Struct, frozen=True):
    """Text by a JSON Schema, or any JSON object when `schema` is None."""

    schema: Mapping[str, Any] | None = None
    name: str = "answer"
    description: str | None = None
    strict: bool | None = None


def described(output: OutputFormat) -> Mapping[str, Any] | None:
    """The schema with its description inside, for an upstream that takes a schema and nothing beside it."""
    if output.schema is None or output.description is None or "description" in output.schema:
        return output.schema
    return {"description": output.description, **output.schema}


class Thinking(Struct, frozen=True):
    """How much the model should think: an effort word, a token budget, or both; `summary` asks to see it.

    One that is `adaptive` leaves it to the model whether to think at all.
    """

    enabled: bool = True
    effort: str | None = None
    budget: int | None = None
    summary: str | None = None
    adaptive: bool = False


def effort_of(thinking: Thinking) -> str | None:
    """The effort word for an upstream that knows no other: a budget's nearest; None leaves it to the model."""
    if not thinking.enabled:
        return "none"
    if thinking.effort:
        return thinking.effort
    if thinking.budget is not None:
        return "low" if thinking.budget <= 2048 else "medium" if thinking.budget <= 12288 else "high"
    return None if thinking.adaptive or thinking.summary else "medium"


class Settings(Struct, frozen=True):
    """Sampling, limits and wishes; None means the upstream's own default. `service_tier` is one of OpenAI's words."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    output: OutputFormat | None = None
    thinking: Thinking | None = None
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


NO_SETTINGS = Settings()
_FIELDS = {"cache_key": "prompt_cache_key", "cache_retention": "prompt_cache_retention", "choices": "n"}


def unspoken(settings: Settings, names: tuple[str, ...]) -> list[str]:
    """A warning for each of these settings that is given, for an upstream that has no place for it."""
    return [
        f"{_FIELDS.get(name, name)} has no place here"
        for name in names
        if (value := getattr(settings, name)) or (name == "seed" and value == 0)
    ]


class ModelRequest(Struct, frozen=True):
    """One question to a model: the whole conversation so far, the tools on offer and how to answer.

    `tool_choice` None means the client said nothing about it.
    `dialect` is the one the client spoke; `relay` says that an answer in that dialect may reach it as it came.
    `warnings` tells what had to be changed or dropped on the way here; `headers` are the client's own words that its
    dialect says in headers and that an upstream of the same dialect should hear. `decisions` answer approvals.
    `caller` is the key that asks: upstreams share their slots among callers, and peers keep their conversations apart.
    `tally` adds up what every upstream that is asked for it has used.
    """

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolDef, ...] = ()
    tool_choice: ToolChoice | None = None
    settings: Settings = NO_SETTINGS
    stream: bool = False
    dialect: str = ""
    extra: Extra = NO_EXTRA
    warnings: tuple[str, ...] = ()
    relay: bool = True
    headers: Mapping[str, str] = {}
    decisions: tuple[Decision, ...] = ()
    caller: str = ""
    tally: UsageTally | None = None
