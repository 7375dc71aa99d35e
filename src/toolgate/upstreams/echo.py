"""The built-in `echo` model: no intelligence, no network, so that every endpoint answers the moment the server runs.

It says what it is and repeats the user. Told `call get_weather {"city": "Paris"}` it calls that tool if it is on offer,
several such lines make several calls, and given the results it reports them. It exists to try out clients and tools.
"""

import re
from collections.abc import AsyncIterator, Iterable

from toolgate.conversation.arguments import is_object
from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.events import Delta, ModelResponse, PartEnd, PartStart, StepEnd, StepEvent, StepStart, Usage
from toolgate.conversation.ids import new_call_id
from toolgate.conversation.message import Message, Part, Text, ToolCall, ToolResult, plain_text
from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import Answer

_INSTRUCTION = re.compile(
    r"\bcall\s+(?:the\s+)?(?:tool\s+)?[`\"']?([\w.-]+)[`\"']?\s*(?:with\s*)?(\{.*\})?\s*$", re.IGNORECASE
)
_ABOUT = "I am echo, Toolgate's built-in test model. I only repeat what you say"


class EchoModel:
    """Answers at once, by rule."""

    async def ask(self, request: ModelRequest) -> Answer:
        """The answer, ready."""
        if request.settings.choices > 1:
            raise InvalidRequest("n must be 1: echo gives one answer at a time.", param="n")
        return EchoAnswer(respond(request))


class EchoAnswer:
    """A ready answer, told word by word."""

    upstream = "echo"
    whole = True
    dialect: str | None = None
    warnings: tuple[str, ...] = ()

    def __init__(self, response: ModelResponse) -> None:
        self._response = response

    async def events(self) -> AsyncIterator[list[StepEvent]]:
        """One batch for each part."""
        yield [StepStart(model="echo", usage=self._response.usage)]
        for part in self._response.parts:
            yield _told(part)
        yield [StepEnd(self._response.reason, self._response.usage)]

    async def aclose(self) -> None:
        """Nothing is left open."""


def respond(request: ModelRequest) -> ModelResponse:
    """What echo says to this request."""
    last = request.messages[-1]
    results = _latest_results(request.messages)
    if results:
        parts: tuple[Part, ...] = (Text(_report(results)),)
    elif calls := _wanted_calls(last, request):
        parts = tuple(calls)
    else:
        parts = (Text(_repeat(last, request)),)
    usage = Usage(_words(message.parts for message in request.messages), _words([parts]), estimated=True)
    return ModelResponse(parts, "tool_calls" if isinstance(parts[0], ToolCall) else "stop", usage)


def _latest_results(messages: tuple[Message, ...]) -> list[ToolResult]:
    results: list[ToolResult] = []
    for message in reversed(messages):
        if message.role != "tool":
            break
        results = [part for part in message.parts if isinstance(part, ToolResult)] + results
    return results


def _report(results: list[ToolResult]) -> str:
    lines = [f"{result.name or 'The tool'} {_outcome(result)}: {plain_text(result.content)}" for result in results]
    return "\n".join(lines)


def _outcome(result: ToolResult) -> str:
    return "failed" if result.is_error else "returned"


def _wanted_calls(message: Message, request: ModelRequest) -> list[ToolCall]:
    """The calls that the user's last words ask for, of tools on offer; a forced choice is obeyed without words."""
    offered = {tool.name for tool in request.tools if tool.kind != "hosted"}
    choice = request.tool_choice
    if not offered or (choice and choice.mode == "none") or message.role != "user":
        return []
    found = [_INSTRUCTION.search(line) for line in plain_text(message.parts).splitlines()]
    calls = [_call(match[1], match[2]) for match in found if match and match[1] in offered]
    if not calls and choice and choice.mode == "required":
        name = choice.names[0] if choice.names else sorted(offered)[0]
        return [_call(name, None)]
    return calls[:1] if choice and choice.parallel is False else calls


def _call(name: str, arguments: str | None) -> ToolCall:
    return ToolCall(new_call_id(), name, arguments if arguments and is_object(arguments) else "{}")


def _repeat(message: Message, request: ModelRequest) -> str:
    said = plain_text(message.parts).strip()
    hint = ""
    if request.tools and not said.startswith(_ABOUT):
        hint = f" Say `call {request.tools[0].name} {{...}}` and I will call that tool."
    return f"{_ABOUT}: {said}{hint}" if said else f"{_ABOUT}.{hint}"


def _told(part: Part) -> list[StepEvent]:
    match part:
        case Text(text):
            words: list[StepEvent] = [Delta(word) for word in re.findall(r"\S+\s*|\s+", text)]
            return [PartStart(Text("")), *words, PartEnd(part)]
        case ToolCall():
            opening = ToolCall(part.id, part.name, "")
            pieces = re.findall(r".{1,12}", part.arguments, re.DOTALL)
            return [PartStart(opening), *[Delta(piece) for piece in pieces], PartEnd(part)]
        case _:
            return [PartStart(part), PartEnd(part)]


def _words(groups: Iterable[tuple[Part, ...]]) -> int:
    """Words stand in for tokens: echo has none, and says that the count is an estimate."""
    return sum([len(_spoken(part).split()) for parts in groups for part in parts])


def _spoken(part: Part) -> str:
    match part:
        case Text(text):
            return text
        case ToolCall(name=name, arguments=arguments):
            return f"{name} {arguments}"
        case ToolResult(content=content):
            return plain_text(content)
        case _:
            return ""
