"""Servers that want a token: logins, machines, and metadata that means harm (fault: T8; field: E36)."""

import asyncio
import errno
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

from tests.mcp.client.recording_client import RecordingHttpClient
from tests.mcp.client.scripted_server import ReceivedRequest, ScriptedResponse, ScriptedServer, serving
from tests.mcp.client.sources import calling, eventually, opened, source_of, tool
from tests.mcp.client.test_http import handshaking
from tests.mcp.client.test_limits import deep
from toolgate.mcp.client import OAuthConfig, RemoteServerConfig
from toolgate.mcp.oauth.addresses import UnsafeOAuthAddress, check_address
from toolgate.mcp.oauth.login import login
from toolgate.mcp.oauth.login_storage import AccessToken, LoginFile, OAuthClient, StoredLogin
from toolgate.mcp.oauth.redirect import LoopbackRedirectServer
from toolgate.mcp.protocol.transport import McpError
from toolgate.tools.tool import ToolCallFailed

MACHINE = OAuthConfig(grant="client_credentials", client_id="me", client_secret="s3cret:&")


class Guarded:
    """A server and the authorization server that guards it, at one address; `changes` bend what they say of themselves."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes
        self.good = "token-1"
        self.forms: list[dict[str, str]] = []
        self.expires_in = 3600
        self.access: str | None = None
        self.rotating = False
        """Whether a refresh token is good once, as it is for clients without a secret."""
        self.refresh = "refresh-1"
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        self.go.set()
        self.web: ScriptedServer | None = None

    @property
    def base(self) -> str:
        assert self.web is not None
        return self.web.url

    async def __call__(self, asked: ReceivedRequest) -> ScriptedResponse:
        match urlsplit(asked.path).path:
            case "/mcp":
                return await self.resource(asked)
            case "/.well-known/oauth-protected-resource/mcp":
                described = {"resource": f"{self.base}/mcp", "authorization_servers": [self.base]}
                return ScriptedResponse(200, described | self.changes.get("resource", {}))
            case "/.well-known/oauth-authorization-server":
                return self.changes.get("authority_says") or ScriptedResponse(200, self.authority())
            case "/register":
                registered = {"client_id": "registered", "redirect_uris": asked.message["redirect_uris"]}
                return ScriptedResponse(201, registered | self.changes.get("registered", {}))
            case "/token":
                output = self.token(asked)
                self.asked.set()
                await self.go.wait()
                return output
            case _:
                return ScriptedResponse(404)

    async def resource(self, asked: ReceivedRequest) -> ScriptedResponse:
        if asked.headers.get("authorization") != f"Bearer {self.good}":
            where = f"{self.base}/.well-known/oauth-protected-resource/mcp"
            challenge = {"www-authenticate": f'Bearer resource_metadata="{where}", scope="tools.run"'}
            return ScriptedResponse(401, headers=self.changes.get("challenge", challenge))
        return await handshaking(asked)

    def authority(self) -> dict[str, Any]:
        return {
            "issuer": self.base,
            "authorization_endpoint": f"{self.base}/authorize",
            "token_endpoint": f"{self.base}/token",
            "registration_endpoint": f"{self.base}/register",
            "code_challenge_methods_supported": ["S256"],
            **self.changes.get("authority", {}),
        }

    def token(self, asked: ReceivedRequest) -> ScriptedResponse:
        form = dict(parse_qsl(asked.body.decode()))
        self.forms.append(form | {"authorization": asked.headers.get("authorization", "")})
        if form["grant_type"] == "refresh_token" and form["refresh_token"] != self.refresh:
            return ScriptedResponse(400, {"error": "invalid_grant"})
        self.good = f"token-{len(self.forms) + 1}"
        token = {"access_token": self.access or self.good, "token_type": "Bearer", "expires_in": self.expires_in}
        if self.rotating:
            self.refresh = f"refresh-{len(self.forms) + 1}"
        return ScriptedResponse(200, {**token, "refresh_token": self.refresh})


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

    async def wait(self, state: str) -> Mapping[str, str]:
        return self._bend({"code": "the-code", "state": self.query["state"]})


async def logged_in(guarded: Guarded, person: Person, tokens: LoginFile, **options: Any) -> RecordingHttpClient:
    client = RecordingHttpClient()
    server = RemoteServerConfig(f"{guarded.base}/mcp", headers={"X-Secret": "canary"})
    await login("box", server, client, tokens, open_browser=person.open_browser, redirect=person, **options)
    return client


async def test_a_person_logs_in_and_the_server_can_be_used(tmp_path: Path) -> None:
    guarded, person, tokens = Guarded(), Person(), LoginFile(tmp_path / "keys" / "tokens.json")
    async with serving(guarded) as guarded.web:
        source = source_of(RemoteServerConfig(f"{guarded.base}/mcp"), http=RecordingHttpClient(), tokens=tokens)
        async with opened(source):
            assert "run `toolgate mcp login box`" in (source.problem or "")
            client = await logged_in(guarded, person, tokens)
            await eventually(lambda: source.tools)
            assert (await tool(source).invoke(calling())).content
    asked, form = person.query, guarded.forms[0]
    assert asked["resource"] == form["resource"] == f"{guarded.base}/mcp"
    assert (asked["client_id"], asked["scope"], asked["redirect_uri"]) == ("registered", "tools.run", person.uri)
    digest = urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode().rstrip("=")
    assert (asked["code_challenge"], asked["code_challenge_method"]) == (digest, "S256")
    assert (form["code"], form["client_id"]) == ("the-code", "registered")
    assert (tmp_path / "keys" / "tokens.json").stat().st_mode & 0o777 == 0o600
    assert "canary" not in str(client.sent), "configured headers are for the server alone"


async def test_a_token_is_renewed_before_it_ends_and_after_it_was_refused(tmp_path: Path) -> None:
    guarded, tokens = Guarded(), LoginFile(tmp_path / "tokens.json")
    guarded.expires_in = 5  # less than what counts as in time
    async with serving(guarded) as guarded.web:
        await logged_in(guarded, Person(), tokens)
        source = source_of(RemoteServerConfig(f"{guarded.base}/mcp"), http=RecordingHttpClient(), tokens=tokens)
        async with opened(source):
            assert source.tools
            assert guarded.forms[1]["grant_type"] == "refresh_token"
            guarded.expires_in = 3600
            await tool(source).invoke(calling())
            before = len(guarded.forms)
            guarded.good = "revoked"
            with pytest.raises(ToolCallFailed, match="refused our token"):
                await tool(source).invoke(calling())
            await eventually(lambda: len(guarded.forms) == before + 1 and source.tools)
            assert guarded.web.methods().count("tools/call") == 2


async def test_many_requests_renew_a_token_once(tmp_path: Path) -> None:
    guarded, tokens = Guarded(), LoginFile(tmp_path / "tokens.json")
    async with serving(guarded) as guarded.web:
        await logged_in(guarded, Person(), tokens)
        source = source_of(RemoteServerConfig(f"{guarded.base}/mcp"), http=RecordingHttpClient(), tokens=tokens)
        async with opened(source):
            assert source._bearer is not None
            kept = source._bearer._login
            assert kept is not None
            source._bearer._login = replace(kept, token=replace(kept.token, expires=time.time()))
            await asyncio.gather(*[tool(source).invoke(calling()) for _ in range(5)])
    assert [form["grant_type"] for form in guarded.forms] == ["authorization_code", "refresh_token"]


async def _about_to_end(guarded: Guarded, tokens: LoginFile) -> None:
    """Log in, with a token that has to be renewed before it is used."""
    guarded.rotating, guarded.expires_in = True, 5
    await logged_in(guarded, Person(), tokens)
    guarded.expires_in = 3600


async def test_a_login_survives_a_request_that_is_cancelled_while_its_token_is_renewed(tmp_path: Path) -> None:
    guarded, tokens = Guarded(), LoginFile(tmp_path / "tokens.json")
    async with serving(guarded) as guarded.web:
        await _about_to_end(guarded, tokens)
        source = source_of(RemoteServerConfig(f"{guarded.base}/mcp"), http=RecordingHttpClient(), tokens=tokens)
        async with opened(source):
            kept = await tokens.load("box")
            assert kept is not None
            await tokens.save("box", replace(kept, token=replace(kept.token, expires=time.time())))
            source._bearer.forget()  # type: ignore[union-attr]
            guarded.asked.clear()
            guarded.go.clear()
            leaving = asyncio.ensure_future(tool(source).invoke(calling()))
            await guarded.asked.wait()
            leaving.cancel()
            await asyncio.wait([leaving])
            guarded.go.set()
            await tool(source).invoke(calling())
    stored = await tokens.load("box")
    assert stored is not None
    assert (stored.token.access, stored.token.refresh) == (guarded.good, guarded.refresh)


async def test_attempts_to_connect_share_one_request_for_a_token_that_holds_up_no_shutdown(tmp_path: Path) -> None:
    guarded = Guarded()
    guarded.go.clear()  # the authorization server does not answer
    async with serving(guarded) as web:
        guarded.web = web
        server = RemoteServerConfig(f"{guarded.base}/mcp", oauth=MACHINE)
        options = {"tokens": LoginFile(tmp_path / "tokens.json"), "connect_seconds": 0.05}
        async with opened(source_of(server, http=RecordingHttpClient(), **options)) as source:
            await guarded.asked.wait()
            before = len(web.asked)
            await eventually(lambda: len(web.asked) >= before + 3)
            await source.aclose()
            assert len(guarded.forms) == 1, "no further request had waited for this one"
            guarded.go.set()


async def test_workers_that_share_a_login_use_each_refresh_token_once(tmp_path: Path) -> None:
    guarded, path = Guarded(), tmp_path / "tokens.json"
    async with serving(guarded) as guarded.web:
        await _about_to_end(guarded, LoginFile(path))
        workers = [
            source_of(RemoteServerConfig(f"{guarded.base}/mcp"), http=RecordingHttpClient(), tokens=LoginFile(path))
            for _ in range(4)
        ]
        for worker in workers:
            await worker.open(lambda: None)
        async with asyncio.timeout(60):
            await asyncio.gather(*[worker.settled() for worker in workers])
        assert all(worker.tools for worker in workers)
        for worker in workers:
            await worker.aclose()
    assert [form["grant_type"] for form in guarded.forms] == ["authorization_code", "refresh_token"]


async def test_logins_of_several_servers_are_kept_together(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    kept = StoredLogin("https://a", "https://a", "https://a/token", OAuthClient("https://a", "me"), AccessToken("t"))
    await asyncio.gather(*[LoginFile(path).save(f"server-{number}", kept) for number in range(40)])
    assert all([await LoginFile(path).load(f"server-{number}") for number in range(40)])


async def test_a_file_that_cannot_be_read_for_a_while_keeps_the_logins_of_other_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens.json"
    kept = StoredLogin("https://a", "https://a", "https://a/token", OAuthClient("https://a", "me"), AccessToken("t"))
    await LoginFile(path).save("other", kept)

    def fail(path: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "read_bytes", fail)
        assert await LoginFile(path).load("other") is None
        with pytest.raises(OSError, match="Input/output error"):
            await LoginFile(path).save("box", kept)
    assert await LoginFile(path).load("other") == kept


async def test_a_machine_gets_its_token_by_itself(tmp_path: Path) -> None:
    """field: E36"""
    guarded = Guarded()
    async with serving(guarded) as guarded.web:
        server = RemoteServerConfig(f"{guarded.base}/mcp", oauth=MACHINE)
        async with opened(source_of(server, http=RecordingHttpClient(), tokens=LoginFile(tmp_path / "t"))) as source:
            assert source.tools
    form = guarded.forms[0]
    assert (form["grant_type"], form["resource"], form["scope"]) == (
        "client_credentials",
        f"{guarded.base}/mcp",
        "tools.run",
    )
    assert b64decode(form["authorization"].removeprefix("Basic ")) == b"me:s3cret%3A%26"


async def test_a_token_that_cannot_be_stored_is_used_until_the_end_of_the_process(tmp_path: Path) -> None:
    """The folder of the configuration may be read-only, or its disk full."""
    guarded, evil, tokens = Guarded(), Guarded(), LoginFile(tmp_path / "file" / "tokens.json")
    (tmp_path / "file").touch()
    async with serving(guarded) as guarded.web, serving(evil) as evil.web:
        server = RemoteServerConfig(f"{guarded.base}/mcp", oauth=MACHINE)
        async with opened(source_of(server, http=RecordingHttpClient(), tokens=tokens)) as source:
            assert source.tools, source.problem
            assert source._bearer is not None
            source._bearer.forget()  # as for a new connection
            assert await source._bearer.token() == guarded.good
            guarded.changes = {"resource": {"authorization_servers": [evil.base]}}
            assert not await source._bearer.renew("")
            assert (len(guarded.forms), evil.forms) == (1, [])
        guarded.changes = {}
        with pytest.raises(McpError, match="the login cannot be stored: File exists"):
            await logged_in(guarded, Person(), tokens)


async def test_a_machine_sends_its_secret_in_the_form_where_only_that_is_understood(tmp_path: Path) -> None:
    guarded = Guarded(authority={"token_endpoint_auth_methods_supported": ["client_secret_post"]})
    async with serving(guarded) as guarded.web:
        server = RemoteServerConfig(f"{guarded.base}/mcp", oauth=MACHINE)
        async with opened(source_of(server, http=RecordingHttpClient(), tokens=LoginFile(tmp_path / "t"))) as source:
            assert source.tools
    assert guarded.forms[0]["client_secret"] == "s3cret:&"


async def test_a_secret_goes_to_the_authorization_server_it_belongs_to_and_to_no_other(tmp_path: Path) -> None:
    """The MCP server says who guards it, and may say something else another day."""
    guarded, evil, tokens = Guarded(), Guarded(), LoginFile(tmp_path / "t")
    async with serving(guarded) as guarded.web, serving(evil) as evil.web:
        server = RemoteServerConfig(f"{guarded.base}/mcp", oauth=MACHINE)
        async with opened(source_of(server, http=RecordingHttpClient(), tokens=tokens)) as source:
            assert source.tools
        guarded.changes = {"resource": {"authorization_servers": [evil.base]}}
        guarded.good = "expired"
        async with opened(source_of(server, http=RecordingHttpClient(), tokens=tokens)) as source:
            assert "nothing was sent there; set oauth.issuer" in str(source.problem)
        meant = RemoteServerConfig(f"{guarded.base}/mcp", oauth=replace(MACHINE, issuer=f"{evil.base}/"))
        async with opened(source_of(meant, http=RecordingHttpClient(), tokens=tokens)) as source:
            assert len(evil.forms) > 0
        first = RemoteServerConfig(f"{guarded.base}/mcp", oauth=replace(MACHINE, issuer=guarded.base))
        evil.forms.clear()
        async with opened(source_of(first, http=RecordingHttpClient(), tokens=LoginFile(tmp_path / "new"))):
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
        {"resource": {"scopes_supported": ["x" * 9000]}, "challenge": {}},
        {"registered": {"client_id": ""}},
        {"registered": {"client_id": "x" * 200_000}},
        {"registered": {"client_id": "a\x00\nb"}},
        {"authority_says": ScriptedResponse(302, headers={"location": "http://169.254.169.254/"})},
        {"authority_says": ScriptedResponse(200, {"token_endpoint": "x" * 300_000})},
        {"authority": {"x": deep(600)}},
    ],
)
async def test_metadata_that_means_harm_reaches_neither_a_browser_nor_the_network(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    guarded, person, client = Guarded(**changes), Person(), RecordingHttpClient()
    async with serving(guarded) as guarded.web:
        server = RemoteServerConfig(f"{guarded.base}/mcp")
        with pytest.raises(McpError):
            await login(
                "box",
                server,
                client,
                LoginFile(tmp_path / "t"),
                open_browser=person.open_browser,
                redirect=person,
            )
    assert person.seen == []
    assert {urlsplit(url).netloc for _, url, _, _ in client.sent} == {urlsplit(guarded.base).netloc}
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
        with pytest.raises(McpError):
            await logged_in(guarded, Person(bend), LoginFile(tmp_path / "t"))
    assert guarded.forms == []


def jwt(**claims: Any) -> str:
    body = urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"eyJhbGciOiJub25lIn0.{body}.sig"


async def test_a_token_for_another_audience_is_refused_and_one_for_the_server_accepted(tmp_path: Path) -> None:
    guarded, tokens = Guarded(), LoginFile(tmp_path / "t")
    async with serving(guarded) as guarded.web:
        guarded.access = jwt(aud=["https://bank.example"])
        with pytest.raises(McpError, match=r"a token for another audience: https://bank\.example"):
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
            raise ToolCallFailed("that address is not for tools")

    guarded, person = Guarded(), Person()
    async with serving(guarded) as guarded.web:
        with pytest.raises(McpError, match="not for tools"):
            await logged_in(guarded, person, LoginFile(tmp_path / "t"), check_url=check)
    assert person.seen == []
    assert checked == [
        "/mcp",
        "/.well-known/oauth-protected-resource/mcp",
        "/.well-known/oauth-authorization-server",
        "/token",
    ]


async def test_a_token_is_not_sent_to_an_address_it_was_not_made_for(tmp_path: Path) -> None:
    tokens, client = LoginFile(tmp_path / "t"), RecordingHttpClient()
    kept = StoredLogin(
        "https://old.example/mcp", "r", "https://old.example/token", OAuthClient("i", "c"), AccessToken("canary")
    )
    await tokens.save("box", kept)
    async with (
        serving(handshaking) as web,
        opened(source_of(RemoteServerConfig(web.url), http=client, tokens=tokens)) as source,
    ):
        assert source.tools
    assert "canary" not in str(client.sent)


async def test_a_login_can_be_forgotten_and_a_spoilt_file_counts_as_empty(tmp_path: Path) -> None:
    tokens = LoginFile(tmp_path / "t")
    kept = StoredLogin("https://a.example/mcp", "r", "https://a.example/token", OAuthClient("i", "c"), AccessToken("x"))
    await tokens.save("box", kept)
    assert await tokens.load("box") == kept
    await tokens.forget("box")
    assert await tokens.load("box") is None
    (tmp_path / "t").write_text("{")
    assert await tokens.load("box") is None


async def test_the_browser_comes_back_to_a_port_of_this_machine() -> None:
    async with LoopbackRedirectServer() as redirect:
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
        assert await redirect.wait("s") == {"code": "c 1", "state": "s"}


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
def test_an_internal_ambiguous_or_malformed_address_is_unsafe(url: str) -> None:
    with pytest.raises(UnsafeOAuthAddress):
        check_address(url, "https://public.example/mcp")


def test_addresses_as_near_as_the_server_itself_are_fine() -> None:
    check_address("https://login.example/authorize?x=1", "https://public.example/mcp")
    check_address("http://127.0.0.1:9/token", "http://localhost:8/mcp")
    check_address("https://10.0.0.2/token", "https://10.0.0.1/mcp")
