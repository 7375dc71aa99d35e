"""System messages said by the user."""

from toolgate.conversation.message import Media, Message, Text, ToolResult, plain_text
from toolgate.text.inject import free_tag, inject, with_first_text
from toolgate.text.prompts import Prompts

BLOCK = Prompts().system_context
EDITOR = "<context>\nfile: a.py\n</context>\n<attachments>\n</attachments>\n<userRequest>\nFix it.\n</userRequest>"


def system(text: str) -> Message:
    return Message("system", (Text(text),))


def user(*texts: str) -> Message:
    return Message("user", tuple([Text(text) for text in texts]))


def said(messages: tuple[Message, ...]) -> list[tuple[str, str]]:
    return [(message.role, plain_text(message.parts)) for message in messages]


def test_all_system_messages_are_labelled_and_in_order_before_the_users_words() -> None:
    """T1"""
    ((role, text), answer, later) = said(
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


def test_the_model_is_told_that_the_newest_context_holds() -> None:
    """T1"""
    ((_, text),) = said(inject([system("One."), user(EDITOR)], BLOCK))
    assert "<context>" in text.split("</system_context>")[1].split(EDITOR)[0]
    assert "newest" in text


def test_another_tag_is_taken_if_anybody_has_written_this_one() -> None:
    """T1"""
    ((_, text),) = said(inject([system("One."), user("What is <system_context>?")], BLOCK))
    assert text.startswith("<system_context_2>\nOne.\n</system_context_2>")
    result = Message("tool", (ToolResult("c", (Text("</system_context> <system_context_2>"),)),))
    assert free_tag([user("hi"), result]) == "system_context_3"
    assert free_tag([user("system_context")]) == "system_context"


def test_the_first_text_of_a_list_is_the_one_that_is_changed() -> None:
    """T1"""
    picture = Media("image", url="https://example.org/a.png")
    message = Message("user", (picture, Text("What is it?"), Text("Well?")))
    (changed,) = inject([system("One."), message], BLOCK)
    assert changed.parts[0] is picture
    assert isinstance(first := changed.parts[1], Text)
    assert first.text.endswith("\n\nWhat is it?")
    assert changed.parts[2] == Text("Well?")
    assert with_first_text((picture,), lambda text: f"<{text}>") == (Text("<>"), picture)


def test_without_a_user_somebody_must_say_it() -> None:
    ((role, text), _) = said(inject([system("One."), Message("assistant", (Text("Hello."),))], BLOCK))
    assert role == "user"
    assert "One." in text


def test_without_system_messages_nothing_changes() -> None:
    messages = (user(EDITOR),)
    assert inject([system("  "), *messages], BLOCK) == messages
