"""Everything that can be listed, with the longest pages and the strangest queries."""

from tests.laws.gateway import Gateway

PATHS = (
    "/v1/models",
    "/v1/tools",
    "/v1/usage",
    "/v1/latency",
    "/v1/chats",
    "/v1/chat/completions",
    "/v1/tool_invocations",
    "/v1/approvals",
    "/v1/approvals/grants",
    "/v1/keys",
    "/api/tags",
    "/api/ps",
    "/api/version",
    "/",
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/v1/runs",
    "/v1/requests",
    "/v1/status",
    "/v1/bridge",
)
VARIANTS = PATHS


async def play(gateway: Gateway, path: str) -> None:
    for query in ("", "?limit=1000", "?limit=999999999", "?after=" + "x" * 7_000, "?" + "&".join(["a=b"] * 1_500)):
        await gateway.get(path + query)
