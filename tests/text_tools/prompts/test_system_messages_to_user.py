"""System messages are put before the first text of the user."""

from toolgate.conversation.message import Media, Message, Text, ToolResult, plain_text
from toolgate.text_tools.prompts import TextToolPromptRenderer
from toolgate.text_tools.prompts.system_messages_to_user import free_tag, inject, with_first_text

BLOCK = TextToolPromptRenderer().system_context
EDITOR = "<context>\nfile: a.py\n</context>\n<attachments>\n</attachments>\n<userRequest>\nFix it.\n</userRequest>"


def system(text: str) -> Message:
    return Message("system", (Text(text),))


def user(*texts: str) -> Message:
    return Message("user", tuple([Text(text) for text in texts]))


def as_pairs(messages: tuple[Message, ...]) -> list[tuple[str, str]]:
    return [(message.role, plain_text(message.parts)) for message in messages]


def test_all_system_messages_are_labelled_and_in_order_before_the_users_text() -> None:
    """spec: T1"""
    ((role, text), answer, later) = as_pairs(
        inject(
            [system("One."), system("Two."), user(EDITOR), Message("assistant", (Text("Ok."),)), user("Next.")], BLOCK
        )
    )
    assert role == "user"
    assert text.index("<system_context>") < text.index("System message 1") < text.index("One.")
    assert text.index("One.") < text.index("System message 2") < text.index("Two.") < text.index("</system_context>")
    assert text.endswith(f"\n\n{EDITOR}")
    assert answer == ("assistant", "Ok.")
    assert later == ("user", "Next.")


def test_the_block_states_that_the_newest_context_counts() -> None:
    """spec: T1"""
    ((_, text),) = as_pairs(inject([system("One."), user(EDITOR)], BLOCK))
    assert "<context>" in text.split("</system_context>")[1].split(EDITOR)[0]
    assert "newest" in text


def test_another_tag_is_used_if_the_conversation_has_this_one() -> None:
    """spec: T1"""
    ((_, text),) = as_pairs(inject([system("One."), user("What is <system_context>?")], BLOCK))
    assert text.startswith("<system_context_2>\nOne.\n</system_context_2>")
    result = Message("tool", (ToolResult("c", (Text("</system_context> <system_context_2>"),)),))
    assert free_tag([user("hi"), result]) == "system_context_3"
    assert free_tag([user("system_context")]) == "system_context"


def test_the_first_text_part_is_changed() -> None:
    """spec: T1"""
    picture = Media("image", url="https://example.org/a.png")
    message = Message("user", (picture, Text("What is it?"), Text("Well?")))
    (changed,) = inject([system("One."), message], BLOCK)
    assert changed.parts[0] is picture
    assert isinstance(first := changed.parts[1], Text)
    assert first.text.endswith("\n\nWhat is it?")
    assert changed.parts[2] == Text("Well?")
    assert with_first_text((picture,), lambda text: f"<{text}>") == (Text("<>"), picture)


def test_without_a_user_message_one_is_added() -> None:
    ((role, text), _) = as_pairs(inject([system("One."), Message("assistant", (Text("Hello."),))], BLOCK))
    assert role == "user"
    assert "One." in text


def test_without_system_messages_nothing_changes() -> None:
    messages = (user(EDITOR),)
    assert inject([system("  "), *messages], BLOCK) == messages
