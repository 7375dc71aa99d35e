"""The first minutes of somebody without a key: the server as `make run` starts it, the official clients, the real model."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest
from anthropic import Anthropic
from ollama import Client
from openai import OpenAI

TOOLS: dict[str, Any] = {"tool_execution": "auto", "use_server_tools": ["calculator", "clock"]}
PRODUCT = "What is 1234 * 5678? Use the calculator."
SECONDS = 300.0  # for an answer, the weights' loading included


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a server without a configuration is; it answers at once, whatever the model is doing."""
    program = Path(sys.executable).with_name("toolgate")
    environment = {name: value for name, value in os.environ.items() if name != "ENABLE_EMBEDDED_MODEL"}
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                [str(program), "serve", "--port", "0"],
                cwd=tmp_path_factory.mktemp("newcomer"),
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(process.terminate)
        said = process.stderr
        assert said is not None
        greeting = next(line for line in said if line.startswith("Toolgate serves"))
        assert "local" in greeting
        yield greeting.split()[-1]


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_openai_chat_answers_from_the_calculator(url: str) -> None:
    """U6 C1 X2"""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", timeout=SECONDS)
    asked: Any = [{"role": "user", "content": PRODUCT}]
    said = client.chat.completions.create(model="local", messages=asked, extra_body=TOOLS)
    assert "7006652" in (said.choices[0].message.content or "").replace(",", "")


def test_openai_responses_looks_at_the_clock(url: str) -> None:
    """U6 C3"""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", timeout=SECONDS)
    said = client.responses.create(model="local", input="What day is it in Tokyo today?", extra_body=TOOLS)
    assert [item.name for item in said.output if item.type == "mcp_call"] == ["clock"]
    assert datetime.now(ZoneInfo("Asia/Tokyo")).strftime("%Y") in said.output_text


def test_anthropic_streams_a_second_turn_of_a_conversation(url: str) -> None:
    """U6 C4"""
    client = Anthropic(base_url=url, api_key="none", timeout=SECONDS)
    turns: Any = [{"role": "user", "content": "My name is Ada. Say hello to me."}]
    first = client.messages.create(model="local", max_tokens=60, messages=turns)
    turns += [{"role": "assistant", "content": text_of(first)}, {"role": "user", "content": "What is my name?"}]
    with client.messages.stream(model="local", max_tokens=60, messages=turns) as stream:
        pieces = list(stream.text_stream)
    assert len(pieces) > 1
    assert "Ada" in "".join(pieces)


def test_ollama_holds_a_conversation(url: str) -> None:
    """U6 C5"""
    client = Client(host=url, timeout=SECONDS)
    said = client.chat(model="local", messages=[{"role": "user", "content": "Which colour has a ripe banana?"}])
    assert "yellow" in (said.message.content or "").lower()


def test_a_plain_post_to_ollamas_api_answers_from_the_calculator(url: str) -> None:
    """U6 C5 X2"""
    body = {"model": "local", "stream": False, "messages": [{"role": "user", "content": PRODUCT}], **TOOLS}
    said = httpx.post(f"{url}/api/chat", json=body, timeout=SECONDS).json()
    assert "7006652" in said["message"]["content"].replace(",", "")
