"""The four client APIs as one conversation each: encode what is wanted in the API's own fields, and decode the answer."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from tests.conformance.sdks import SDK

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PAPER = base64.b64encode(b"%PDF-1.4 a page").decode()


class Tool(Struct, frozen=True):
    """A tool of the client's own."""

    name: str
    schema: Mapping[str, Any]


class Wanted(Struct, frozen=True, kw_only=True):
    """What a conversation asks for, whichever the API."""

    system: str | None = None
    tools: tuple[Tool, ...] = ()
    choice: Literal["required", "none"] | None = None
    output: Mapping[str, Any] | Literal["json"] | None = None
    stop: str | None = None
    server_tools: bool = False
    image: bool = False
    document: bool = False


class Call(Struct, frozen=True):
    """A call that the client has to run."""

    id: str
    name: str
    arguments: Any


class Answer(Struct, frozen=True):
    """One answer as the client understood it."""

    text: str
    calls: tuple[Call, ...]
    reasoning: str
    finish: str | None
    usage: tuple[int, int]
    asked: tuple[str, ...]
    warnings: str


class Client(Protocol):
    """A conversation in one API."""

    def ask(self, text: str) -> Answer:
        """Send what the user says."""

    def answer(self, results: Sequence[tuple[Call, str]]) -> Answer:
        """Send the results of the client's tools."""


class Conversation:
    """What the four have in common: the SDK, the model, and the messages so far."""

    api: str

    def __init__(self, sdk: SDK, model: str, wanted: Wanted = Wanted(), *, stream: bool) -> None:  # noqa: B008  # frozen
        self.sdk, self.model, self.wanted, self.stream = sdk, model, wanted, stream
        self.messages: list[Any] = []

    def cancel(self, text: str) -> None:
        """Leave the stream as soon as it brings text."""
        self.messages.append({"role": "user", "content": text})
        self.sdk.call(self.api, self.request(), stream=True, cancel=True)

    def request(self) -> dict[str, Any]:
        """The arguments of the SDK's call."""
        raise NotImplementedError

    def send(self) -> tuple[dict[str, Any], str]:
        """Send the conversation."""
        return self.sdk.call(self.api, self.request(), stream=self.stream, headers=self.headers())

    def headers(self) -> dict[str, str]:
        """What is said in headers."""
        return {}

    def server_fields(self) -> dict[str, Any]:
        """The fields that let the server run its own tools."""
        return {"extra_body": {"tool_execution": "auto", "use_server_tools": True}} if self.wanted.server_tools else {}


class Chat(Conversation):
    """OpenAI Chat Completions."""

    api = "chat"

    def request(self) -> dict[str, Any]:
        wanted = self.wanted
        system = [{"role": "system", "content": wanted.system}] if wanted.system else []
        options: dict[str, Any] = {"model": self.model, "messages": [*system, *self.messages], **self.server_fields()}
        if wanted.tools:
            options["tools"] = [
                {"type": "function", "function": {"name": tool.name, "parameters": tool.schema, "strict": True}}
                for tool in wanted.tools
            ]
        if wanted.choice:
            options["tool_choice"] = wanted.choice
        if wanted.output == "json":
            options["response_format"] = {"type": "json_object"}
        elif wanted.output:
            schema = {"name": "person", "schema": wanted.output, "strict": True}
            options["response_format"] = {"type": "json_schema", "json_schema": schema}
        if wanted.stop:
            options["stop"] = [wanted.stop]
        return options

    def ask(self, text: str) -> Answer:
        content: list[Any] = [{"type": "text", "text": text}]
        if self.wanted.image:
            content.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}})
        if self.wanted.document:
            file = {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PAPER}"}
            content.append({"type": "file", "file": file})
        self.messages.append({"role": "user", "content": content if len(content) > 1 else text})
        return self._read(*self.send())

    def answer(self, results: Sequence[tuple[Call, str]]) -> Answer:
        self.messages += [{"role": "tool", "tool_call_id": call.id, "content": result} for call, result in results]
        return self._read(*self.send())

    def _read(self, body: dict[str, Any], warnings: str) -> Answer:
        choice = body["choices"][0]
        message = choice["message"]
        message.pop("parsed", None)
        self.messages.append(message)
        calls = [
            Call(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        ]
        usage = body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]
        thought = message.get("reasoning_content") or ""
        return Answer(message.get("content") or "", tuple(calls), thought, choice["finish_reason"], usage, (), warnings)


