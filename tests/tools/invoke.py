"""Invoke a tool in a test as the runner does: check the arguments against its schema, then run it."""

import json
from typing import Any

import jsonschema_rs

from toolgate.conversation.message import Text
from toolgate.tools.tool import Tool, ToolCallInput, ToolOutput


def invocation_of(tool: Tool, **arguments: Any) -> ToolCallInput:
    """Make a call of the tool; arguments that its schema forbids fail the test."""
    jsonschema_rs.validator_for(dict(tool.spec.input_schema)).validate(arguments)
    return ToolCallInput("call_1", arguments, json.dumps(arguments), "caller", "session", "key_1")


async def run(tool: Tool, **arguments: Any) -> ToolOutput:
    """Run the tool and return its output."""
    return await tool.invoke(invocation_of(tool, **arguments))


async def run_text(tool: Tool, **arguments: Any) -> str:
    """Run the tool and return its text."""
    return text_of(await run(tool, **arguments))


def text_of(output: ToolOutput) -> str:
    """Return the text of an output."""
    return "".join(part.text for part in output.content if isinstance(part, Text))
