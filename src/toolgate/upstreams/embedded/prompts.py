"""What the embedded model is told in each stage: to answer, to choose a tool, to write a call's arguments. Pure.

The beginning of each prompt is the same for the same tools, so that the engine has read most of it before.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from toolgate.conversation.request import ToolDef
from toolgate.upstreams.embedded.turns import Talk, Turn

Messages: TypeAlias = tuple[Mapping[str, str], ...]

_ROOM = 6000
"""Characters for the descriptions of all tools together when one is chosen."""

_SHORTEST, _LONGEST = 40, 240
_QUESTION_TO_CHOOSE, _QUESTION_TO_CALL, _RESULT, _EARLIER = 1500, 6000, 1500, 300
_NO_TOOL_NEEDED = ("Hello, how are you?", "Write a short poem about the sea.", "What is the capital of France?")
_IMAGINED = {
    "play_music": ("Plays music.", "Play some jazz."),
    "find_place": ("Tells about shops and other places.", "Is the pharmacy on Main Street still open?"),
}
"""Tools that are shown being chosen, and that cannot be: without them, a small model thinks that it needs none."""

_CHOOSE = (
    "You choose the tool that is needed for the user's message.\n"
    "Tools:\n{tools}\n- {none}: for greetings, general knowledge and writing\n"
    "Reply with the name of one tool only."
)
_MUST_CHOOSE = (
    "You choose the tool that fits the user's message best.\nTools:\n{tools}\nReply with the name of one tool only."
)
_SAYS = "User's message: "
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


def none_word(tools: Sequence[ToolDef]) -> str:
    """The word for no tool at all, which is no tool's name."""
    return "no_tool" if any(tool.name == "none" for tool in tools) else "none"


def to_answer(talk: Talk) -> Messages:
    """The conversation, to be answered in words."""
    spoken = [_message("system", talk.system)] if talk.system else []
    for turn in talk.turns[:-1]:
        spoken.append(_message("user", _noted(turn)))
        if turn.answer:
            spoken.append(_message("assistant", turn.answer))
    last = talk.last
    if last.used:
        spoken.append(_message("user", _retold(last)))
    else:
        spoken.append(_message("user", last.question))
        if last.answer:  # the client has begun the answer, which is to be gone on with
            spoken.append(_message("assistant", last.answer))
    return tuple(spoken)


def to_choose(talk: Talk, tools: Sequence[ToolDef], none: str | None) -> Messages:
    """Which tool comes next; `none` is the word for no tool, where that may be the answer."""
    room = min(_LONGEST, max(_SHORTEST, _ROOM // len(tools)))
    listed = [f"- {tool.name}: {clipped(_one_line(tool.description or ''), room)}" for tool in tools]
    if none is None:
        told = _MUST_CHOOSE.format(tools="\n".join(listed))
        return (_message("system", told), _message("user", _asked(talk, _WHICH)))
    taken = {tool.name for tool in tools}
    imagined = {name: told for name, told in _IMAGINED.items() if name not in taken}
    listed += [f"- {name}: {description}" for name, (description, _) in imagined.items()]
    shots = [(question, name) for name, (_, question) in imagined.items()]
    shots += [(question, none) for question in _NO_TOOL_NEEDED]
    shown = [(f"{_SAYS}{question}\n{_WHICH}", name) for question, name in shots]
    then = _NEXT.format(none=none) if talk.last.used else _WHICH
    if talk.last.used:
        shown += [(_NOT_ENOUGH.format("find_place", _SHOP) + then, "play_music")] if len(imagined) == 2 else []
        shown.append((_ENOUGH.format("shop_hours", _SHOP) + then, none))
    return (
        _message("system", _CHOOSE.format(tools="\n".join(listed), none=none)),
        *[message for said, name in shown for message in (_message("user", said), _message("assistant", name))],
        _message("user", _asked(talk, then)),
    )


def to_call(talk: Talk, tool: ToolDef) -> Messages:
    """The arguments for this tool."""
    told = _CALL.format(
        name=tool.name,
        description=clipped(_one_line(tool.description or ""), 600),
        parameters=_parameters(tool.input_schema or {}) or "none",
    )
    question = _asked(talk, f"Write the arguments for the call of {tool.name}.", _QUESTION_TO_CALL)
    return (_message("system", told), _message("user", question))


def clipped(text: str, most: int) -> str:
    """The text, or its beginning and its end where it is longer."""
    if len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]} … {text[-(most // 3) :]}"


def _asked(talk: Talk, then: str, room: int = _QUESTION_TO_CHOOSE) -> str:
    """The newest question with what is known, and with what went before it in short."""
    last = talk.last
    lines: list[str] = []
    for turn in talk.turns[-3:-1]:
        lines.append(f"Earlier the user said: {clipped(_one_line(turn.question), _EARLIER)}")
        if turn.answer:
            lines.append(f"They were answered: {clipped(_one_line(turn.answer), _EARLIER)}")
    question = clipped(last.question, room)
    lines.append(f"{_SAYS}{question}")
    lines += [clipped(used.told(), _RESULT) for used in last.used]
    return "\n".join([*lines, then])


def _noted(turn: Turn) -> str:
    """An earlier question with what its tools gave, so that the answer can be asked about."""
    return "\n\n".join([turn.question, *[f"({used.told()})" for used in turn.used]])


def _retold(turn: Turn) -> str:
    told = "\n\n".join([used.told() for used in turn.used])
    return f"The user asked: {turn.question}\n\n{told}\n\nAnswer the user."


def _parameters(schema: Mapping[str, Any]) -> str:
    required = schema.get("required") or ()
    fields = schema.get("properties")
    if not isinstance(fields, Mapping):
        return ""
    return "\n".join([_parameter(name, field, name in required) for name, field in fields.items()])


def _parameter(name: str, field: Any, required: bool) -> str:
    told = field if isinstance(field, Mapping) else {}
    kind = told.get("type", "any")
    form = kind if isinstance(kind, str) else "/".join(map(str, kind))
    if "enum" in told:
        form = "one of " + ", ".join([json.dumps(one, ensure_ascii=False) for one in told["enum"]])
    inner = {key: told[key] for key in ("items", "properties") if key in told}
    detail = clipped(json.dumps(inner, ensure_ascii=False), 400) if inner else ""
    words = clipped(_one_line(str(told.get("description", ""))), 300)
    need = "required" if required else "optional"
    return f"- {name} ({form}, {need}): {words} {detail}".rstrip(" :")


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _one_line(text: str) -> str:
    return " ".join(text.split())
