"""Sends every field of the SDKs' requests over every upstream and says what becomes of it.

`python -m tests.laws.fields` prints what is silent; with `--write` it renews the table in `docs/compatibility.md`.
"""

import asyncio
import http.client
import json
import re
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from tests.laws.sdk_fields import APIS, Api, FieldCase, cases
from tests.stage import UPSTREAMS, gateway_config, in_a_thread
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.http.listener import listening

Outcome: TypeAlias = Literal["yes", "mapped", "here", "default", "warning", "refused", "silent"]
Outcomes: TypeAlias = dict[tuple[str, str], dict[str, Outcome]]

COMPATIBILITY = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- fields: made by python -m tests.laws.fields --write -->", "<!-- end of fields -->"

_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
_ANSWERS: Mapping[str, Any] = {
    "/v1/chat/completions": {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "{}"}, "finish_reason": "stop"}],
        "usage": _USAGE,
    },
    "/v1/responses": {
        "id": "r",
        "object": "response",
        "status": "completed",
        "output": [
            {
                "type": "message",
                "id": "m",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "{}", "annotations": []}],
            }
        ],
        "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
    },
    "/v1/messages": {
        "id": "a",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "{}"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
    "/api/chat": {
        "message": {"role": "assistant", "content": "{}"},
        "done": True,
        "prompt_eval_count": 1,
        "eval_count": 1,
    },
    "/api/generate": {"response": "{}", "done": True, "prompt_eval_count": 1, "eval_count": 1},
}


class RecordingUpstream:
    """Answers every request with the same words, in the dialect of its path, and keeps the last body."""

    def __init__(self) -> None:
        self.body: Any = None
        self.headers = ""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """The server's URL, while it listens."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = re.search(r"content-length: (\d+)", head)
                self.headers = head
                self.body = json.loads(await reader.readexactly(int(length[1]) if length else 0))
                answer = json.dumps(_ANSWERS[head.split()[1]]).encode()
                head_out = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(answer)}\r\n\r\n"
                writer.write(head_out.encode() + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


class Observed(NamedTuple):
    """What became of one request: the status, the warnings, the error and what the upstream received."""

    status: int
    warnings: frozenset[str]
    error: str
    received: Any


class Probe:
    """Sends requests through the gateway, each body once."""

    def __init__(self, url: str, upstream: RecordingUpstream) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        self._upstream = upstream
        self._seen: dict[tuple[str, str], Observed] = {}

    def send(self, api: Api, upstream: str, body: Mapping[str, Any]) -> Observed:
        """What becomes of the body over this upstream."""
        text = json.dumps({**body, "model": upstream})
        if (api.path, text) not in self._seen:
            self._seen[api.path, text] = self._send(api.path, text)
        return self._seen[api.path, text]

    def _send(self, path: str, text: str) -> Observed:
        self._upstream.body = None
        self._connection.request(
            "POST", path, text, {"content-type": "application/json", "anthropic-version": "2023-06-01"}
        )
        response = self._connection.getresponse()
        answer = response.read().decode()
        warnings = response.headers.get("x-toolgate-warning", "").split("; ")
        noted = re.findall(r"toolgate-warning: (.*)", answer)
        error = answer if response.status >= 400 else ""
        return Observed(response.status, frozenset([*warnings, *noted]) - {""}, error, self._upstream.body)

    def outcome(self, api: Api, upstream: str, case: FieldCase) -> Outcome:
        """What becomes of a field over this upstream."""
        if any(re.fullmatch(pattern, f"{api.dialect} {case.path}") for pattern in HERE):
            return "here"
        before, after = self.send(api, upstream, case.without), self.send(api, upstream, case.given)
        if after.status >= 400:
            return "refused" if after.status < 500 and any(name in after.error for name in _names(case)) else "silent"
        if _carries(before.received, after.received, case):
            return "yes"
        if _mentions(after.warnings - before.warnings, _names(case)) or _mentions(after.warnings, _holders(case)):
            return "warning"
        if before.received != after.received and before.status < 400:
            return "mapped" if _is_known(f"{api.dialect} {case.path} {upstream}", EQUIVALENT) else "silent"
        return "default" if _is_known(f"{api.dialect} {case.path} {upstream}", SAYS_NOTHING) else "silent"


def _is_known(case: str, table: Mapping[str, str]) -> bool:
    return any(re.fullmatch(pattern, case) for pattern in table)


_GENERIC = frozenset(
    {
        "messages",
        "content",
        "input",
        "user",
        "assistant",
        "tool",
        "text",
        "function",
        "message",
        "custom",
        "type",
        "tools",
    }
)
"""Words that stand in too many warnings to name one field."""

_SYNONYMS = {
    "image_url": "image",
    "input_image": "image",
    "input_audio": "audio",
    "input_file": "file",
    "document": "file",
}
_SYNONYMS |= {
    "user_id": "user",
    "image_generation_call": "image",
    "thinking": "reasoning",
    "redacted_thinking": "reasoning",
    "disable_parallel_tool_use": "several tools at once",
}
_SYNONYMS |= {"parallel_tool_calls": "several tools at once", "stop_sequences": "stop", "max_output_tokens": "limit"}


def _holders(case: FieldCase) -> list[str]:
    """The words by which a warning may name an object that holds the field."""
    words = [word for word in re.findall(r"\w+", case.path) if word not in _GENERIC]
    if case.path.startswith("tools["):
        words.append("hosted tool")
    return [*words, *[_SYNONYMS[word] for word in words if word in _SYNONYMS]]


def _names(case: FieldCase) -> list[str]:
    """The words by which a new warning may name the field itself."""
    own = re.split(r"[.=]", re.sub(r"\[\w*\]", "", case.path))
    return [*_holders(case), own[-1], *(["function"] if "tools[" in case.path else [])]


def _mentions(warnings: frozenset[str], names: list[str]) -> bool:
    return any(re.search(rf"\b{re.escape(name)}\b", warning) for warning in warnings for name in names)


_DISCRIMINATORS = ("type", "role", "id", "call_id", "tool_use_id", "tool_call_id")


def _leaves(value: Any, name: str = "", skip: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The scalars of a value, each with the name that it stands under; an empty object or list is one, too."""
    if isinstance(value, dict) and value:
        for inner, held in value.items():
            if inner not in skip:
                yield from _leaves(held, inner, skip)
    elif isinstance(value, list) and value:
        for held in value:
            yield from _leaves(held, name, skip)
    else:
        yield name, value


