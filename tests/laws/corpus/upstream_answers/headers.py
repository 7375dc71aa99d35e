"""An answer with thirty thousand bytes of headers, and one that never ends them."""

from tests.laws.gateway import Gateway, Served

VARIANTS = ("many", "endless")


async def play(gateway: Gateway, kind: str) -> None:
    lines = "\r\n".join(f"x-{number}: 1" for number in range(3_000 if kind == "many" else 500_000))
    gateway.play(Served(b"{}", f"application/json\r\n{lines}"))
    await gateway.ask("openai_chat", "openai_chat")
