"""docs/text-models.md names every syntax, and none that does not exist."""

import re
from pathlib import Path

from toolgate.text_tools.syntaxes import syntaxes

PAGE = (Path(__file__).parents[2] / "docs" / "text-models.md").read_text("utf-8")


def test_every_syntax_is_documented_and_no_other() -> None:
    table = PAGE.partition("| `syntax` |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split(" | ")[0])}
    assert named == set(syntaxes())
