"""The suites that are counted, and where each of their tests stands in a table: a row, and a column if there are several."""

import re
from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from tests.conformance.stage import COLUMNS


class Case(Struct, frozen=True):
    """One test that was run: its module and class, its name with parameters, and why it failed or was skipped."""

    place: str
    name: str
    outcome: str = "passed"
    message: str = ""


Place: TypeAlias = Callable[[Case], tuple[str, str]]


class Suite(Struct, frozen=True, kw_only=True):
    """Tests that are counted together; a row of the totals."""

    title: str
    about: str
    paths: tuple[str, ...]
    place: Place
    workers: int = 2


def _upstream(name: str) -> str:
    return next(
        (title for upstream, title in COLUMNS.items() if f"[{upstream}" in name or f"-{upstream}-" in name), "all"
    )


def _by_feature(case: Case) -> tuple[str, str]:
    return case.name.partition("[")[2].rpartition("-")[0], ""


def _by_langchain_class(case: Case) -> tuple[str, str]:
    client, _, upstream = case.place.rpartition(".Test")[2].partition("Over_")
    return LANGCHAIN[client], COLUMNS[upstream]


def _by_case(case: Case) -> tuple[str, str]:
    words = case.name.partition("[")[0].removeprefix("test_").replace("_", " ").replace("websocket", "WebSocket")
    return words[0].upper() + words[1:], _upstream(case.name)


def _by_source(case: Case) -> tuple[str, str]:
    source, _, rest = case.name.partition("[")[2].partition("-")
    return EXAMPLES[source], COLUMNS[rest.partition("-")[0]] if "documented" in case.name else "refused"


def _by_revision(case: Case) -> tuple[str, str]:
    side = "server" if ".server." in case.place else "client"
    found = re.search(r"\b(202[4-6]-\d\d-\d\d)\b", case.name)
    return side, found.group(1) if found else "any revision"


def by_file(case: Case) -> tuple[str, str]:
    """The row that is named after the test's file."""
    return FILES.get(case.place.rpartition(".test_")[2].partition(".")[0], "other"), ""


LANGCHAIN = {
    "Chat": "ChatOpenAI (Chat)",
    "Responses": "ChatOpenAI (Responses)",
    "Messages": "ChatAnthropic",
    "Ollama": "ChatOllama",
}
EXAMPLES = {"anthropic": "Anthropic", "ollama": "Ollama", "openai": "OpenAI"}
FILES = {
    "openai_chat": "OpenAI Chat Completions",
    "openai_responses": "OpenAI Responses",
    "anthropic": "Anthropic Messages",
    "ollama": "Ollama",
    "langchain": "LangChain agents",
    "responses_websocket": "Responses over WebSockets",
    "responses_state": "stored responses and conversations",
    "background": "background responses",
    "durable_response": "durable responses",
    "server_tools": "tools that the server runs, and approvals",
    "text_only": "models that only write text",
    "openai_chat_quirks": "Chat streams, understood and relayed",
    "openai_chat_results": "whole Chat answers",
    "openai_responses_stream": "Responses streams",
    "openai_responses_relay": "Responses relayed",
    "anthropic_stream": "Anthropic streams",
    "anthropic_relay": "Anthropic relayed",
    "ollama_upstream": "Ollama streams",
    "ollama_relay": "Ollama relayed",
    "one_outcome": "every quirk through the HTTP edge to every client API",
    "parser": "reading every form, whole and in pieces",
    "field_cases": "cases found in the field",
    "fake_results": "results that a model makes up",
    "laws": "laws: what is written is read, however it is cut",
    "argument_repair": "repair of broken calls",
    "schema_types": "values by the tool's schema",
    "documented_syntaxes": "the documented forms",
    "prompt_renderer": "prompts from templates",
    "system_messages_to_user": "system messages in the user's text",
    "model": "answers that are corrected and asked for again",
    "promoted_calls": "calls that models with tools of their own write as text",
    "over_http": "through the HTTP edge to every client API",
    "misbehaving_models": "models that misbehave",
    "nothing_silent": "every field of the SDKs' requests arrives or is named in a warning",
    "replay": "answers sent back reach their upstream identical",
}
FEATURES_SUITE = "features"
SUITES: dict[str, Suite] = {
    FEATURES_SUITE: Suite(
        title="client API × upstream API × feature",
        about="Each feature through the official SDKs of Python and Node, streamed and whole.",
        paths=("tests/conformance/test_features.py",),
        place=_by_feature,
    ),
    "clients": Suite(
        title="scenes of the official clients",
        about="Tool loops, streams, errors, stored responses, WebSockets, background and approvals, as agents use them.",
        paths=("tests/clients", "--ignore=tests/clients/test_langchain_standard.py"),
        place=by_file,
    ),
    "openresponses": Suite(
        title="Open Responses",
        about="The 17 cases of the acceptance suite as its page describes them, checked by tests of our own.",
        paths=("tests/conformance/test_open_responses.py",),
        place=_by_case,
    ),
    "langchain": Suite(
        title="LangChain's standard tests",
        about=(
            "`langchain-tests` against a scripted model that does as it is asked. Skipped is what a class itself refuses"
            " before it sends anything: sound in ChatAnthropic and ChatOllama; documents, Anthropic's own blocks and a tool"
            " choice in ChatOllama."
        ),
        paths=("tests/clients/test_langchain_standard.py",),
        place=_by_langchain_class,
    ),
    "examples": Suite(
        title="documented curl examples",
        about=(
            "Requests as the vendors' documentation shows them, sent as curl sends them: Ollama's and OpenAI's are taken"
            " from their documents, Anthropic's are written after its guides."
        ),
        paths=("tests/conformance/test_examples.py",),
        place=_by_source,
    ),
    "mcp": Suite(
        title="MCP, with the SDK of Python",
        about="The SDK's servers for our client, the SDK's client for our server, over HTTP and pipes.",
        paths=(
            "tests/mcp/client/test_http.py",
            "tests/mcp/client/test_stdio.py",
            "tests/mcp/client/test_real_servers.py",
            "tests/mcp/server/test_sdk_client.py",
            "tests/mcp/server/test_stdio.py",
            "tests/mcp/server/test_http.py",
        ),
        place=_by_revision,
    ),
    "quirks": Suite(
        title="wire quirks of upstreams",
        about="Streams and answers as upstreams really send them.",
        paths=(
            "tests/dialects/test_openai_chat_quirks.py",
            "tests/dialects/test_openai_chat_results.py",
            "tests/dialects/test_openai_responses_stream.py",
            "tests/dialects/test_openai_responses_relay.py",
            "tests/dialects/test_anthropic_stream.py",
            "tests/dialects/test_anthropic_relay.py",
            "tests/dialects/test_ollama_upstream.py",
            "tests/dialects/test_ollama_relay.py",
            "tests/laws/test_one_outcome.py",
        ),
        place=by_file,
    ),
    "text": Suite(
        title="text syntaxes",
        about="The forms in which models that only write text call tools.",
        paths=("tests/text_tools",),
        place=by_file,
    ),
    "laws": Suite(
        title="laws of translation",
        about="Answers that come back, models that answer wrongly, and every request field of the SDKs, in every API.",
        paths=(
            "tests/laws/test_replay.py",
            "tests/laws/test_misbehaving_models.py",
            "tests/laws/test_nothing_silent.py",
        ),
        place=by_file,
    ),
}
