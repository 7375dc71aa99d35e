"""A peer behind the whole gateway: configured as a row, spoken to through an official client."""

import asyncio
from pathlib import Path

from openai import AsyncOpenAI

from tests.upstreams.peers.talking import reference
from toolgate.config import load
from toolgate.server.build import Toolgate
from toolgate.server.edge.listen import listening

CONFIG = """
server: {port: 0}
upstreams:
  platform: {dialect: peer, base_url: "ws://127.0.0.1:%d", api_key: secret}
models:
  - {name: platform, upstream: platform, system: inject}
storage: "sqlite://"
log: {level: error}
"""


async def test_a_conversation_goes_on_at_the_peer_and_only_what_is_new_is_sent(tmp_path: Path) -> None:
    echo = reference.EchoPeer("secret")
    server = await echo.listen("127.0.0.1", 0)
    path = tmp_path / "toolgate.yaml"
    path.write_text(CONFIG % server.sockets[0].getsockname()[1])
    try:
        async with listening(Toolgate(load(path, {}))) as url:
            client = AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
            first = await client.chat.completions.create(
                model="platform", messages=[{"role": "user", "content": "hello"}]
            )
            said = first.choices[0].message.content
            assert said == "You said (1): hello"
            second = await client.chat.completions.create(
                model="platform",
                messages=[
                    {"role": "user", "content": "hello"},
                    {"role": "assistant", "content": said},
                    {"role": "user", "content": "again"},
                ],
            )
            assert second.choices[0].message.content == "You said (2): again"
            await client.close()
    finally:
        server.close()
        await asyncio.wait_for(server.wait_closed(), 5)