def _carries(before: Any, after: Any, case: FieldCase) -> bool:
    """Whether the upstream received the value itself: a text anywhere, anything else under its own name or its only one."""
    held, was = list(_leaves(after)), list(_leaves(before))
    texts, old = ([value for _, value in leaves if type(value) is str] for leaves in (held, was))
    name = re.split(r"[.=]", re.sub(r"\[\w*\]", "", case.path))[-1]
    own = (
        re.split(r"=", name)[0]
        if "=" not in case.path
        else re.sub(r"\[\w*\]", "", case.path).split("=")[0].split(".")[-1]
    )
    if isinstance(case.value, (dict, list)) and _count(after, case.value) > _count(before, case.value):
        return True
    leaves = list(_leaves(case.value, own, _DISCRIMINATORS))
    return bool(leaves) and all(_is_new(leaf, held, was, "\n".join(texts), "\n".join(old)) for leaf in leaves)


def _count(body: Any, value: Any) -> int:
    inner = body.values() if isinstance(body, dict) else body if isinstance(body, list) else ()
    return int(body == value) + sum([_count(held, value) for held in inner])


def _is_new(leaf: tuple[str, Any], held: list[Any], was: list[Any], texts: str, old: str) -> bool:
    value = leaf[1]
    if type(value) is str and len(value) > 4:
        return texts.count(value) > old.count(value)
    if type(value) is not bool:
        return [one for _, one in held].count(value) > [one for _, one in was].count(value)
    return held.count(leaf) > was.count(leaf)


HERE: Mapping[str, str] = {
    r"openai_responses (background|conversation|previous_response_id|store)(\.id|=false)?": "the gateway keeps the state",
    r"openai_chat store(=false)?": "the gateway keeps completions",
    r"openai_\w+ stream_options(\.include_usage(=false)?)?": "the gateway writes the stream and counts usage",
    r"ollama keep_alive": "whoever serves a model keeps it loaded; the gateway answers requests to load and unload",
}
"""Fields that have their effect in the gateway; a pattern of the client's dialect and the path, and why."""

