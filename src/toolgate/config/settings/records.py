"""The settings of what is stored: records and their retention, the Responses API, background runs."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Struct

from toolgate.config.settings.field import KIB, MIB, about

KeptChats: TypeAlias = Literal["none", "asked", "all"]


class RetentionSettings(Struct, frozen=True, kw_only=True):
    """Days for which records are kept; 0 means until they are deleted."""

    responses: Annotated[int, about("Responses, counted from the last response that continues them.", ge=0)] = 30
    conversations: Annotated[int, about("Conversations, counted from when they were made.", ge=0)] = 0
    chats: Annotated[int, about("Chats, counted from their last message.", ge=0)] = 30
    invocations: Annotated[int, about("Records of server tool calls.", ge=0)] = 90
    usage: Annotated[int, about("Usage of keys by day.", ge=0)] = 400
    hours: Annotated[int, about("Usage and latency by hour.", ge=0)] = 35
    runs: Annotated[int, about("Runs and their timelines, counted from when they began.", ge=0)] = 30
    approvals: Annotated[int, about("Closed approvals, counted from when they were asked.", ge=0)] = 90


class RecordSettings(Struct, frozen=True, kw_only=True):
    """Which records are kept, and for how long."""

    chats: Annotated[
        KeptChats, about("Which chats are kept: `none`, those of requests with `store: true` (`asked`), or `all`.")
    ] = "asked"
    requests: Annotated[
        int, about("Days for which a record of each request is kept, without its content; 0 keeps none.", ge=0)
    ] = 7
    arguments: Annotated[bool, about("Keep the arguments of server tool calls, not only their digest.")] = False
    days: Annotated[RetentionSettings, about("Days for which records are kept; 0 means until they are deleted.")] = (
        RetentionSettings()
    )


class ResponsesApiSettings(Struct, frozen=True, kw_only=True):
    """The memory of the Responses API, and background responses."""

    past_bytes: Annotated[
        int,
        about(
            "Most bytes of earlier turns, conversations and referenced items that a request may continue.", ge=1 * KIB
        ),
    ] = 16 * MIB
    past_items: Annotated[
        int, about("Most items of earlier turns, conversations and references that a request may continue.", ge=1)
    ] = 10_000

    background_per_caller: Annotated[
        int, about("Most background responses of one key at the same time, on all nodes together.", ge=1)
    ] = 16
    stream_bytes: Annotated[
        int,
        about(
            "Most bytes of events that are kept of a streamed background response, so that the stream can be resumed.",
            ge=1,
        ),
    ] = 16 * 1024 * 1024
    stream_keep_seconds: Annotated[float, about("Seconds for which these events are kept after the end.", ge=0)] = (
        86_400.0
    )


class DurableRunSettings(Struct, frozen=True, kw_only=True):
    """How background runs survive the end of their process."""

    lease_seconds: Annotated[
        float,
        about("Seconds after which another node takes over the runs of a node that no longer renews its leases.", ge=1),
    ] = 6.0
    look_seconds: Annotated[
        float,
        about(
            "Seconds between two renewals of a node's leases, and between two searches for runs without a node.",
            gt=0,
            le=60,
        ),
    ] = 2.0
    crashes: Annotated[int, about("Crashes without progress in between after which a run fails.", ge=1)] = 3
    ask_again: Annotated[
        bool,
        about(
            "Ask a person whether a call that a crash interrupted is run again; `false` tells the model that its"
            " outcome is unknown."
        ),
    ] = True
