"""Servers that want a token: logins, machines, and metadata that means harm (fault: T8; field: E36)."""

import asyncio
import hashlib
import json
import time
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from msgspec.structs import replace

from tests.tools.mcp.carrier import Carrier
from tests.tools.mcp.staging import calling, eventually, opened, source_of, tool
from tests.tools.mcp.test_remote import handshaking
from tests.tools.mcp.web import Asked, Says, Web, serving
from toolgate.tools.sources.mcp import OAuth, Remote
from toolgate.tools.sources.mcp.line import Trouble
from toolgate.tools.sources.mcp.oauth.addresses import Unsafe, check_address
from toolgate.tools.sources.mcp.oauth.login import login
from toolgate.tools.sources.mcp.oauth.redirect import LoopbackRedirect
from toolgate.tools.sources.mcp.oauth.tokens import Client, Kept, Token, TokenFile
from toolgate.tools.tool import ToolFailure

MACHINE = OAuth(grant="client_credentials", client_id="me", client_secret="s3cret:&")


class Guarded:
    """A server and the authorization server that guards it, at one address; `changes` bend what they say of themselves."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes
        self.good = "token-1"
        self.forms: list[dict[str, str]] = []
        self.expires_in = 3600
        self.access: str | None = None
        self.web: Web | None = None

    @property
    def base(self) -> str:
        assert self.web is not None
        return self.web.url

    async def __call__(self, asked: Asked) -> Says:
        match urlsplit(asked.path).path:
            case "/mcp":
                return await self.resource(asked)
            case "/.well-known/oauth-protected-resource/mcp":
                described = {"resource": f"{self.base}/mcp", "authorization_servers": [self.base]}
                return Says(200, described | self.changes.get("resource", {}))
            case "/.well-known/oauth-authorization-server":
                return self.changes.get("authority_says") or Says(200, self.authority())
            case "/register":
                return Says(201, {"client_id": "registered", "redirect_uris": asked.message["redirect_uris"]})
            case "/token":
                return self.token(asked)
            case _:
                return Says(404)

    async def resource(self, asked: Asked) -> Says:
        if asked.headers.get("authorization") != f"Bearer {self.good}":
            where = f"{self.base}/.well-known/oauth-protected-resource/mcp"
            return Says(401, headers={"www-authenticate": f'Bearer resource_metadata="{where}", scope="tools.run"'})
        return await handshaking(asked)

    def authority(self) -> dict[str, Any]:
        return {
            "issuer": self.base,
            "authorization_endpoint": f"{self.base}/authorize",
            "token_endpoint": f"{self.base}/token",
            "registration_endpoint": f"{self.base}/register",
            "code_challenge_methods_supported": ["S256"],
        } | self.changes.get("authority", {})

    def token(self, asked: Asked) -> Says:
        form = dict(parse_qsl(asked.body.decode()))
        self.forms.append(form | {"authorization": asked.headers.get("authorization", "")})
        if form["grant_type"] == "refresh_token" and form["refresh_token"] != "refresh-1":
            return Says(400, {"error": "invalid_grant"})
        self.good = f"token-{len(self.forms) + 1}"
        token = {"access_token": self.access or self.good, "token_type": "Bearer", "expires_in": self.expires_in}
        return Says(200, token | {"refresh_token": "refresh-1"})


class Person:
    """Somebody at a browser, who grants what is asked; `bend` changes what comes back."""

    uri = "http://127.0.0.1:7/callback"

    def __init__(self, bend: Callable[[dict[str, str]], dict[str, str]] = lambda answer: answer) -> None:
        self.seen: list[str] = []
        self._bend = bend

    def open_browser(self, url: str) -> None:
        self.seen.append(url)

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.seen[0]).query))

    async def answer(self, state: str) -> Mapping[str, str]:
        return self._bend({"code": "the-code", "state": self.query["state"]})


async def logged_in(guarded: Guarded, person: Person, tokens: TokenFile, **options: Any) -> Carrier:
    carrier = Carrier()
    server = Remote(f"{guarded.base}/mcp", headers={"X-Secret": "canary"})
    await login("box", server, carrier, tokens, open_browser=person.open_browser, redirect=person, **options)
    return carrier


async def test_a_person_logs_in_and_the_server_can_be_used(tmp_path: Path) -> None:
    guarded, person, tokens = Guarded(), Person(), TokenFile(tmp_path / "keys" / "tokens.json")
    async with serving(guarded) as guarded.web:
        source = source_of(Remote(f"{guarded.base}/mcp"), http=Carrier(), tokens=tokens)
        async with opened(source):
            assert "run `toolgate mcp login box`" in (source.trouble or "")
            carrier = await logged_in(guarded, person, tokens)
            await eventually(lambda: source.tools)
            assert (await tool(source).invoke(calling())).content
    asked, form = person.query, guarded.forms[0]
    assert asked["resource"] == form["resource"] == f"{guarded.base}/mcp"
    assert (asked["client_id"], asked["scope"], asked["redirect_uri"]) == ("registered", "tools.run", person.uri)
    digest = urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode().rstrip("=")
    assert (asked["code_challenge"], asked["code_challenge_method"]) == (digest, "S256")
    assert (form["code"], form["client_id"]) == ("the-code", "registered")
    assert (tmp_path / "keys" / "tokens.json").stat().st_mode & 0o777 == 0o600
    assert "canary" not in str(carrier.sent), "configured headers are for the server alone"


async def test_a_token_is_renewed_before_it_ends_and_after_it_was_refused(tmp_path: Path) -> None:
    guarded, tokens = Guarded(), TokenFile(tmp_path / "tokens.json")
    guarded.expires_in = 5  # less than what counts as in time
    async with serving(guarded) as guarded.web:
        await logged_in(guarded, Person(), tokens)
        source = source_of(Remote(f"{guarded.base}/mcp"), http=Carrier(), tokens=tokens)
        async with opened(source):
            assert source.tools
            assert guarded.forms[1]["grant_type"] == "refresh_token"
            guarded.expires_in = 3600
            await tool(source).invoke(calling())
            before = len(guarded.forms)
            guarded.good = "revoked"
            with pytest.raises(ToolFailure, match="refused our token"):
                await tool(source).invoke(calling())
            await eventually(lambda: len(guarded.forms) == before + 1 and source.tools)
            assert guarded.web.methods().count("tools/call") == 2


async def test_many_requests_renew_a_token_once(tmp_path: Path) -> None:
    guarded, tokens = Guarded(), TokenFile(tmp_path / "tokens.json")
    async with serving(guarded) as guarded.web:
        await logged_in(guarded, Person(), tokens)
        source = source_of(Remote(f"{guarded.base}/mcp"), http=Carrier(), tokens=tokens)
        async with opened(source):
            kept = source._bearer._kept  # type: ignore[union-attr]  # it has one
            source._bearer._kept = replace(kept, token=replace(kept.token, expires=time.time()))  # type: ignore[union-attr]
            await asyncio.gather(*[tool(source).invoke(calling()) for _ in range(5)])
    assert [form["grant_type"] for form in guarded.forms] == ["authorization_code", "refresh_token"]


async def test_a_machine_gets_its_token_by_itself(tmp_path: Path) -> None:
    """field: E36"""
    guarded = Guarded()
    async with serving(guarded) as guarded.web:
        server = Remote(f"{guarded.base}/mcp", oauth=MACHINE)
        async with opened(source_of(server, http=Carrier(), tokens=TokenFile(tmp_path / "t"))) as source:
            assert source.tools
    form = guarded.forms[0]
    assert (form["grant_type"], form["resource"], form["scope"]) == (
        "client_credentials",
        f"{guarded.base}/mcp",
        "tools.run",
    )
    assert b64decode(form["authorization"].removeprefix("Basic ")) == b"me:s3cret%3A%26"


async def test_a_machine_sends_its_secret_in_the_form_where_only_that_is_understood(tmp_path: Path) -> None:
    guarded = Guarded(authority={"token_endpoint_auth_methods_supported": ["client_secret_post"]})
    async with serving(guarded) as guarded.web:
        server = Remote(f"{guarded.base}/mcp", oauth=MACHINE)
        async with opened(source_of(server, http=Carrier(), tokens=TokenFile(tmp_path / "t"))) as source:
            assert source.tools
    assert guarded.forms[0]["client_secret"] == "s3cret:&"


async def test_a_secret_goes_to_the_authorization_server_it_belongs_to_and_to_no_other(tmp_path: Path) -> None:
    """The MCP server says who guards it, and may say something else another day."""
    guarded, evil, tokens = Guarded(), Guarded(), TokenFile(tmp_path / "t")
    async with serving(guarded) as guarded.web, serving(evil) as evil.web:
        server = Remote(f"{guarded.base}/mcp", oauth=MACHINE)
        async with opened(source_of(server, http=Carrier(), tokens=tokens)) as source:
            assert source.tools
        guarded.changes = {"resource": {"authorization_servers": [evil.base]}}
        guarded.good = "expired"
        async with opened(source_of(server, http=Carrier(), tokens=tokens)) as source:
            assert "nothing was sent there; set oauth.issuer" in str(source.trouble)
        meant = Remote(f"{guarded.base}/mcp", oauth=replace(MACHINE, issuer=f"{evil.base}/"))
        async with opened(source_of(meant, http=Carrier(), tokens=tokens)) as source:
            assert len(evil.forms) > 0
        first = Remote(f"{guarded.base}/mcp", oauth=replace(MACHINE, issuer=guarded.base))
        evil.forms.clear()
        async with opened(source_of(first, http=Carrier(), tokens=TokenFile(tmp_path / "new"))):
            assert evil.forms == []


@pytest.mark.parametrize(
    "changes",
    [
        {"authority": {"authorization_endpoint": "javascript:alert(1)"}},
        {"authority": {"authorization_endpoint": "https://example.org/`reboot`"}},
        {"authority": {"authorization_endpoint": "file:///etc/passwd"}},
        {"authority": {"authorization_endpoint": "http://example.org/authorize"}},
        {"authority": {"authorization_endpoint": "https://good.example@evil.example/"}},
        {"authority": {"token_endpoint": "http://169.254.169.254/latest/token"}},
        {"authority": {"token_endpoint": "https://[::ffff:169.254.169.254]/token"}},
        {"authority": {"registration_endpoint": "http://2852039166/register"}},
        {"authority": {"issuer": "https://somebody.example"}},
        {"authority": {"code_challenge_methods_supported": ["plain"]}},
        {"authority": {"code_challenge_methods_supported": []}},
        {"authority": {"authorization_endpoint": None}},
        {"resource": {"authorization_servers": ["http://169.254.169.254/"]}},
        {"resource": {"authorization_servers": ["https://10.0.0.1/"]}},
        {"resource": {"authorization_servers": []}},
        {"resource": {"authorization_servers": ["https://[x"]}},
        {"resource": {"authorization_servers": ["https://a.example:port/"]}},
        {"resource": {"resource": "https://somebody.example/mcp"}},
        {"authority_says": Says(302, headers={"location": "http://169.254.169.254/"})},
        {"authority_says": Says(200, {"token_endpoint": "x" * 300_000})},
    ],
)
async def test_metadata_that_means_harm_reaches_neither_a_browser_nor_the_network(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    guarded, person, carrier = Guarded(**changes), Person(), Carrier()
    async with serving(guarded) as guarded.web:
        server = Remote(f"{guarded.base}/mcp")
        with pytest.raises(Trouble):
            await login(
                "box",
                server,
                carrier,
                TokenFile(tmp_path / "t"),
                open_browser=person.open_browser,
                redirect=person,
            )
    assert person.seen == []
    assert {urlsplit(url).netloc for _, url, _, _ in carrier.sent} == {urlsplit(guarded.base).netloc}
    assert guarded.forms == []


@pytest.mark.parametrize(
    "bend",
    [
        lambda answer: answer | {"state": "another"},
        lambda answer: {"code": "c"},
        lambda answer: answer | {"iss": "https://evil.example"},
        lambda answer: {"state": answer["state"], "error": "access_denied"},
    ],
    ids=["state", "no state", "issuer", "denied"],
)
async def test_an_answer_that_is_not_ours_gets_no_token(
    bend: Callable[[dict[str, str]], dict[str, str]], tmp_path: Path
) -> None:
    guarded = Guarded()
    async with serving(guarded) as guarded.web:
        with pytest.raises(Trouble):
            await logged_in(guarded, Person(bend), TokenFile(tmp_path / "t"))
    assert guarded.forms == []


def jwt(**claims: Any) -> str:
    body = urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"eyJhbGciOiJub25lIn0.{body}.sig"


async def test_a_token_for_somebody_else_is_refused_and_one_for_the_server_is_not(tmp_path: Path) -> None:
    guarded, tokens = Guarded(), TokenFile(tmp_path / "t")
    async with serving(guarded) as guarded.web:
        guarded.access = jwt(aud=["https://bank.example"])
        with pytest.raises(Trouble, match=r"made out to somebody else: https://bank\.example"):
            await logged_in(guarded, Person(), tokens)
        assert await tokens.load("box") is None
        guarded.access = jwt(aud=guarded.base)
        await logged_in(guarded, Person(), tokens)
        assert await tokens.load("box") is not None


async def test_every_address_of_a_login_goes_through_the_egress_check(tmp_path: Path) -> None:
    checked: list[str] = []

    async def check(url: str) -> None:
        checked.append(urlsplit(url).path)
        if urlsplit(url).path == "/token":
            raise ToolFailure("that address is not for tools")

    guarded, person = Guarded(), Person()
    async with serving(guarded) as guarded.web:
        with pytest.raises(Trouble, match="not for tools"):
            await logged_in(guarded, person, TokenFile(tmp_path / "t"), check_url=check)
    assert person.seen == []
    assert checked == [
        "/mcp",
        "/.well-known/oauth-protected-resource/mcp",
        "/.well-known/oauth-authorization-server",
        "/token",
    ]


async def test_a_token_is_not_sent_to_an_address_it_was_not_made_for(tmp_path: Path) -> None:
    tokens, carrier = TokenFile(tmp_path / "t"), Carrier()
    kept = Kept("https://old.example/mcp", "r", "https://old.example/token", Client("i", "c"), Token("canary"))
    await tokens.save("box", kept)
    async with (
        serving(handshaking) as web,
        opened(source_of(Remote(web.url), http=carrier, tokens=tokens)) as source,
    ):
        assert source.tools
    assert "canary" not in str(carrier.sent)


async def test_a_login_can_be_forgotten_and_a_spoilt_file_counts_as_empty(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "t")
    kept = Kept("https://a.example/mcp", "r", "https://a.example/token", Client("i", "c"), Token("x"))
    await tokens.save("box", kept)
    assert await tokens.load("box") == kept
    await tokens.forget("box")
    assert await tokens.load("box") is None
    (tmp_path / "t").write_text("{")
    assert await tokens.load("box") is None


async def test_the_browser_comes_back_to_a_port_of_this_machine() -> None:
    async with LoopbackRedirect() as redirect:
        place = urlsplit(redirect.uri)
        assert place.hostname == "127.0.0.1"
        hits = (
            "/favicon.ico",
            f"{place.path}?code=x",
            f"{place.path}?code=x&state=other",
            f"{place.path}?code=c%201&state=s",
        )
        for target in hits:
            reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
            writer.write(f"GET {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            page = await reader.read()
            writer.close()
        assert b"200 OK" in page
        assert await redirect.answer("s") == {"code": "c 1", "state": "s"}


@pytest.mark.parametrize(
    "url",
    [
        "https://169.254.169.254/x",
        "https://[fd00:ec2::254]/",
        "https://127.1/",
        "https://0x7f000001/",
        "https://2130706433/",
        "https://0177.0.0.1/",
        "https://[::ffff:127.0.0.1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[2002:7f00:1::]/",
        "https://100.64.0.1/",
        "https://224.0.0.1/",
        "https://localhost./",
        "https://[fe80::1%25eth0]/",
        "https://a.example/\r\nx: y",
        "https://a.example/a b",
        "https://ex\u0430mple.org/",
        "https://a.example:99999/",
        "gopher://a.example/",
        "//a.example/",
        "",
    ],
)
def test_an_address_that_nobody_means_is_unsafe(url: str) -> None:
    with pytest.raises(Unsafe):
        check_address(url, "https://public.example/mcp")


def test_addresses_as_near_as_the_server_itself_are_fine() -> None:
    check_address("https://login.example/authorize?x=1", "https://public.example/mcp")
    check_address("http://127.0.0.1:9/token", "http://localhost:8/mcp")
    check_address("https://10.0.0.2/token", "https://10.0.0.1/mcp")
