"""The four client APIs behind one Protocol, each used through its official client, streamed or whole.

A client holds a conversation as an application would: it keeps what it received and sends it back.
"""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from anthropic import Anthropic
from msgspec import Struct
from ollama import Client as OllamaClient
from openai import OpenAI

from tests.stage import Stage

SCHEMA: Any = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


class Turn(Struct):
    """What was received in one turn: text, calls for the client (name and id), and the calls that the server ran."""

    text: str
    calls: dict[str, str]
    reason: str | None
    ours: list[tuple[str, str, bool]]
    asked: list[str]


class ApiClient(Protocol):
    """A conversation in one dialect."""

    native: bool
    """Whether the server's own calls can be seen in it."""

    def ask(self, text: str) -> Turn:
        """Send a user message and return the answer."""

    def answer(self, results: dict[str, str]) -> Turn:
        """Send the results of the client's own tools, by call id."""

    def again(self) -> Turn:
        """Send the last request once more."""


class Chat:
    """OpenAI Chat Completions."""

    native = False

    def __init__(self, stage: Stage, model: str, stream: bool, own: tuple[str, ...], **wants: Any) -> None:
        self._client = OpenAI(base_url=f"{stage.url}/v1", api_key="unused", max_retries=0)
        self._wants, self._stream, self._model = wants, stream, model
        self._messages: list[Any] = []
        tools: Any = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in own]
        self._options: Any = {"tools": tools} if own else {}

    def ask(self, text: str) -> Turn:
        self._messages.append({"role": "user", "content": text})
        return self._next_turn()

    def answer(self, results: dict[str, str]) -> Turn:
        self._messages += [{"role": "tool", "tool_call_id": id, "content": content} for id, content in results.items()]
        return self._next_turn()

    def again(self) -> Turn:
        self._messages.pop()
        return self._next_turn()

    def _next_turn(self) -> Turn:
        options = {"model": self._model, "messages": self._messages, "extra_body": self._wants, **self._options}
        if self._stream:
            with self._client.chat.completions.stream(**options) as stream:
                stated = "".join([event.delta for event in stream if event.type == "content.delta"])
                final = stream.get_final_completion()
            assert stated == (final.choices[0].message.content or "")
        else:
            final = self._client.chat.completions.create(**options)
        message = final.choices[0].message
        self._messages.append(message.model_dump(exclude_none=True))
        calls = {call.function.name: call.id for call in message.tool_calls or ()}
        return Turn(message.content or "", calls, final.choices[0].finish_reason, [], [])


class Responses:
    """OpenAI Responses."""

    native = True

    def __init__(self, stage: Stage, model: str, stream: bool, own: tuple[str, ...], **wants: Any) -> None:
        self._client = OpenAI(base_url=f"{stage.url}/v1", api_key="unused", max_retries=0)
        self._wants, self._stream, self._model = wants, stream, model
        self._previous: str | None = None
        self._last: tuple[Any, str | None] = ([], None)
        tools: Any = [{"type": "function", "name": name, "parameters": SCHEMA, "strict": False} for name in own]
        self._options: Any = {"tools": tools} if own else {}

    def ask(self, text: str) -> Turn:
        return self._next_turn([{"role": "user", "content": text}])

    def answer(self, results: dict[str, str]) -> Turn:
        return self._next_turn(
            [{"type": "function_call_output", "call_id": id, "output": content} for id, content in results.items()]
        )

    def decide(self, id: str, approve: bool) -> Turn:
        """Answer an approval as the API has it."""
        return self._next_turn([{"type": "mcp_approval_response", "approval_request_id": id, "approve": approve}])

    def again(self) -> Turn:
        items, self._previous = self._last
        return self._next_turn(items)

    def _next_turn(self, items: Any) -> Turn:
        self._last = (items, self._previous)
        options = {"model": self._model, "input": items, "extra_body": self._wants, **self._options}
        if self._previous:
            options["previous_response_id"] = self._previous
        if self._stream:
            with self._client.responses.stream(**options) as stream:
                stated = "".join([event.delta for event in stream if event.type == "response.output_text.delta"])
                final: Any = stream.get_final_response()
            assert stated == final.output_text
        else:
            final = self._client.responses.create(**options)
        self._previous = final.id
        calls = {item.name: item.call_id for item in final.output if item.type == "function_call"}
        ours = [
            (item.name, item.output or str(item.error), item.status == "failed")
            for item in final.output
            if item.type == "mcp_call"
        ]
        asked = [item.id for item in final.output if item.type == "mcp_approval_request"]
        return Turn(final.output_text, calls, final.status, ours, asked)


