"""Send one request through an official SDK and return its answer as plain JSON: the SDKs of Python, and those of Node.

An SDK is given the arguments of its own call (`chat.completions.create`, `responses.create`, `messages.create`, `chat`). It
returns what the SDK put together, a stream as well as a whole answer, so that a test sees what a user of the SDK would see.
"""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import anthropic
import httpx
import httpx2
import ollama
import openai

NODE_CLIENT = Path(__file__).parent / "node" / "client.mjs"


class SDKError(Exception):
    """An error that the SDK raised as one of its own types; `status` is None for an error inside a stream."""

    def __init__(self, status: int | None, message: str) -> None:
        super().__init__(message)
        self.status = status


class SDK(Protocol):
    """The official clients of one language."""

    def call(
        self,
        api: str,
        options: Mapping[str, Any],
        *,
        stream: bool,
        headers: Mapping[str, str] = {},
        cancel: bool = False,
    ) -> tuple[dict[str, Any], str]:
        """The answer and the gateway's warnings; with `cancel` the stream is left after its first text."""


class PythonSDK:
    """openai, anthropic and ollama from PyPI."""

    def __init__(self, url: str) -> None:
        self._warnings: list[str] = []
        hooks: Any = {"response": [self._read_warnings]}
        self._http = httpx2.Client(event_hooks=hooks, timeout=60)
        self._url = url

    def _read_warnings(self, response: Any) -> None:
        self._warnings.append(response.headers.get("x-toolgate-warning", ""))

    def close(self) -> None:
        self._http.close()

    def openai(self) -> openai.OpenAI:
        """The OpenAI client."""
        return openai.OpenAI(base_url=f"{self._url}/v1", api_key="unused", max_retries=0, http_client=self._http)

    def anthropic(self) -> anthropic.Anthropic:
        """The Anthropic client."""
        return anthropic.Anthropic(base_url=self._url, api_key="unused", max_retries=0, http_client=self._http)

    def call(
        self,
        api: str,
        options: Mapping[str, Any],
        *,
        stream: bool,
        headers: Mapping[str, str] = {},
        cancel: bool = False,
    ) -> tuple[dict[str, Any], str]:
        self._warnings.clear()
        run: Callable[..., dict[str, Any]] = getattr(self, f"_{api}")
        try:
            answer = run(dict(options), stream, dict(headers), cancel)
        except openai.APIError as error:
            raise SDKError(getattr(error, "status_code", None), str(error)) from error
        except anthropic.APIError as error:
            raise SDKError(getattr(error, "status_code", None), str(error)) from error
        except ollama.ResponseError as error:
            raise SDKError(error.status_code, str(error)) from error
        return answer, " ".join(self._warnings).strip()

    def _chat(self, options: Any, stream: bool, headers: dict[str, str], cancel: bool) -> dict[str, Any]:
        api = self.openai().chat.completions
        if not stream:
            return dict(api.create(**options, extra_headers=headers).model_dump(exclude_none=True))
        if cancel:
            with api.create(**options, extra_headers=headers, stream=True) as chunks:
                next(chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content)
            return {}
        with api.stream(**options, extra_headers=headers, stream_options={"include_usage": True}) as events:
            events.until_done()
            final = events.get_final_completion().model_dump(exclude_none=True)
        message = final["choices"][0]["message"]
        message.pop("parsed", None)
        for call in message.get("tool_calls", ()):
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
        return final

    def _responses(self, options: Any, stream: bool, headers: dict[str, str], cancel: bool) -> dict[str, Any]:
        api = self.openai().responses
        if not stream:
            return _response(api.create(**options, extra_headers=headers))
        if cancel:
            with api.create(**options, extra_headers=headers, stream=True) as raw:
                next(event for event in raw if event.type == "response.output_text.delta")
            return {}
        with api.stream(**options, extra_headers=headers) as events:
            events.until_done()
            return _response(events.get_final_response())

    def _messages(self, options: Any, stream: bool, headers: dict[str, str], cancel: bool) -> dict[str, Any]:
        api = self.anthropic().messages
        if not stream:
            return dict(api.create(**options, extra_headers=headers).model_dump(exclude_none=True))
        with api.stream(**options, extra_headers=headers) as events:
            if cancel:
                next(iter(events.text_stream))
                return {}
            return events.get_final_message().model_dump(exclude_none=True)

    def _ollama(self, options: Any, stream: bool, headers: dict[str, str], cancel: bool) -> dict[str, Any]:
        hooks: Any = {"response": [self._read_warnings]}
        with ollama.Client(host=self._url, headers=headers, event_hooks=hooks, timeout=60) as client:
            if not stream:
                return dict(client.chat(**options).model_dump(exclude_none=True))
            chunks = client.chat(**options, stream=True)
            if cancel:
                next(chunk for chunk in chunks if chunk.message.content)
                chunks.close()  # a generator, annotated as an iterator
                return {}
            return folded([chunk.model_dump(exclude_none=True) for chunk in chunks])


def _response(response: Any) -> dict[str, Any]:
    whole: dict[str, Any] = response.model_dump(exclude_none=True)
    for item in whole["output"]:
        item.pop("parsed_arguments", None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    return whole


def folded(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The chunks of an Ollama stream as one answer; its clients leave this to their users."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for chunk in chunks:
        piece = chunk.get("message", {})
        message["content"] += piece.get("content") or ""
        if piece.get("thinking"):
            message["thinking"] = message.get("thinking", "") + piece["thinking"]
        if piece.get("tool_calls"):
            message["tool_calls"] = [*message.get("tool_calls", ()), *piece["tool_calls"]]
    return {**chunks[-1], "message": message}


class NodeSDK:
    """openai, @anthropic-ai/sdk and ollama from npm, in a Node process that reads one request a line."""

    def __init__(self, url: str, process: "subprocess.Popen[str]") -> None:
        self._url = url
        self._process = process

    def call(
        self,
        api: str,
        options: Mapping[str, Any],
        *,
        stream: bool,
        headers: Mapping[str, str] = {},
        cancel: bool = False,
    ) -> tuple[dict[str, Any], str]:
        more = dict(options)
        body = {**more, **more.pop("extra_body", {})}
        asked = {"api": api, "url": self._url, "body": body, "stream": stream, "headers": headers, "cancel": cancel}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        emitted = json.loads(self._process.stdout.readline())
        if "error" in emitted:
            raise SDKError(emitted["error"].get("status"), emitted["error"]["message"])
        answer = emitted["answer"]
        return (folded(answer) if isinstance(answer, list) else answer), emitted["warnings"]


@contextmanager
def node_sdk(url: str, node: str, modules: Path) -> Iterator[NodeSDK]:
    """The SDKs of Node, installed under `modules`, until the block ends."""
    command = [node, str(NODE_CLIENT), str(modules)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield NodeSDK(url, process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def approvals(url: str) -> httpx.Client:
    """A client for the gateway's own endpoints."""
    return httpx.Client(base_url=url, timeout=60)
