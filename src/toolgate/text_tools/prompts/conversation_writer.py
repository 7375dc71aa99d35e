"""Write a conversation with tools for a model that reads and writes text only.

Tools become a description at the start, calls become what the model itself would have written, results become blocks in the
next user message. The result has user and assistant messages in turns, and a system message if the model takes one.

A message is written the same whatever comes after it, so a longer conversation starts with the very bytes of a shorter one;
the tool choice for the next answer stands at the very end. Knows no upstream.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.message import NO_EXTRA, Media, Message, Part, Text, ToolCall, ToolResult, plain_text
from toolgate.conversation.request import ToolChoice, ToolDef
from toolgate.conversation.result_delimiters import ResultDelimiterGenerator
from toolgate.text_tools.parsing.call_rendering import json_text
from toolgate.text_tools.parsing.syntax import Syntax, UnrenderableValue
from toolgate.text_tools.prompts.prompt_renderer import CallInstructions, PromptToolResult, TextToolPromptRenderer
from toolgate.text_tools.prompts.system_messages_to_user import free_tag, system_texts, with_first_text, with_first_user
from toolgate.text_tools.prompts.tool_descriptions import sample
from toolgate.text_tools.syntaxes import syntax as syntax_named

_GAP = "\n\n"
_LONGEST_ARGUMENTS = 500  # characters above a result: the model has its whole call in its own message before
# How a result begins that reports an error where the client's API has no field for it; the tag is Claude Code's.
_FAILED = re.compile(r"\s*(?:error\b\s*(?::|while\b)|<tool_use_error>)", re.IGNORECASE)
_FORM_CALL = ToolCall("call_0", "TOOL_NAME", '{"PARAMETER_NAME":"value"}')


class ConversationWriter(Struct, frozen=True):
    """Writes conversations for one model.

    `inject` is set if it takes no system messages, `images` that it sees images though it has no tools, `parallel` that it
    may write several calls at once.
    """

    prompts: TextToolPromptRenderer
    syntax: Syntax
    inject: bool = True
    images: bool = False
    parallel: bool = True

    @property
    def form(self) -> str:
        """The general form of a call."""
        return self.calls([_FORM_CALL], {})

    def write(
        self, messages: Sequence[Message], tools: Sequence[ToolDef], choice: ToolChoice, output: str = ""
    ) -> "WrittenConversation":
        """Write the conversation; without tools it has no tool prompt, but earlier calls are still written."""
        left_out: list[Media] = []
        tool_prompt = None
        if tools:
            form = self.form
            # The example is a call of an offered tool, if possible of one that takes arguments.
            shown = next((tool for tool in tools if sample(tool)), tools[0])
            example = self.calls([ToolCall("call_0", shown.name, json_text(sample(shown)))], {shown.name: shown})
            tagged = '"value"' not in form and "'value'" not in form
            tool_prompt = self.prompts.tools(tools, CallInstructions(form, example, tagged, self.parallel, output))
        texts = list(self._as_text(messages, {tool.name: tool for tool in tools}, left_out, bool(tools)))
        introduced = self._introduce(messages, texts, tool_prompt)
        parallel = choice.parallel is not False
        choice_prompt = self.prompts.choice(choice.mode, choice.names, parallel) if tools else ""
        written = introduced
        if choice_prompt:  # behind the last user message, so that all before it stays in the upstream's prompt cache
            last = max(place for place, message in enumerate(introduced) if message.role == "user")
            last_user = replace(introduced[last], parts=(*introduced[last].parts, Text(choice_prompt)))
            written = (*introduced[:last], last_user, *introduced[last + 1 :])
        changed = bool(choice_prompt) or tuple(introduced) != tuple(messages)
        return WrittenConversation(in_turns(written), tuple(left_out), changed)

    def calls(self, calls: Sequence[ToolCall], tools: Mapping[str, ToolDef]) -> str:
        """Render calls as the model writes them; a call that its syntax cannot express is rendered in another."""
        try:
            return self.syntax.render(calls, tools)
        except UnrenderableValue:
            if len(calls) > 1:
                return "\n".join([self.calls([call], tools) for call in calls])
        try:
            return syntax_named("invoke").render(calls, tools)
        except UnrenderableValue:
            return syntax_named("hermes").render(calls, tools)  # JSON can express everything

    def _introduce(
        self, messages: Sequence[Message], texts: list[Message], tool_prompt: str | None
    ) -> Sequence[Message]:
        """Put system messages and the tool prompt before the conversation."""
        if self.inject:
            system_parts = system_texts(messages)
            system = self.prompts.system_context(free_tag(messages), system_parts) if system_parts else ""
            return with_first_user(texts, lambda user: self.prompts.first(user, system, tool_prompt))
        leading = 0
        while leading < len(texts) and texts[leading].role == "system":
            leading += 1
        # The tools are described in the system message, not in the first message of the user.
        described = None if tool_prompt is None else ""
        rest = with_first_user(texts[leading:], lambda user: self.prompts.first(user, "", described, guided=False))
        if not tool_prompt and not self.prompts.guidance:
            return (*texts[:leading], *rest)
        system = _GAP.join([plain_text(message.parts) for message in texts[:leading]])
        others = [part for message in texts[:leading] for part in message.parts if not isinstance(part, Text)]
        extra = texts[0].extra if leading else NO_EXTRA
        return (Message("system", (Text(self.prompts.system(system, tool_prompt or "")), *others), extra), *rest)

    def _as_text(
        self, messages: Sequence[Message], tools: Mapping[str, ToolDef], left_out: list[Media], with_tools: bool
    ) -> Iterator[Message]:
        """Yield each message as text; results of one turn become one message."""
        calls: dict[str, ToolCall] = {}
        results: list[ToolResult] = []
        marks = ResultDelimiterGenerator(self.prompts.secret)
        first = True
        for message in messages:
            if message.role == "tool":
                results += [part for part in message.parts if isinstance(part, ToolResult)]
                continue
            if results:
                yield self._results(results, calls, left_out, marks)
                results = []
            marks.add(message)
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
        """Yield the parts of an answer, its calls as text in the model's own syntax."""
        pieces: list[str] = []
        calls: list[ToolCall] = []
        # Adjacent calls are rendered together, since some syntaxes put a wrapper around all of them; None ends the last.
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
        self,
        results: Sequence[ToolResult],
        calls: Mapping[str, ToolCall],
        left_out: list[Media],
        marks: ResultDelimiterGenerator,
    ) -> Message:
        texts: list[PromptToolResult] = []
        for result in results:
            call = calls.get(result.call_id)
            text = "\n".join([part.text for part in self._visible(result.content, left_out) if isinstance(part, Text)])
            failed = result.is_error or (result.is_error is None and _FAILED.match(text) is not None)
            given = call.arguments if call else ""
            if len(given) > _LONGEST_ARGUMENTS:
                given = f"{given[:_LONGEST_ARGUMENTS]}…"
            name = result.name or (call.name if call else "")
            texts.append(PromptToolResult(name, given, "ERROR" if failed else "SUCCESS", text))
        written = Text(self.prompts.results(texts, marks.mark([one.text for one in texts])))
        # Images cannot stand inside the text of a result, so they follow it.
        shown = [part for result in results for part in self._visible(result.content, []) if isinstance(part, Media)]
        return Message("user", (written, *shown))

    def _visible(self, parts: Iterable[Part], left_out: list[Media]) -> Iterator[Part]:
        for part in parts:
            if not isinstance(part, Media) or (self.images and part.kind == "image"):
                yield part
                continue
            left_out.append(part)
            yield Text(self.prompts.media(part.kind, part.name or "", part.mime or ""))


class WrittenConversation(Struct, frozen=True):
    """A conversation as text, and the media that were left out; not `changed` if it was nothing but text before."""

    messages: tuple[Message, ...]
    left_out: tuple[Media, ...] = ()
    changed: bool = True


def in_turns(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Join adjacent messages of one role, and adjacent texts in them: many models insist on it."""
    turns: list[Message] = []
    for message in messages:
        if turns and turns[-1].role == message.role and message.role != "system":
            before = turns.pop()
            message = replace(before, parts=(*before.parts, *message.parts))
        turns.append(message)
    for place, turn in enumerate(turns):
        joined: list[Part] = []
        for _, group in groupby(turn.parts, lambda part: isinstance(part, Text)):
            together = list(group)
            texts = [part for part in together if isinstance(part, Text)]
            if len(texts) > 1:
                # The fields of the last one, since `cache_control` stands at the end of what is cached.
                extra = next((text.extra for text in reversed(texts) if text.extra), texts[0].extra)
                together = [Text(_GAP.join([text.text for text in texts if text.text]), extra)]
            joined += together
        turns[place] = replace(turn, parts=tuple(joined))
    return tuple(turns)
