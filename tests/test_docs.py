"""docs/configuration.md names every setting, and none that does not exist (E3)."""

import re
from pathlib import Path

import pytest

from toolgate.config import load
from toolgate.config.reference import QUIRKS, Setting, renewed, settings
from toolgate.dialects.dialect import Quirks
from toolgate.upstreams.catalog import catalog

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"
TEXT = PAGE.read_text("utf-8")
SETTINGS = list(settings())
EXAMPLES = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
ENV = {row.key: "a-key" for row in catalog().rows.values() if row.key} | {"TOOLGATE_KEY": "k", "MY_KEY": "k"}


def test_the_reference_is_what_the_tables_say() -> None:
    assert renewed(TEXT) == TEXT, "run `python -m toolgate.config.reference docs/configuration.md`"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.path)
def test_every_setting_has_help_that_is_a_sentence(setting: Setting) -> None:
    assert re.fullmatch(r"[A-Z`].*[.…]", setting.help), f"{setting.path} is not documented"


def test_every_quirk_is_explained_and_nothing_else_is() -> None:
    assert set(QUIRKS) == set(Quirks.__struct_fields__)


def test_every_setting_that_the_text_names_exists() -> None:
    known = {one.path for one in SETTINGS}
    words = {part for path in known for part in re.split(r"[.\[\]<>]+", path) if part}
    sections = {path.split(".")[0] for path in known}
    prose = re.sub(r"```.*?```|<!-- (\w+) -->.*?<!-- /\1 -->", "", TEXT, flags=re.DOTALL)
    for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)*)`", prose):
        first, _, rest = name.partition(".")
        if rest and first in sections:
            assert name in known, f"{name} is not a setting"
        elif "_" in name:
            assert name in words, f"{name} is not a setting"


@pytest.mark.parametrize("text", EXAMPLES, ids=range(len(EXAMPLES)))
def test_every_example_can_be_used(tmp_path: Path, text: str) -> None:
    path = tmp_path / "toolgate.yaml"
    path.write_text(text)
    assert load(path, ENV).source == path


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3
    assert len(SETTINGS) > 80


def test_the_distribution_has_a_name_that_is_ours() -> None:
    """`toolgate` on PyPI is somebody else's: an instruction to install it would bring a stranger's package."""
    root = PAGE.parent.parent
    pages = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("src/**/*.py")]
    assert len(pages) > 100
    named = re.compile(r"pip install[^\n`]*\btoolgate(?!-server|_server)\b(?!/)")
    assert [str(page) for page in pages if named.search(page.read_text("utf-8"))] == []
