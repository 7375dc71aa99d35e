"""Calling a tool in a test the way the runner does: arguments checked against its schema, then run."""

import json
from typing import Any

import jsonschema_rs

from toolgate.conversation.message import Text
from toolgate.tools.tool import Invocation, Output, Tool


def call(tool: Tool, **arguments: Any) -> Invocation:
    """A call of the tool; arguments that its schema forbids fail the test."""
    jsonschema_rs.validator_for(dict(tool.spec.input_schema)).validate(arguments)
    return Invocation("call_1", arguments, json.dumps(arguments), "caller", "session", "key_1")


async def run(tool: Tool, **arguments: Any) -> Output:
    """What the tool gives back."""
    return await tool.invoke(call(tool, **arguments))


async def said(tool: Tool, **arguments: Any) -> str:
    """The text that the tool gives back."""
    return text_of(await run(tool, **arguments))


def text_of(output: Output) -> str:
    """The words of an output."""
    return "".join(part.text for part in output.content if isinstance(part, Text))
