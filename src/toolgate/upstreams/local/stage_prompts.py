"""Write the prompts of each stage: to answer, to choose a tool, to write the arguments of a call. Pure.

The beginning of each prompt is the same for the same tools, so that the engine has read most of it before.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from toolgate.conversation.request import ToolDef
from toolgate.upstreams.local.history import LocalHistory

Messages: TypeAlias = tuple[Mapping[str, str], ...]

# Characters for the descriptions of all tools together in the choosing prompt, and of one of them.
_ROOM = 6000
_SHORTEST, _LONGEST = 40, 240
# Characters of a question, a result and an earlier turn: on a CPU every token of a prompt takes time.
_QUESTION_TO_CHOOSE, _QUESTION_TO_CALL, _RESULT, _EARLIER = 1500, 6000, 1500, 300
_NO_TOOL_NEEDED = ("Hello, how are you?", "Write a short poem about the sea.", "What is the capital of France?")
# Example tools that cannot be chosen: without them a small model seldom chooses any.
_EXAMPLE_TOOLS = {
    "play_music": ("Plays music.", "Play some jazz."),
    "find_place": ("Tells about shops and other places.", "Is the pharmacy on Main Street still open?"),
}

_CHOOSE = (
    "You choose the tool that is needed for the user's message.\n"
    "Tools:\n{tools}\n- {none}: for greetings, general knowledge and writing\n"
    "Reply with the name of one tool only."
)
_MUST_CHOOSE = (
    "You choose the tool that fits the user's message best.\nTools:\n{tools}\nReply with the name of one tool only."
)
_USER_MESSAGE = "User's message: "
_WHICH = "Which tool helps to answer it?"
_NEXT = "Which tool is needed next? Say {none} if the answer is known now."
_ENOUGH = "User's message: Is the shop open?\nThe tool {} was called with {} and returned:\nopen until 18:00\n"
_NOT_ENOUGH = _ENOUGH.replace("open?", "still open? And play some jazz.")
_SHOP = '{"shop": "bakery"}'
_CALL = (
    "You write the arguments for one call of the tool {name} as a JSON object.\n"
    "{description}\n"
    "Parameters:\n{parameters}\n"
    "Take the values from the user's message, exactly as they are meant. "
    "Leave out optional parameters that the user does not speak of."
)


def name_for_no_tool(tools: Sequence[ToolDef]) -> str:
    """Return the name that stands for no tool and is not the name of one."""
    return "no_tool" if any(tool.name == "none" for tool in tools) else "none"


def to_answer(conversation: LocalHistory) -> Messages:
    """Return the prompt for an answer in text."""
    messages = [_message("system", conversation.system)] if conversation.system else []
    for turn in conversation.turns[:-1]:
        results = [f"({used.render()})" for used in turn.used]  # so that follow-up questions work
        messages.append(_message("user", "\n\n".join([turn.question, *results])))
        if turn.answer:
            messages.append(_message("assistant", turn.answer))
    last = conversation.last
    if last.used:
        rendered = "\n\n".join([used.render() for used in last.used])
        prompt = f"The user asked: {last.question}\n\n{rendered}\n\nAnswer the user."
        messages.append(_message("user", prompt))
    else:
        messages.append(_message("user", last.question))
        if last.answer:  # the client has begun the answer, which the model continues
            messages.append(_message("assistant", last.answer))
    return tuple(messages)


def to_choose(conversation: LocalHistory, tools: Sequence[ToolDef], none: str | None) -> Messages:
    """Return the prompt for choosing a tool; `none` is the name that stands for no tool, where that is allowed."""
    room = min(_LONGEST, max(_SHORTEST, _ROOM // len(tools)))
    listed = [f"- {tool.name}: {clipped(_one_line(tool.description or ''), room)}" for tool in tools]
    if none is None:
        instructions = _MUST_CHOOSE.format(tools="\n".join(listed))
        return (_message("system", instructions), _message("user", _question(conversation, _WHICH)))
    taken = {tool.name for tool in tools}
    examples = {name: example for name, example in _EXAMPLE_TOOLS.items() if name not in taken}
    listed += [f"- {name}: {description}" for name, (description, _) in examples.items()]
    shots = [(question, name) for name, (_, question) in examples.items()]
    shots += [(question, none) for question in _NO_TOOL_NEEDED]
    shown = [(f"{_USER_MESSAGE}{question}\n{_WHICH}", name) for question, name in shots]
    then = _NEXT.format(none=none) if conversation.last.used else _WHICH
    # After a result the examples show both outcomes: one more call is needed, and the answer is known.
    if conversation.last.used:
        shown += [(_NOT_ENOUGH.format("find_place", _SHOP) + then, "play_music")] if len(examples) == 2 else []
        shown.append((_ENOUGH.format("shop_hours", _SHOP) + then, none))
    return (
        _message("system", _CHOOSE.format(tools="\n".join(listed), none=none)),
        *[message for prompt, name in shown for message in (_message("user", prompt), _message("assistant", name))],
        _message("user", _question(conversation, then)),
    )


def to_call(conversation: LocalHistory, tool: ToolDef) -> Messages:
    """Return the prompt for the arguments of this tool."""
    given = tool.input_schema or {}
    required, fields = given.get("required") or (), given.get("properties")
    parameters: list[str] = []
    for name, field in fields.items() if isinstance(fields, Mapping) else ():
        schema = field if isinstance(field, Mapping) else {}  # the schema `true` allows any value
        kind = schema.get("type", "any")
        form = kind if isinstance(kind, str) else "/".join(map(str, kind))
        if "enum" in schema:
            form = "one of " + ", ".join([json.dumps(one, ensure_ascii=False) for one in schema["enum"]])
        inner = {key: schema[key] for key in ("items", "properties") if key in schema}
        detail = clipped(json.dumps(inner, ensure_ascii=False), 400) if inner else ""
        description = clipped(_one_line(str(schema.get("description", ""))), 300)
        need = "required" if name in required else "optional"
        parameters.append(f"- {name} ({form}, {need}): {description} {detail}".rstrip(" :"))
    instructions = _CALL.format(
        name=tool.name,
        description=clipped(_one_line(tool.description or ""), 600),
        parameters="\n".join(parameters) or "none",
    )
    question = _question(conversation, f"Write the arguments for the call of {tool.name}.", _QUESTION_TO_CALL)
    return (_message("system", instructions), _message("user", question))


def clipped(text: str, most: int) -> str:
    """Return the text, or its beginning and end where it is longer."""
    if len(text) <= most:
        return text
    # A request often begins with what it is about and ends with what is wanted.
    return f"{text[: most * 2 // 3]} … {text[-(most // 3) :]}"


def _question(conversation: LocalHistory, then: str, room: int = _QUESTION_TO_CHOOSE) -> str:
    """Return the newest question with its tool results, and earlier turns in short."""
    last = conversation.last
    lines: list[str] = []
    # Two earlier turns, for questions such as "And tomorrow?".
    for turn in conversation.turns[-3:-1]:
        lines.append(f"Earlier the user said: {clipped(_one_line(turn.question), _EARLIER)}")
        if turn.answer:
            lines.append(f"They were answered: {clipped(_one_line(turn.answer), _EARLIER)}")
    question = clipped(last.question, room)
    lines.append(f"{_USER_MESSAGE}{question}")
    lines += [clipped(used.render(), _RESULT) for used in last.used]
    return "\n".join([*lines, then])


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _one_line(text: str) -> str:
    return " ".join(text.split())
