"""A conversation with tools, written for a model that reads and writes text only.

Tools become a description in front, calls become what the model itself would have written, results become blocks in what
the user says next. Only user and assistant speak in it, in turns, and the system if the model can hear it.

A message is written the same whatever comes after it, so a longer conversation begins with the very bytes of a shorter one;
what the client wishes for this one answer stands at the very end. Knows no upstream.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.message import Media, Message, Part, Text, ToolCall, ToolResult, plain_text
from toolgate.conversation.request import ToolChoice, ToolDef
from toolgate.text.inject import free_tag, system_texts, with_first_text, with_first_user
from toolgate.text.prompts.wording import Manner, Prompts, Result
from toolgate.text.signatures import sample
from toolgate.text.syntax import Syntax, Unsayable
from toolgate.text.syntaxes import syntax as syntax_named
from toolgate.text.writing import json_text

_GAP = "\n\n"
_LONGEST_ARGUMENTS = 500
_END = 256
_FAILED = re.compile(r"\s*(?:error\b\s*(?::|while\b)|<tool_use_error>)", re.IGNORECASE)
_FORM = ToolCall("call_0", "TOOL_NAME", '{"PARAMETER_NAME":"value"}')


class Scribe(Struct, frozen=True):
    """Writes conversations for one model.

    `inject` says that it takes no system messages, `images` that it sees pictures though it calls no tools, `parallel` that
    it may write several calls at once.
    """

    prompts: Prompts
    syntax: Syntax
    inject: bool = True
    images: bool = False
    parallel: bool = True

    @property
    def form(self) -> str:
        """What a call looks like."""
        return self.calls([_FORM], {})

    def write(
        self, messages: Sequence[Message], tools: Sequence[ToolDef], choice: ToolChoice, output: str = ""
    ) -> "Written":
        """The conversation; without tools it is a plain one, whose earlier calls are still told."""
        left_out: list[Media] = []
        tool_prompt = self._tool_prompt(tools, choice, output) if tools else None
        spoken = list(self._spoken(messages, {tool.name: tool for tool in tools}, left_out, bool(tools)))
        told = self._introduced(messages, spoken, tool_prompt)
        parallel = choice.parallel is not False
        tail = self.prompts.choice(choice.mode, choice.names, parallel) if tools else ""
        written = in_turns(_with_tail(told, tail) if tail else told)
        return Written(written, tuple(left_out), changed=bool(tail) or tuple(told) != tuple(messages))

    def calls(self, calls: Sequence[ToolCall], tools: Mapping[str, ToolDef]) -> str:
        """Calls as the model writes them; one that its syntax cannot say is written in another."""
        try:
            return self.syntax.render(calls, tools)
        except Unsayable:
            if len(calls) > 1:
                return "\n".join([self.calls([call], tools) for call in calls])
            return _somehow(calls[0], tools)

    def _tool_prompt(self, tools: Sequence[ToolDef], choice: ToolChoice, output: str) -> str:
        form = self.form
        shown = next((tool for tool in tools if sample(tool)), tools[0])
        example = self.calls([ToolCall("call_0", shown.name, json_text(sample(shown)))], {shown.name: shown})
        manner = Manner(form, example, '"value"' not in form and "'value'" not in form, self.parallel, output)
        return self.prompts.tools(tools, manner)

    def _introduced(
        self, messages: Sequence[Message], spoken: list[Message], tool_prompt: str | None
    ) -> Sequence[Message]:
        """The messages with everything in front that the model must know first."""
        if self.inject:
            texts = system_texts(messages)
            system = self.prompts.system_context(free_tag(messages), texts) if texts else ""
            return with_first_user(spoken, lambda user: self.prompts.first(user, system, tool_prompt))
        leading = 0
        while leading < len(spoken) and spoken[leading].role == "system":
            leading += 1
        said = _GAP.join([plain_text(message.parts) for message in spoken[:leading]])
        rest = with_first_user(spoken[leading:], lambda user: self._first(user, tool_prompt))
        if not tool_prompt and not self.prompts.guidance:
            return (*spoken[:leading], *rest)
        return (Message("system", (Text(self.prompts.system(said, tool_prompt or "")),)), *rest)

    def _first(self, user: str, tool_prompt: str | None) -> str:
        """The user's first words to a model that heard of the tools from the system."""
        return self.prompts.first(user, "", None if tool_prompt is None else "", guided=False)

    def _spoken(
        self, messages: Sequence[Message], tools: Mapping[str, ToolDef], left_out: list[Media], with_tools: bool
    ) -> Iterator[Message]:
        """Each message as text; results of one turn are told together."""
        calls: dict[str, ToolCall] = {}
        results: list[ToolResult] = []
        marks = _Marks(self.prompts.secret)
        first = True
        for message in messages:
            if message.role == "tool":
                results += [part for part in message.parts if isinstance(part, ToolResult)]
                continue
            if results:
                yield self._results(results, calls, left_out, marks)
                results = []
            marks.follow(message)
            calls |= {part.id: part for part in message.parts if isinstance(part, ToolCall)}
            match message.role:
                case "assistant":
                    yield replace(message, parts=tuple(self._answer(message.parts, tools)))
                case "user":
                    parts = tuple(self._visible(message.parts, left_out))
                    if not first:
                        parts = with_first_text(parts, lambda text: self.prompts.next(text, with_tools))
                    first = False
                    yield replace(message, parts=parts)
                case "system" if not self.inject:
                    yield message
        if results:
            yield self._results(results, calls, left_out, marks)

    def _answer(self, parts: Sequence[Part], tools: Mapping[str, ToolDef]) -> Iterator[Part]:
        """What the model said, its calls in its own syntax."""
        pieces: list[str] = []
        calls: list[ToolCall] = []
        for part in (*parts, None):
            if calls and not isinstance(part, ToolCall):
                pieces.append(self.calls(calls, tools))
                calls = []
            match part:
                case Text(text):
                    pieces.append(text)
                case ToolCall(executor=executor) if executor != "provider":
                    calls.append(part)
                case None:
                    pass
                case _:
                    yield part
        if text := "\n".join([piece.strip("\n") for piece in pieces if piece.strip()]):
            yield Text(text)

    def _results(
        self, results: Sequence[ToolResult], calls: Mapping[str, ToolCall], left_out: list[Media], marks: "_Marks"
    ) -> Message:
        told = [self._result(result, calls.get(result.call_id), left_out) for result in results]
        text = Text(self.prompts.results(told, marks.mark([result.text for result in told])))
        shown = [part for result in results for part in self._visible(result.content, []) if isinstance(part, Media)]
        return Message("user", (text, *shown))

    def _result(self, result: ToolResult, call: ToolCall | None, left_out: list[Media]) -> Result:
        text = "\n".join([part.text for part in self._visible(result.content, left_out) if isinstance(part, Text)])
        failed = result.is_error or (result.is_error is None and _FAILED.match(text) is not None)
        given = call.arguments if call else ""
        if len(given) > _LONGEST_ARGUMENTS:
            given = f"{given[:_LONGEST_ARGUMENTS]}…"
        name = result.name or (call.name if call else "")
        return Result(name, given, "ERROR" if failed else "SUCCESS", text)

    def _visible(self, parts: Iterable[Part], left_out: list[Media]) -> Iterator[Part]:
        for part in parts:
            if not isinstance(part, Media) or (self.images and part.kind == "image"):
                yield part
                continue
            left_out.append(part)
            yield Text(self.prompts.media(part.kind, part.name or "", part.mime or ""))


