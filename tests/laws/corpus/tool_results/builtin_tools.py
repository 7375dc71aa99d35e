"""Calls of the tools that come with the server: pages, files, commands and expressions that are long to read."""

import asyncio
import json

from tests.laws.gateway import Gateway, Served, call_answer, chat_answer

PAGES = {
    "brackets": b"<" * 4_000_000,
    "tags": b"<a href=x><b><table><tr><td>" * 140_000,
    "entities": b"&amp;&#x41;&notanentity;" * 160_000,
    "open comments": b"<!--<!" * 600_000,
    "attributes": b"<a " + b"x='y' " * 600_000,
    "scripts": b"<script></scrip" * 260_000,
    "lines": b"\n \n" * 1_300_000,
    "charset": b"<meta charset=utf-16>" + b"\xd8\x00" * 2_000_000,
}
CALLS = {
    "digits": ("calculator", {"expression": "9" * 900}),
    "powers": ("calculator", {"expression": "9**9**9**9"}),
    "brackets": ("calculator", {"expression": "(" * 450 + "1" + ")" * 450}),
    "factorials": ("calculator", {"expression": "factorial(factorial(20))"}),
    "stars": ("search_files", {"pattern": "*a" * 249, "text": "x" * 900}),
    "folders": ("search_files", {"pattern": "**/" * 160 + "z"}),
    "all lines": ("search_files", {"text": "x", "max_results": 500}),
    "read": ("read_file", {"path": "lines.txt"}),
    "change": ("write_file", {"path": "lines.txt", "content": "y x\n" * 60_000}),
    "print": ("run_command", {"command": ["seq", "5000000"]}),
}
VARIANTS = (*[f"page-{kind}" for kind in PAGES], *[f"call-{kind}" for kind in CALLS])


async def play(gateway: Gateway, variant: str) -> None:
    way, kind = variant.split("-")
    if way == "page":
        arguments = json.dumps({"url": f"{gateway.upstream.url}/page", "max_length": 100_000})
        gateway.play(call_answer("fetch", arguments), Served(PAGES[kind], "text/html"), chat_answer())
    else:
        place = gateway.place / "files" / "lines.txt"
        await asyncio.to_thread(place.write_text, "x y\n" * 60_000)
        gateway.play(call_answer(*CALLS[kind]), chat_answer())
    answer = await gateway.ask_with_tools(text=variant)  # by another text, so that it does not go on with another run
    assert b"Done." in answer.body, answer
