"""The first minutes of somebody without a key: `make run`'s server, the README's first screen, the real model."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic

from tests.readme import README, Shown, commands, programs

CURLS = [one for one in commands([README]) if one.asks_local]
PROGRAMS = [one for one in programs([README]) if one.asks_local]
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
        stated = process.stderr
        assert stated is not None
        greeting = next(line for line in stated if line.startswith("Toolgate serves"))
        assert "local" in greeting
        yield greeting.split()[-1]


def test_the_first_screen_asks_the_model_in_the_box() -> None:
    assert (len(CURLS), len(PROGRAMS)) == (1, 1)


@pytest.mark.parametrize("command", CURLS, ids=lambda one: one.name)
def test_curl_gets_an_answer_from_the_calculator(url: str, command: Shown) -> None:
    """spec: U6, C1, X2"""
    ran = subprocess.run(command.words(url), capture_output=True, text=True, timeout=SECONDS, check=True)
    said = json.loads(ran.stdout)["choices"][0]["message"]["content"]
    assert "7006652" in said.replace(",", "")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.name)
def test_the_official_clients_hold_a_conversation_with_clock_and_calculator(url: str, program: Shown) -> None:
    """spec: U6, C3, C4, C5: what is shown is what another minute gave, so each line is looked at for its sense."""
    asked = [sys.executable, "-c", program.at(url)]
    ran = subprocess.run(asked, capture_output=True, text=True, timeout=2 * SECONDS, check=False)
    assert ran.returncode == 0, ran.stderr
    time, root, colours = ran.stdout.splitlines()
    assert re.search(r"\d{1,2}:\d\d", time)
    assert "42" in root
    assert "red" in colours.lower()
    assert len(program.output.splitlines()) == 3


def test_anthropic_streams_a_second_turn_of_a_conversation(url: str) -> None:
    """spec: U6, C4"""
    client = Anthropic(base_url=url, api_key="none", timeout=SECONDS)
    turns: Any = [{"role": "user", "content": "My name is Ada. Say hello to me."}]
    first = client.messages.create(model="local", max_tokens=60, messages=turns)
    stated = "".join([block.text for block in first.content if block.type == "text"])
    turns += [{"role": "assistant", "content": stated}, {"role": "user", "content": "What is my name?"}]
    with client.messages.stream(model="local", max_tokens=60, messages=turns) as stream:
        pieces = list(stream.text_stream)
    assert len(pieces) > 1
    assert "Ada" in "".join(pieces)
