"""Tools in class form: a person is asked before a note is deleted."""

from dataclasses import dataclass
from pathlib import Path

from toolgate import lm

FOLDER = Path("notes")
"""In the folder in which the server was started; `Path(__file__).parent / "notes"` would be beside this file."""


@dataclass
class Title:
    """Which note."""

    title: str


def _file(title: str) -> Path:
    """The note's file; a title cannot lead out of the folder."""
    if not title.replace(" ", "").replace("-", "").isalnum():
        raise lm.ToolFailure("A title has letters, digits, spaces and hyphens only.")
    return FOLDER / f"{title}.txt"


@lm.tool(tags=["notes"], annotations=lm.Annotations(destructive=False, idempotent=True, open_world=False))
def write_note(title: str, text: str) -> str:
    """Write a note, or write it anew.

    :param title: A few words by which it is found again.
    :param text: The note itself.
    """
    FOLDER.mkdir(exist_ok=True)
    _file(title).write_text(text, "utf-8")
    return f"Wrote {title}."


@lm.tool(tags=["notes"], annotations=lm.Annotations(read_only=True, destructive=False, open_world=False))
def list_notes() -> list[str]:
    """The titles of all notes."""
    return sorted(file.stem for file in FOLDER.glob("*.txt"))


class DeleteNote:
    """Delete a note for good."""

    tags = ("notes",)

    def prepare_invocation(
        self, options: lm.LanguageModelToolInvocationPrepareOptions[Title], token: lm.CancellationToken
    ) -> lm.PreparedToolInvocation:
        """Ask a person first."""
        title = options.input.title
        return lm.PreparedToolInvocation(
            invocation_message=f"Deleting {title}",
            confirmation_messages=lm.ConfirmationMessages("Delete a note", f"Delete the note “{title}” for good?"),
        )

    def invoke(
        self, options: lm.LanguageModelToolInvocationOptions[Title], token: lm.CancellationToken
    ) -> lm.LanguageModelToolResult:
        """Delete it."""
        file = _file(options.input.title)
        if not file.exists():
            raise lm.ToolFailure(f"There is no note {options.input.title}; list_notes tells which there are.")
        file.unlink()
        return lm.LanguageModelToolResult([lm.LanguageModelTextPart(f"Deleted {options.input.title}.")])


lm.register_tool("delete_note", DeleteNote())