EQUIVALENT: Mapping[str, str] = {
    r"openai_chat reasoning_effort=(none|minimal|xhigh) .*": "the nearest effort that the upstream knows, or no thinking",
    r"openai_responses reasoning\.effort=(none|minimal|xhigh) .*": "as above",
    r"anthropic output_config\.effort=xhigh ollama": "as above",
    r"openai_responses reasoning\.summary=\w+ .*": "thinking is turned on, and shown",
    r"anthropic thinking\[\w+\](\.budget_tokens)? .*": "the effort that the budget comes to, or no thinking",
    r"anthropic thinking\[\w+\]\.display=omitted openai_responses": "no summary is asked for",
    r"ollama think(=false)? .*": "an effort, or no thinking",
    r"openai_chat (tool_choice|function_call)=\w+ .*": "the upstream's own word for the choice, a schema, or no tools",
    r"openai_responses tool_choice=\w+ .*": "as above",
    r"openai_\w+ tool_choice\[allowed_tools\](\.allowed_tools)?(\.mode=required)? .*": "only these tools are offered",
    r"anthropic tool_choice\[\w+\](\.disable_parallel_tool_use(=false)?)? .*": "tool_choice and parallel_tool_calls",
    r"openai_\w+ parallel_tool_calls(=false)? anthropic": "disable_parallel_tool_use in tool_choice",
    r"openai_chat response_format\[json_(schema|object)\] .*": "the upstream's own output format, or a tool's input",
    r"openai_responses text\.format\[json_(schema|object)\] .*": "as above",
    r"ollama format=json .*": "as above",
    r"\S+ logprobs openai_responses": "a word in include",
    r"openai_\w+ service_tier=default anthropic": "standard_only",
    r"anthropic service_tier=standard_only openai_\w+": "default",
    r"openai_chat messages\[assistant\]\.(function_call|tool_calls\[function\]\.function)\.arguments .*": "input, an object",
    r"openai_chat messages\[assistant\]\.(function_call|tool_calls\[function\]) .*": "a call in the upstream's own form",
    r"openai_responses input\[function_call\](\.arguments)? .*": "a call in the upstream's own form",
    r"openai_responses input\[function_call\]\.status=incomplete anthropic": "half the arguments under one key",
    r"anthropic messages\[assistant\]\.content\[tool_use\]\.input .*": "arguments, a text",
    r"openai_chat messages\[user\]\.content\[file\] anthropic": "the same bytes as a document",
    r"openai_responses input\[\w+\]\.(content|output)\[input_file\] anthropic": "the same bytes as a document",
    r"anthropic messages\[user\]\.content\[((tool_result|document)\]\..*content\[)?image\] ollama": "in images",
    r"anthropic messages\[user\]\.content\[(tool_result\]\.content\[)?document\]\.source\[text\] .*": "its text",
    r"anthropic messages\[user\]\.content\[tool_result\](\.is_error)? .*": "a result; an error is marked by its words",
    r"openai_chat messages\[(assistant|function)\] .*": "a message in the upstream's own form",
    r"openai_responses input\[message\](\.role=developer)? .*": "a message in the upstream's own form",
    r"anthropic messages\[system\] .*": "a message in the upstream's own form",
    r"openai_responses input\[image_generation_call\] .*": "the picture that was made",
    r"openai_\w+ tools\[custom\]\S*\.format\[grammar\] .*": "the grammar stands in the description",
    r"openai_responses tools\[function\] ollama": "a function in its own form",
    r"openai_chat max_completion_tokens openai_responses": "max_output_tokens",
}
"""Changes of the upstream's body that carry a field in other words; a pattern of dialect, path and upstream, and how."""

SAYS_NOTHING: Mapping[str, str] = {
    r"anthropic .*cache_control.*": "a mark for a cache: other upstreams cache the beginning of a prompt by themselves",
    r"anthropic .*\[text\]\.citations.*": "citations of an answer that is sent back; its text arrives",
    r"anthropic messages\[user\]\.content\[search_result\]\.citations\.enabled=false .*": "the default",
    r"anthropic betas .*": "the SDK sends it as a header, which Anthropic's upstreams receive",
    r"openai_responses input\[\w+\]\.(id|status=\w+) .*": "the identity of an item: the upstream keeps none for us",
    r"openai_responses input\[message\].*(annotations|logprobs).*": "part of an answer that is sent back; its text arrives",
    r"openai_responses input\[\w+\]\.(name|namespace) .*": "ties a result to its call, as the calls do by themselves",
    r"openai_responses input\[image_generation_call\]\.\w+ .*": "how a picture was made; the picture arrives",
    r"openai_\w+ stream_options\.include_obfuscation=false .*": "no padding is what happens anyway",
    r"\S+ (stop|stop_sequences|options\.stop) openai_responses": "the answer is cut here",
    r"\S+ (response_format|text\.format|format)(\[text\]|=) .*": "plain text is the default",
    r"openai_\w+ \S*json_schema\S*\.name (anthropic|ollama)": "a label that the model does not see",
    r"openai_\w+ \S*json_schema\S*\.strict(=false)? (anthropic|ollama)": "these upstreams enforce every schema",
    r"\S+ tools\S*\.strict=false .*": "the default",
    r"openai_responses tools\[function\]\.strict ollama": "it must be given, so the case gives false, the default",
    r"\S+ (tool_choice|function_call)(=auto|\[auto\]) ollama": "the default",
    r"openai_\w+ tool_choice\[allowed_tools\] ollama": "only these tools are offered",
    r"anthropic tool_choice\[(any|tool)\]\.disable_parallel_tool_use(=false)? ollama": "a demanded call is the only one",
    r"anthropic tool_choice\[auto\]\.disable_parallel_tool_use=false ollama": "the default",
    r"openai_\w+ parallel_tool_calls ollama": "the default",
    r"\S+ logprobs=false .*": "the default",
    r"ollama raw=false .*": "the default",
    r"anthropic messages\[user\]\.content\[tool_result\]\.is_error=false .*": "the default",
    r"openai_chat messages\[assistant\] .*": "an empty message",
    r"\S+ \S*custom\S*\.format\[text\] .*": "the default",
    r"anthropic \S*media_type=\S* ollama": "Ollama looks at the bytes",
    r"\S+ \S*detail=auto .*": "the default",
    r"openai_responses truncation=disabled .*": "the default",
    r"anthropic service_tier=auto .*": "the default",
    r"openai_responses reasoning\.summary=\w+ openai_chat": "reasoning is shown wherever the upstream gives it",
    r"anthropic thinking\[(adaptive|between_tools)\] .*": "thinking is left to the model",
    r"anthropic thinking\[\w+\]\.display=summarized .*": "thinking is shown wherever the upstream gives it",
    r"openai_responses include .*": "what it adds to an answer belongs to hosted tools, which are named, or is given always",
    r"\S+ (reasoning|text|options|metadata|output_config) .*": "an empty object",
}
"""Fields that change nothing at such an upstream; a pattern of dialect, path and upstream, and why nothing is lost."""