class _Marks:
    """Words around results that no result can know: made of a secret and of what was said before.

    The same conversation has the same marks, so that a longer one begins with the bytes of a shorter one; what follows a
    mark does not change it. Of long texts the beginning and the end count.
    """

    def __init__(self, secret: bytes) -> None:
        self._said = blake2b(key=secret[:64], digest_size=8)

    def follow(self, message: Message) -> None:
        """Whatever is marked from now on comes after this message."""
        self._said.update(message.role.encode())
        for part in message.parts:
            match part:
                case Text(text):
                    self._take(text)
                case ToolCall(name=name, arguments=arguments):
                    self._take(name)
                    self._take(arguments)

    def mark(self, texts: Sequence[str]) -> str:
        """A word that stands in none of the texts; it is another one for what comes later."""
        self._said.update(b"results")
        while any((word := self._said.hexdigest()) in text for text in texts):
            self._said.update(b"again")
        return word

    def _take(self, text: str) -> None:
        ends = text if len(text) <= 2 * _END else text[:_END] + text[-_END:]
        self._said.update(f"{len(text)}:{ends}".encode("utf-8", "replace"))


class Written(Struct, frozen=True):
    """A conversation as text, and what could not be shown in it; not `changed` if it was nothing but text before."""

    messages: tuple[Message, ...]
    left_out: tuple[Media, ...] = ()
    changed: bool = True


def _somehow(call: ToolCall, tools: Mapping[str, ToolDef]) -> str:
    """A call in a syntax that can say it; JSON can say everything."""
    try:
        return syntax_named("invoke").render([call], tools)
    except Unsayable:
        return syntax_named("hermes").render([call], tools)


def _with_tail(messages: Sequence[Message], tail: str) -> Sequence[Message]:
    """The messages with a last word behind everything that the user side said."""
    last = max(place for place, message in enumerate(messages) if message.role == "user")
    message = messages[last]
    ended = replace(message, parts=(*message.parts, Text(tail)))
    return (*messages[:last], ended, *messages[last + 1 :])


def in_turns(messages: Iterable[Message]) -> tuple[Message, ...]:
    """The messages with neighbours of one role made one, and neighbouring texts one text: many models insist on it."""
    turns: list[Message] = []
    for message in messages:
        if turns and turns[-1].role == message.role and message.role != "system":
            before = turns.pop()
            message = replace(before, parts=(*before.parts, *message.parts))
        turns.append(message)
    return tuple([replace(turn, parts=_joined(turn.parts)) for turn in turns])


def _joined(parts: Sequence[Part]) -> tuple[Part, ...]:
    joined: list[Part] = []
    for _, group in groupby(parts, lambda part: isinstance(part, Text)):
        together = list(group)
        texts = [part for part in together if isinstance(part, Text)]
        if len(texts) > 1:
            extra = next((text.extra for text in reversed(texts) if text.extra), texts[0].extra)
            together = [Text(_GAP.join([text.text for text in texts if text.text]), extra)]
        joined += together
    return tuple(joined)
