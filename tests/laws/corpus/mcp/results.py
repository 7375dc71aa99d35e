"""Results of an MCP server: megabytes of text, many parts, structured content, floods of progress and of blank lines."""

from tests.laws.gateway import Gateway

FORMS = {
    "text": ("word ", 700_000),
    "many": ("word", 80_000),
    "structured": ("word", 80_000),
    "progress": ("word", 20_000),
    "blank": ("", 1_000_000),
}
VARIANTS = tuple(FORMS)


async def play(gateway: Gateway, form: str) -> None:
    text, count = FORMS[form]
    response = await gateway.run_tool("pipe_send", form=form, text=text, count=count)
    assert response.status == 200