class Responses(Conversation):
    """OpenAI Responses; the client keeps the items itself."""

    api = "responses"

    def request(self) -> dict[str, Any]:
        wanted = self.wanted
        options: dict[str, Any] = {
            "model": self.model,
            "input": self.messages,
            "include": ["reasoning.encrypted_content"],
            **self.server_fields(),
        }
        if wanted.system:
            options["instructions"] = wanted.system
        if wanted.tools:
            options["tools"] = [
                {"type": "function", "name": tool.name, "parameters": tool.schema, "strict": True}
                for tool in wanted.tools
            ]
        if wanted.choice:
            options["tool_choice"] = wanted.choice
        if wanted.output == "json":
            options["text"] = {"format": {"type": "json_object"}}
        elif wanted.output:
            format = {"type": "json_schema", "name": "person", "schema": wanted.output, "strict": True}
            options["text"] = {"format": format}
        return options

    def ask(self, text: str) -> Answer:
        content: list[Any] = [{"type": "input_text", "text": text}]
        if self.wanted.image:
            url = f"data:image/png;base64,{PIXEL}"
            content.append({"type": "input_image", "image_url": url, "detail": "auto"})
        if self.wanted.document:
            data = f"data:application/pdf;base64,{PAPER}"
            content.append({"type": "input_file", "filename": "a.pdf", "file_data": data})
        self.messages.append({"role": "user", "content": content})
        return self._read(*self.send())

    def answer(self, results: Sequence[tuple[Call, str]]) -> Answer:
        self.messages += [
            {"type": "function_call_output", "call_id": call.id, "output": result} for call, result in results
        ]
        return self._read(*self.send())

    def decide(self, id: str, approve: bool) -> Answer:
        """Answer an approval as the API has it."""
        self.messages.append({"type": "mcp_approval_response", "approval_request_id": id, "approve": approve})
        return self._read(*self.send())

    def _read(self, body: dict[str, Any], warnings: str) -> Answer:
        output = body["output"]
        for item in output:
            item.pop("parsed_arguments", None)
            for part in item.get("content") or ():
                part.pop("parsed", None)
        self.messages += output
        parts = [part for item in output if item["type"] == "message" for part in item["content"]]
        calls = [
            Call(item["call_id"], item["name"], json.loads(item["arguments"]))
            for item in output
            if item["type"] == "function_call"
        ]
        thought = [part["text"] for item in output if item["type"] == "reasoning" for part in item["summary"]]
        asked = tuple(item["id"] for item in output if item["type"] == "mcp_approval_request")
        usage = body["usage"]["input_tokens"], body["usage"]["output_tokens"]
        text = "".join([part.get("text", "") for part in parts])
        return Answer(text, tuple(calls), "".join(thought), body["status"], usage, asked, warnings)


class Messages(Conversation):
    """Anthropic Messages."""

    api = "messages"

    def request(self) -> dict[str, Any]:
        wanted = self.wanted
        options: dict[str, Any] = {
            "model": self.model,
            "max_tokens": 2000,
            "messages": self.messages,
            **self.server_fields(),
        }
        if wanted.system:
            options["system"] = wanted.system
        if wanted.tools:
            options["tools"] = [{"name": tool.name, "input_schema": tool.schema} for tool in wanted.tools]
        if wanted.choice:
            options["tool_choice"] = {"type": {"required": "any", "none": "none"}[wanted.choice]}
        if wanted.output and wanted.output != "json":
            options["output_config"] = {"format": {"type": "json_schema", "schema": wanted.output}}
        if wanted.stop:
            options["stop_sequences"] = [wanted.stop]
        return options

    def ask(self, text: str) -> Answer:
        content: list[Any] = [{"type": "text", "text": text}]
        if self.wanted.image:
            source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
            content.append({"type": "image", "source": source})
        if self.wanted.document:
            source = {"type": "base64", "media_type": "application/pdf", "data": PAPER}
            content.append({"type": "document", "source": source})
        self.messages.append({"role": "user", "content": content})
        return self._read(*self.send())

    def answer(self, results: Sequence[tuple[Call, str]]) -> Answer:
        blocks = [{"type": "tool_result", "tool_use_id": call.id, "content": result} for call, result in results]
        self.messages.append({"role": "user", "content": blocks})
        return self._read(*self.send())

    def _read(self, body: dict[str, Any], warnings: str) -> Answer:
        content = body["content"]
        self.messages.append({"role": "assistant", "content": content})
        text = "".join([block["text"] for block in content if block["type"] == "text"])
        thought = "".join([block["thinking"] for block in content if block["type"] == "thinking"])
        calls = [Call(block["id"], block["name"], block["input"]) for block in content if block["type"] == "tool_use"]
        read = body["usage"].get("cache_read_input_tokens") or 0
        usage = body["usage"]["input_tokens"] + read, body["usage"]["output_tokens"]
        return Answer(text, tuple(calls), thought, body["stop_reason"], usage, (), warnings)


class Ollama(Conversation):
    """Ollama's chat: its clients take no further fields, so headers say what is wanted of the server."""

    api = "ollama"

    def headers(self) -> dict[str, str]:
        asks = {"X-Toolgate-Tool-Execution": "auto", "X-Toolgate-Tools": "*"}
        return asks if self.wanted.server_tools else {}

    def request(self) -> dict[str, Any]:
        wanted = self.wanted
        system = [{"role": "system", "content": wanted.system}] if wanted.system else []
        options: dict[str, Any] = {"model": self.model, "messages": [*system, *self.messages]}
        if wanted.tools:
            options["tools"] = [
                {"type": "function", "function": {"name": tool.name, "description": "", "parameters": tool.schema}}
                for tool in wanted.tools
            ]
        if wanted.output:
            options["format"] = wanted.output
        if wanted.stop:
            options["options"] = {"stop": [wanted.stop]}
        return options

    def ask(self, text: str) -> Answer:
        message: dict[str, Any] = {"role": "user", "content": text}
        if self.wanted.image:
            message["images"] = [PIXEL]
        self.messages.append(message)
        return self._read(*self.send())

    def answer(self, results: Sequence[tuple[Call, str]]) -> Answer:
        self.messages += [{"role": "tool", "tool_name": call.name, "content": result} for call, result in results]
        return self._read(*self.send())

    def _read(self, body: dict[str, Any], warnings: str) -> Answer:
        message = body["message"]
        self.messages.append(message)
        calls = [
            Call("", call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls") or ()
        ]
        usage = body.get("prompt_eval_count", 0), body.get("eval_count", 0)
        thought = message.get("thinking") or ""
        return Answer(message["content"], tuple(calls), thought, body.get("done_reason"), usage, (), warnings)


CLIENTS: dict[str, type[Conversation]] = {one.api: one for one in (Chat, Responses, Messages, Ollama)}
