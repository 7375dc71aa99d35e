"""The built-in `echo` model, which needs no network, so that every endpoint works as soon as the server runs.

It introduces itself and repeats the user's message. A line `call get_weather {"city": "Paris"}` in the message makes it
call that tool if it is offered; several such lines make several calls, and what follows a line `then` is called in the next
round. After the last round it lists all results. It exists to try out clients and tools.
"""

import re
from collections.abc import AsyncGenerator, Iterable

from toolgate.conversation.arguments import is_object
from toolgate.conversation.call_ids import new_call_id
from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.events import (
    ModelResponse,
    PartDelta,
    PartEnd,
    PartStart,
    StepEnd,
    StepEvent,
    StepStart,
    Usage,
)
from toolgate.conversation.message import Message, Part, Text, ToolCall, ToolResult, plain_text
from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import ModelStream

# Possessive quantifiers (`++`) never go back, so that a long line of blanks takes linear time.
_INSTRUCTION = re.compile(
    r"\bcall\s++(?:the\s++)?(?:tool\s++)?[`\"']?([\w.-]++)[`\"']?\s*+(?:with\s*+)?", re.IGNORECASE
)
_THEN = re.compile(r"^[ \t]*+then[ \t\r]*+$", re.IGNORECASE | re.MULTILINE)
_ABOUT = "I am echo, Toolgate's built-in test model. I only repeat what you say"


class EchoModel:
    """Responds at once, by rules."""

    async def ask(self, request: ModelRequest) -> ModelStream:
        """Return the whole response."""
        if request.settings.choices > 1:
            raise InvalidRequest("n must be 1: echo gives one answer at a time.", param="n")
        return EchoStream(respond(request))


class EchoStream:
    """A whole response, streamed word by word."""

    upstream = "echo"
    whole = True
    dialect: str | None = None
    warnings: tuple[str, ...] = ()

    def __init__(self, response: ModelResponse) -> None:
        self._response = response

    async def events(self) -> AsyncGenerator[list[StepEvent], None]:
        """Yield one batch for each part."""
        yield [StepStart(model="echo", usage=self._response.usage)]
        for part in self._response.parts:
            # In small pieces, as a model streams, so that clients can be tried with it.
            match part:
                case Text(text):
                    words = [PartDelta(word) for word in re.findall(r"\S+\s*|\s+", text)]
                    yield [PartStart(Text("")), *words, PartEnd(part)]
                case ToolCall():
                    pieces = [PartDelta(piece) for piece in re.findall(r".{1,12}", part.arguments, re.DOTALL)]
                    yield [PartStart(ToolCall(part.id, part.name, "")), *pieces, PartEnd(part)]
                case _:
                    yield [PartStart(part), PartEnd(part)]
        yield [StepEnd(self._response.reason, self._response.usage)]

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""


def respond(request: ModelRequest) -> ModelResponse:
    """Return echo's response to this request."""
    messages = request.messages
    last = messages[-1] if messages else Message("user", ())
    last = next((message for message in reversed(messages) if message.role == "user"), last)
    # The rounds of calls since the user's last message, and their results.
    rounds, results = 0, list[ToolResult]()
    for message in reversed(messages):
        if message.role == "user":
            break
        rounds += message.role == "assistant" and any(isinstance(part, ToolCall) for part in message.parts)
        results = [part for part in message.parts if isinstance(part, ToolResult)] + results
    if calls := _requested_calls(last, rounds, request):
        parts: tuple[Part, ...] = tuple(calls)
    elif results:
        outcomes = [(one, "failed" if one.is_error else "returned") for one in results]
        lines = [f"{one.name or 'The tool'} {outcome}: {plain_text(one.content)}" for one, outcome in outcomes]
        parts = (Text("\n".join(lines)),)
    else:
        text = plain_text(last.parts).strip()
        hint = ""
        if request.tools and not text.startswith(_ABOUT):  # an echo of an echo has the hint already
            hint = f"\n\nSay `call {request.tools[0].name} {{...}}` and I will call that tool."
        parts = (Text(f"{_ABOUT}: {text}{hint}" if text else f"{_ABOUT}.{hint}"),)
    usage = Usage(_count_words(message.parts for message in request.messages), _count_words([parts]), estimated=True)
    return ModelResponse(parts, "tool_calls" if isinstance(parts[0], ToolCall) else "stop", usage)


def _requested_calls(message: Message, rounds: int, request: ModelRequest) -> list[ToolCall]:
    """Return the calls that the last message demands in this round, of offered tools; a forced choice is called anyway."""
    offered = {tool.name for tool in request.tools if tool.kind != "hosted"}
    choice = request.tool_choice
    if not offered or (choice and choice.mode == "none") or message.role != "user":
        return []
    this_round = _THEN.split(plain_text(message.parts))[rounds : rounds + 1]
    found = [_instruction(line.rstrip()) for line in "".join(this_round).splitlines()]
    calls = [_call(*one) for one in found if one and one[0] in offered]
    # Only in the first round, or a client that demands a call in every request would never get an answer.
    if not calls and not rounds and choice and choice.mode == "required":
        name = choice.names[0] if choice.names else sorted(offered)[0]
        return [_call(name, None)]
    return calls[:1] if choice and choice.parallel is False else calls


def _instruction(line: str) -> tuple[str, str | None] | None:
    """Return the tool that the end of the line names, and its arguments."""
    for found in _INSTRUCTION.finditer(line):
        if found.end() == len(line):
            return found[1], None
        if line[found.end()] == "{" and line[-1] == "}":
            return found[1], line[found.end() :]
    return None


def _call(name: str, arguments: str | None) -> ToolCall:
    return ToolCall(new_call_id(), name, arguments if arguments and is_object(arguments) else "{}")


def _count_words(groups: Iterable[tuple[Part, ...]]) -> int:
    """Count words in place of tokens, which echo does not have."""
    texts: list[str] = []
    for parts in groups:
        for part in parts:
            match part:
                case Text(text):
                    texts.append(text)
                case ToolCall(name=name, arguments=arguments):
                    texts += (name, arguments)
                case ToolResult(content=content):
                    texts.append(plain_text(content))
    return sum([len(text.split()) for text in texts])