@asynccontextmanager
async def _open_probe() -> AsyncIterator[Probe]:
    upstream = RecordingUpstream()
    async with upstream.listening() as base, listening(Toolgate(gateway_config(base))) as url:
        yield Probe(url, upstream)


def run() -> Outcomes:
    """What becomes of every field, by the client's path and the field's, over each upstream."""
    with in_a_thread(_open_probe()) as probe:
        return {
            (api.path, case.path): {upstream: probe.outcome(api, upstream, case) for upstream in UPSTREAMS}
            for api in APIS
            for case in cases(api)
        }


def table(outcomes: Outcomes) -> str:
    """The outcomes as Markdown; fields that share an outcome are one row, named by what they have in common."""
    lines = []
    for api in APIS:
        fields = {field: tuple(found.values()) for (path, field), found in outcomes.items() if path == api.path}
        lines += [
            f"### `POST {api.path}`",
            "",
            "| field | Chat | Responses | Anthropic | Ollama |",
            "|---|---|---|---|---|",
        ]
        lines += [f"| `{name}` | {' | '.join(found)} |" for name, found in _collapsed(fields).items()]
        lines.append("")
    return "\n".join(lines)


def _collapsed(fields: Mapping[str, tuple[Outcome, ...]]) -> dict[str, tuple[Outcome, ...]]:
    """The fields without those that fare like the object that holds them, and without values that fare alike."""
    values: dict[str, set[tuple[Outcome, ...]]] = {}
    for field, found in fields.items():
        values.setdefault(field.partition("=")[0], set()).add(found)
    rows: dict[str, tuple[Outcome, ...]] = {}
    for field, found in fields.items():
        name = field.partition("=")[0]
        name = name if len(values[name]) == 1 else field
        holders = [field[: cut.start()] for cut in re.finditer(r"[.\[=]", field)]
        holder = next((rows[one] for one in reversed(holders) if one in rows), None)
        if found != holder:
            rows[name] = found
    return _merged(rows)


def _merged(rows: Mapping[str, tuple[Outcome, ...]]) -> dict[str, tuple[Outcome, ...]]:
    """Kinds of one list that fare alike in one row, and a field that fares alike wherever it stands, too."""
    ends: dict[str, set[tuple[Outcome, ...]]] = {}
    kinds: dict[tuple[str, tuple[Outcome, ...]], list[str]] = {}
    for name, found in rows.items():
        ends.setdefault(_last(name), set()).add(found)
        kinds.setdefault((name.rpartition("[")[0], found), []).append(name)
    merged: dict[str, tuple[Outcome, ...]] = {}
    for name, found in rows.items():
        alike = kinds[name.rpartition("[")[0], found]
        nested = "." in name and len([one for one in rows if _last(one) == _last(name)]) > 2
        if nested and len(ends[_last(name)]) == 1:
            merged[f"….{_last(name)}"] = found
        elif name.endswith("]"):
            labels = [one.rpartition("[")[2][:-1] for one in alike if one.endswith("]")]
            merged[f"{name.rpartition('[')[0]}[{', '.join(labels)}]"] = found
        else:
            merged[name] = found
    return merged


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def main() -> None:
    """Print what is silent, or renew the table."""
    outcomes = run()
    if "--write" in sys.argv:
        before, _, rest = COMPATIBILITY.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        COMPATIBILITY.write_text(f"{before}{BEGIN}\n\n{table(outcomes)}\n{END}{after}")
    for (path, field), found in outcomes.items():
        silent = [upstream for upstream, outcome in found.items() if outcome == "silent"]
        if silent:
            print(path, field, "is silent over", *silent)


if __name__ == "__main__":
    main()