class PlainMessages:
    """Anthropic Messages without any beta: the server's calls are hidden, because the plain API has no blocks for them."""

    native = False
    headers: Mapping[str, str] = {}

    def __init__(self, stage: Stage, model: str, stream: bool, own: tuple[str, ...], **wants: Any) -> None:
        headers = dict(self.headers)
        self._client = Anthropic(base_url=stage.url, api_key="unused", max_retries=0, default_headers=headers)
        self._wants, self._stream, self._model = wants, stream, model
        self._messages: list[Any] = []
        tools: Any = [{"name": name, "input_schema": SCHEMA} for name in own]
        self._options: Any = {"tools": tools} if own else {}

    def ask(self, text: str) -> Turn:
        self._messages.append({"role": "user", "content": text})
        return self._next_turn()

    def answer(self, results: dict[str, str]) -> Turn:
        blocks = [{"type": "tool_result", "tool_use_id": id, "content": text} for id, text in results.items()]
        self._messages.append({"role": "user", "content": blocks})
        return self._next_turn()

    def go_on(self) -> Turn:
        """Continue a turn that paused: the messages end with the assistant's own words."""
        return self._next_turn()

    def again(self) -> Turn:
        self._messages.pop()
        return self._next_turn()

    def _next_turn(self) -> Turn:
        options: Any = {
            "model": self._model,
            "max_tokens": 1000,
            "messages": self._messages,
            "extra_body": self._wants,
            **self._options,
        }
        if self._stream:
            with self._client.messages.stream(**options) as stream:
                stated = "".join(stream.text_stream)
                final: Any = stream.get_final_message()
            assert stated == "".join([block.text for block in final.content if block.type == "text"])
        else:
            final = self._client.messages.create(**options)
        content = [block.model_dump(exclude_none=True) for block in final.content]
        self._messages.append({"role": "assistant", "content": content})
        names = {block["id"]: block["name"] for block in content if block["type"] == "mcp_tool_use"}
        ours = [
            (names.get(block["tool_use_id"], "?"), block["content"][0]["text"], block["is_error"])
            for block in content
            if block["type"] == "mcp_tool_result"
        ]
        calls = {block["name"]: block["id"] for block in content if block["type"] == "tool_use"}
        text = "".join([block["text"] for block in content if block["type"] == "text"])
        assert all(block["type"] in ("text", "tool_use") for block in content) or self.headers
        return Turn(text, calls, final.stop_reason, ours, [])


class Messages(PlainMessages):
    """Anthropic Messages of a client that knows the blocks of MCP servers."""

    native = True
    headers: Mapping[str, str] = {"anthropic-beta": "mcp-client-2025-11-20"}


class Ollama:
    """Ollama's chat: the client takes no further fields in the body, so headers say what is wanted."""

    native = False

    def __init__(self, stage: Stage, model: str, stream: bool, own: tuple[str, ...], **wants: Any) -> None:
        self._client = OllamaClient(host=stage.url, headers=_headers(wants))
        self._stream, self._model = stream, model
        self._messages: list[Any] = []
        self._tools: Any = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in own]

    def ask(self, text: str) -> Turn:
        self._messages.append({"role": "user", "content": text})
        return self._next_turn()

    def answer(self, results: dict[str, str]) -> Turn:
        self._messages += [{"role": "tool", "tool_name": name, "content": content} for name, content in results.items()]
        return self._next_turn()

    def again(self) -> Turn:
        self._messages.pop()
        return self._next_turn()

    def _next_turn(self) -> Turn:
        options: Any = {"model": self._model, "messages": self._messages, "tools": self._tools}
        if self._stream:
            pieces = list(self._client.chat(**options, stream=True))
            text = "".join([piece.message.content or "" for piece in pieces])
            found = [call for piece in pieces for call in piece.message.tool_calls or ()]
            reason = pieces[-1].done_reason
        else:
            whole = self._client.chat(**options)
            text, found, reason = whole.message.content or "", list(whole.message.tool_calls or ()), whole.done_reason
        emitted: dict[str, Any] = {"role": "assistant", "content": text}
        if found:
            emitted["tool_calls"] = [call.model_dump() for call in found]
        self._messages.append(emitted)
        return Turn(text, {call.function.name: call.function.name for call in found}, reason, [], [])


def _headers(wants: dict[str, Any]) -> dict[str, str]:
    names = {
        "tool_execution": "X-Toolgate-Tool-Execution",
        "use_server_tools": "X-Toolgate-Tools",
        "max_tool_rounds": "X-Toolgate-Max-Tool-Rounds",
    }
    stated = {
        name: value if isinstance(value, str) else ",".join(value) if isinstance(value, list) else json.dumps(value)
        for name, value in wants.items()
    }
    return {names[name]: value for name, value in stated.items()}


API_CLIENTS: dict[str, Any] = {
    "chat": Chat,
    "responses": Responses,
    "messages": Messages,
    "plain_messages": PlainMessages,
    "ollama": Ollama,
}
