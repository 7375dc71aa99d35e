"""The built-in test model."""

from toolgate.conversation.message import Message, Text
from toolgate.conversation.request import ModelRequest, ToolDef
from toolgate.upstreams.echo import respond


def test_the_hint_about_tools_is_a_paragraph_of_its_own() -> None:
    asked = ModelRequest("echo", (Message("user", (Text("Hello there"),)),), tools=(ToolDef("calculator"),))
    [answer] = respond(asked).parts
    assert isinstance(answer, Text)
    assert answer.text.endswith(
        "repeat what you say: Hello there\n\nSay `call calculator {...}` and I will call that tool."
    )
