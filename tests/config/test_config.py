"""The configuration file: what it may say, what it means, and what is said about mistakes (U7, E3, fault: R2)."""

import pickle
import re
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolgate.config import BUILTIN, Config, ConfigError, Secret, TimeoutSettings, diff, load, short_key_warnings
from toolgate.config.base_urls import base_url, is_loopback
from toolgate.config.resolved_config import TruncatedConfigFileCheck
from toolgate.config.settings import ECHO, LOCAL, EmbeddedModelSettings, RequestLimitSettings, RootSettings
from toolgate.conversation.request import ReasoningSettings, RequestSettings
from toolgate.http.request_limits import RequestLimits as EdgeLimits
from toolgate.upstreams.catalog import catalog
from toolgate.upstreams.transport import UpstreamTimeouts as TransportTimeouts

EXAMPLE = """
server: {host: 127.0.0.1, port: 8080}
keys:
  - {name: me, key: "${TOOLGATE_KEY}", scopes: [chat, tools, admin]}
upstreams:
  openai: {dialect: openai_chat, base_url: https://api.openai.com/v1, api_key: "${OPENAI_API_KEY}"}
  oai-responses: {dialect: openai_responses, base_url: https://api.openai.com/v1, api_key: "${OPENAI_API_KEY}"}
  claude: {dialect: anthropic, base_url: https://api.anthropic.com, api_key: "${ANTHROPIC_API_KEY}"}
  box: {dialect: ollama, base_url: http://127.0.0.1:11434}
models:
  - {name: gpt, upstream: openai, model: gpt-5}
  - {name: claude, upstream: claude, model: claude-sonnet-4-5, aliases: [claude-sonnet-4-5-20250929]}
  - {name: plain, upstream: box, model: some-text-model, tools: emulated, system: inject, syntax: invoke}
tools:
  python: [./my_tools]
  mcp:
    files: {command: [npx, -y, "@modelcontextprotocol/server-filesystem", .]}
    wiki: {url: "https://example.org/mcp"}
  http:
    shop: {openapi: ./shop.yaml}
storage: sqlite:///toolgate.db        # or postgresql://…
redis: null                           # or redis://… when there is more than one node
"""
ENV = {"TOOLGATE_KEY": "tg-secret-canary-1", "OPENAI_API_KEY": "sk-canary-2", "ANTHROPIC_API_KEY": "sk-ant-canary-3"}
BOX = "upstreams: {box: {dialect: ollama, base_url: 'http://127.0.0.1:11434'}}\n"


@pytest.fixture
def written(tmp_path: Path) -> Any:
    """Loads a configuration from its text."""

    def write(text: str | bytes, env: Mapping[str, str] = ENV, **output: Any) -> Config:
        path = tmp_path / "toolgate.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load(path, env, **output)

    return write


@pytest.fixture
def complaints(written: Any) -> Any:
    """What is said about a configuration that cannot be used."""

    def complain(text: str | bytes, env: Mapping[str, str] = ENV, **output: Any) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            written(text, env, **output)
        return [str(problem) for problem in caught.value.problems]

    return complain


def test_the_example_of_the_specification_is_read_as_written(written: Any) -> None:
    config = written(EXAMPLE)
    assert (config.server.host, config.server.port) == ("127.0.0.1", 8080)
    (key,) = config.keys
    assert (key.name, key.key.reveal(), key.scopes) == ("me", "tg-secret-canary-1", ("chat", "tools", "admin"))
    assert config.upstreams["claude"].base_url == "https://api.anthropic.com/v1"
    assert config.upstreams["claude"].api_key == Secret("sk-ant-canary-3")
    assert config.upstreams["box"].base_url == "http://127.0.0.1:11434"
    assert [model.name for model in config.models] == ["gpt", "claude", "plain"]
    assert config.by_name()["claude-sonnet-4-5-20250929"].targets[0].model == "claude-sonnet-4-5"
    plain = config.by_name()["plain"]
    assert (plain.tools, plain.system, plain.syntax) == ("emulated", "inject", "invoke")
    assert config.tools.mcp["files"].command[0] == "npx"
    assert config.storage.reveal() == "sqlite:///toolgate.db"
    assert config.redis is None


def test_without_a_file_the_models_in_the_box_are_served_on_loopback() -> None:
    config = load(None, {})
    assert (config.server.host, config.server.port, config.keys, dict(config.upstreams)) == ("127.0.0.1", 8080, (), {})
    served = [(model.name, model.targets[0].upstream, model.targets[0].model) for model in config.models]
    assert served == [("local", BUILTIN, "local"), ("echo", BUILTIN, "echo")]
    assert [config.is_local(model) for model in config.models] == [True, False]


def test_the_model_on_this_machine_can_be_turned_off_from_outside() -> None:
    config = load(None, {"ENABLE_EMBEDDED_MODEL": "false"})
    (echo,) = config.models
    unplaced = msgspec.structs.replace(config, models=(msgspec.structs.replace(echo, path=""),))
    assert unplaced == Config(embedded=EmbeddedModelSettings(enabled=False))
    assert echo.path == "models[1]"


@pytest.mark.parametrize("text", ["", "# nothing\n", "server:\nmodels:\n", "{}"])
def test_an_empty_file_means_the_defaults(written: Any, text: str) -> None:
    assert msgspec.structs.replace(written(text), source=None, outline=TruncatedConfigFileCheck()) == load(None, {})


def test_the_settings_that_the_printed_example_has_as_comments_can_be_used(written: Any) -> None:
    import toolgate.config

    text = Path(toolgate.config.__file__).with_name("example.yaml").read_text()
    config = written(re.sub(r"(?m)^#(?=  |\w)", "", text), {**ENV, "TEAM_KEY": "team-key"})
    assert [target.weight for target in config.by_name()["qwen"].targets] == [1.0, 3.0]
    assert [key.name for key in config.keys] == ["me", "team"]
    assert [*config.tools.python, *config.tools.mcp, *config.tools.http] == ["./my_tools", "time", "shop"]


class TestReferencesToTheEnvironment:
    def test_a_missing_variable_is_named_with_the_path_of_the_setting(self, complaints: Any) -> None:
        text = "keys: [{name: a, key: '${NO_SUCH}'}]"
        assert complaints(text) == ["keys[0].key: the environment variable NO_SUCH is not set"]

    def test_a_default_stands_in_for_a_variable_that_is_unset_or_empty(self, written: Any) -> None:
        text = "server: {host: '${HOST:-localhost}', port: '${PORT:-9001}'}\nlog: {level: '${LEVEL:-debug}'}"
        config = written(text, {"HOST": "", "LEVEL": "error"})
        assert (config.server.host, config.server.port, config.log.level) == ("localhost", 9001, "error")

    def test_a_reference_may_stand_within_text_and_several_times(self, written: Any) -> None:
        text = BOX.replace("127.0.0.1:11434", "${H}:${P}")
        assert written(text, {"H": "box", "P": "99"}).upstreams["box"].base_url == "http://box:99"

    def test_a_variable_may_be_a_number_or_a_truth_value(self, written: Any) -> None:
        config = written("server: {port: '${P}'}\ntools: {enabled: '${T}'}", {"P": "81", "T": "false"})
        assert (config.server.port, config.tools.enabled) == (81, False)

    def test_text_that_was_not_a_reference_is_no_number(self, complaints: Any) -> None:
        assert complaints("server: {port: '81'}") == ["server.port: must be a whole number, not text"]

    def test_a_value_is_not_read_as_yaml_nor_expanded_again(self, written: Any) -> None:
        env = {"KEY": "a:${OTHER}#b{x}", "OTHER": "no"}
        assert written("keys: [{name: a, key: '${KEY}'}]", env).keys[0].key.reveal() == "a:${OTHER}#b{x}"

    def test_a_doubled_dollar_is_a_plain_one(self, written: Any) -> None:
        assert written("keys: [{name: a, key: 'x$${KEY}'}]", {}).keys[0].key.reveal() == "x${KEY}"

    @pytest.mark.parametrize("text", ["${}", "${A B}", "${1}", "${:-x}"])
    def test_a_reference_that_names_nothing_is_refused(self, complaints: Any, text: str) -> None:
        assert complaints(f"keys: [{{name: a, key: '{text}'}}]") == ["keys[0].key: ${…} must name a variable"]


class TestMistakes:
    """fault: R2. The exact message for every mistake in a file."""

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("server: {prot: 1}", "server.prot: is not a setting; did you mean port?"),
            ("upstream: {}", "upstream: is not a setting; did you mean upstreams?"),
            ("Server: {}", "Server: is not a setting; did you mean server?"),
            ("approvals: {}", "approvals: is not a setting; did you mean tools.approvals?"),
            ("server: {limits: {body: 1}}", "server.limits.body: is not a setting; did you mean body_bytes?"),
            ("server: {port: 70000}", "server.port: must be a whole number <= 65535"),
            ("server: {port: 1.5}", "server.port: must be a whole number, not a number"),
            ("server: {drain_seconds: true}", "server.drain_seconds: must be a number, not true or false"),
            ("server: []", "server: must be a mapping, not a list"),
            ("server: {host: ''}", "server.host: must not be empty"),
            ("keys: {name: a}", "keys: must be a list, not a mapping"),
            ("keys: [{name: a}]", "keys[0].key: is required"),
            ("keys: [{name: a, key: ''}]", "keys[0].key: is empty"),
            ("keys: [{name: a, key: 12345}]", "keys[0].key: must be text; put it in quotes"),
            (
                "keys: [{name: a, key: 'a b'}]",
                "keys[0].key: may hold printable ASCII without spaces only, 4096 characters at most",
            ),
            ("keys: [{name: a, key: 'sha256:12'}]", "keys[0].key: must have 64 hex digits after sha256:"),
            (
                "keys: [{name: a, key: k, scopes: [chat, root]}]",
                "keys[0].scopes[1]: must be one of chat, tools, admin, bridge, not 'root'",
            ),
            (
                "keys: [{name: a, key: k, models: [ecko]}]",
                "keys[0].models[0]: there is no model ecko; did you mean echo?",
            ),
            (
                "keys: [{name: 'a b', key: k}]",
                "keys[0].name: may hold letters, digits and . _ @ - only, 64 at most",
            ),
            ("keys: [{name: a, key: k}, {name: a, key: l}]", "keys[1].name: a is already given by keys[0]"),
            ("keys: [{name: a, key: k}, {name: b, key: k}]", "keys[1].key: is the same as keys[0].key"),
            ("upstreams: {a: {base_url: 'http://h'}}", "upstreams.a: needs a dialect, or a provider of the table"),
            ("upstreams: {a: {dialect: ollama}}", "upstreams.a.base_url: is required"),
            ("upstreams: {a: {provider: opnai}}", "upstreams.a.provider: is not in the table; did you mean openai?"),
            (
                "upstreams: {builtin: {dialect: ollama, base_url: 'http://h'}}",
                "upstreams.builtin: this name belongs to the built-in upstream",
            ),
            (
                "upstreams: {a: {dialect: ollama, base_url: 'ftp://h'}}",
                "upstreams.a.base_url: must start with http:// or https:// and name a host",
            ),
            (
                "upstreams: {a: {dialect: ollama, base_url: 'http://u:p@h'}}",
                "upstreams.a.base_url: holds credentials: put them into api_key or headers",
            ),
            (
                "upstreams: {a: {dialect: ollama, base_url: 'http://h?x=1'}}",
                "upstreams.a.base_url: must end with its path: no ? and no #",
            ),
            (
                'upstreams: {a: {dialect: ollama, base_url: "http://h\\n"}}',
                "upstreams.a.base_url: holds a space or a control character",
            ),
            (
                "upstreams: {a: {dialect: ollama, base_url: 'http://h:x'}}",
                "upstreams.a.base_url: has a malformed host or port",
            ),
            ("upstreams: {a: {dialect: ollama, base_url: 'http://h', api_key: ''}}", "upstreams.a.api_key: is empty"),
            (
                'upstreams: {a: {dialect: ollama, base_url: "http://h", api_key: "a\\nb"}}',
                "upstreams.a.api_key: holds characters that a header cannot carry",
            ),
            (
                "upstreams: {a: {dialect: ollama, base_url: 'http://h', headers: {'x y': z}}}",
                "upstreams.a.headers.x y: is not the name of a header",
            ),
            (
                'upstreams: {a: {dialect: ollama, base_url: "http://h", headers: {x: "a\\r\\nb: c"}}}',
                "upstreams.a.headers.x: holds characters that a header cannot carry, or nothing",
            ),
            (
                "upstreams: {a: {provider: groq, dialect: anthropic}}",
                "upstreams.a.dialect: Groq is not known to speak it; known: openai_chat, openai_responses",
            ),
            (
                "upstreams: {a: {provider: groq}}",
                "upstreams.a.api_key: is required: set the environment variable GROQ_API_KEY or give another",
            ),
            ("upstreams: {a: {provider: azure, api_key: k}}", "upstreams.a.base_url: is required"),
            ("models: [{name: a}]", "models[0].upstream: is required"),
            (
                "models: [{name: 'a b', upstream: builtin, model: echo}]",
                "models[0].name: must be a name without spaces, 256 characters at most",
            ),
            (
                "models: [{name: a, upstream: builtin}]",
                "models[0].upstream: the built-in upstream has no model a; known: echo, local",
            ),
            (
                BOX + "models: [{name: a, upstream: bix}]",
                "models[0].upstream: there is no upstream bix; did you mean box?",
            ),
            (
                BOX + "models: [{name: a, upstream: box, upstreams: [{upstream: box}]}]",
                "models[0]: has both upstream and upstreams; give one of them",
            ),
            (
                BOX + "models: [{name: a, upstreams: [{upstream: box}, {upstream: x}]}]",
                "models[0].upstreams[1].upstream: there is no upstream x; known: box, builtin, vscode",
            ),
            (
                BOX + "models: [{name: a, upstreams: [{upstream: box, weight: 0}]}]",
                "models[0].upstreams[0].weight: must be a number > 0",
            ),
            (
                BOX + "models: [{name: a, upstream: box}, {name: b, upstream: box, aliases: [a]}]",
                "models[1].aliases[0]: a is already given by models[0].name",
            ),
            (
                BOX + "models: [{name: a, upstream: box, fallbacks: [a]}]",
                "models[0].fallbacks[0]: a model cannot stand in for itself",
            ),
            (
                BOX + "models: [{name: a, upstream: box, fallbacks: [b]}]",
                "models[0].fallbacks[0]: there is no model b; known: a",
            ),
            (
                BOX + "models: [{name: a, upstream: box, tools: maybe}]",
                "models[0].tools: must be one of native, emulated, not 'maybe'",
            ),
            (
                BOX + "models: [{name: a, upstream: box, capabilities: {tool: true}}]",
                "models[0].capabilities.tool: is not a setting; did you mean tools?",
            ),
            (
                BOX + "models: [{name: a, upstream: box, quirks: {name_limit: x}}]",
                "models[0].quirks.name_limit: must be a whole number, not text",
            ),
            (
                BOX + "models: [{name: a, upstream: box, defaults: {temperature: 3}}]",
                "models[0].defaults.temperature: must be a number <= 2",
            ),
            ("tools: {mcp: {x: {}}}", "tools.mcp.x: needs either a command or a url"),
            ("tools: {mcp: {x: {command: [a], url: 'http://h'}}}", "tools.mcp.x: needs either a command or a url"),
            (
                "tools: {mcp: {x: {url: 'file:///etc'}}}",
                "tools.mcp.x.url: must start with http:// or https:// and name a host",
            ),
            ("tools: {http: {x: {}}}", "tools.http.x.openapi: is required"),
            ("storage: mysql://h", "storage: must start with one of sqlite://, postgresql://, postgres://"),
            ("storage: sqlite:/x.db", "storage: must start with one of sqlite://, postgresql://, postgres://"),
            (
                "storage: 'postgresql://u:se@cret@h/db'",
                "storage: has more than one @ before its path: write %40 for one in a name or password",
            ),
            ("redis: http://h", "redis: must start with one of redis://, rediss://, valkey://, unix://"),
            (
                "server: {origins: ['https://a/b']}",
                "server.origins[0]: must be an origin in small letters, such as https://app.example.org, without a path",
            ),
            ("server: {origins: ['*']}", "server.origins[0]: * would let every web page in: it needs keys"),
            ("server: {hosts: ['a:80']}", "server.hosts[0]: must be a host name without scheme, port or path"),
            (
                "runs: {lease_seconds: 3}",
                "runs.lease_seconds: must be at least twice runs.look_seconds, or a node loses its runs",
            ),
            ("- a", "must be a mapping, not a list"),
            ("upstreams: {1: {dialect: ollama}}", "upstreams.1: must have a name of text; put it in quotes"),
        ],
    )
    def test_each_is_reported_by_path(self, complaints: Any, text: str, message: str) -> None:
        assert complaints(text) == [message]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("server: {port: 80\nkeys: []", "line 2, column 5: did not find expected ',' or '}'"),
            ("a: b: c", "line 1, column 5: mapping values are not allowed in this context"),
            ("\tserver: 1", "line 1, column 1: is a tab; indent with blanks instead"),
            ("log:\n  level: info\n\tformat: 'é'", "line 3, column 1: is a tab; indent with blanks instead"),
            ("\ufefflog: # é\n\tlevel: info", "line 2, column 1: is a tab; indent with blanks instead"),
            ("text: {instructions: |\n\thi}", None),
            ("log: @x\t", "line 1, column 6: found character that cannot start any token"),
            ("log: {}\nkeys: []\nlog: {}", "line 3, column 1: 'log' is given twice"),
            ("upstreams:\n  a: {provider: vllm}\n  a: {}", "line 3, column 3: 'a' is given twice"),
            ("x: !!python/object/apply:os.system [id]", None),
            (b"server: \xff\xfe", None),
            ("a: *nowhere", None),
        ],
    )
    def test_bad_yaml_is_reported_by_line_and_column(
        self, complaints: Any, text: str | bytes, message: str | None
    ) -> None:
        (output,) = complaints(text)
        assert output == message if message else output.startswith(("line 1, column", "YAML: "))

    @pytest.mark.parametrize(
        ("text", "paths"),
        [
            ("upstreams: {a: {dialect: openai, base_url: '127.0.0.1:9'}}", ["a.dialect", "a.base_url"]),
            ("upstreams: {a: {dialect: openai, base_url: 'ws://h'}}", ["a.dialect"]),
            ("upstreams: {a: {dialect: openai}}", ["a.dialect", "a.base_url"]),
            ("upstreams: {a: {dialect: openai, base_url: 'http://h', api_key: ''}}", ["a.dialect", "a.api_key"]),
            (
                "upstreams: {a: {provider: opnai, base_url: 'ftp://h', api_key: ''}}",
                ["a.provider", "a.base_url", "a.api_key"],
            ),
            ("upstreams: {a: {base_url: '127.0.0.1:9'}}", ["a", "a.base_url"]),
            ("upstreams: {a: {base_url: 'api.mistral.ai', api_key: k}}", ["a.base_url"]),
            ("upstreams: {a: {}}", ["a"]),
        ],
    )
    def test_every_field_of_an_upstream_is_checked_by_itself(
        self, complaints: Any, text: str, paths: list[str]
    ) -> None:
        assert [output.partition(": ")[0] for output in complaints(text)] == [f"upstreams.{path}" for path in paths]

    def test_the_upstreams_of_a_model_are_checked_also_where_it_has_too_many(self, complaints: Any) -> None:
        text = BOX + "models: [{name: a, upstream: x, upstreams: [{upstream: box}, {upstream: y}]}]"
        assert [output.partition(":")[0] for output in complaints(text)] == [
            "models[0]",
            "models[0].upstream",
            "models[0].upstreams[1].upstream",
        ]

    @pytest.mark.parametrize(
        ("url", "meant"),
        [
            ("127.0.0.1:9321", "http://127.0.0.1:9321"),
            ("localhost", "http://localhost"),
            ("[::1]:80", "http://[::1]:80"),
            ("gpu:8000", "http://gpu:8000"),
            ("gpu.example.org:8000/v1/a-secret", "http://gpu.example.org:8000/…"),
            ("api.openai.com", "https://api.openai.com"),
            ("api.openai.com/v1", "https://api.openai.com/…"),
        ],
    )
    def test_a_url_without_a_scheme_is_shown_with_one(self, complaints: Any, url: str, meant: str) -> None:
        assert complaints(f"upstreams: {{a: {{dialect: ollama, base_url: '{url}'}}}}") == [
            f"upstreams.a.base_url: must start with http:// or https:// and name a host; did you mean {meant}?"
        ]
        peer = complaints(f"upstreams: {{a: {{dialect: peer, base_url: '{url}'}}}}")[0]
        assert peer.endswith(f"did you mean {meant.replace('http', 'ws')}?")

    @pytest.mark.parametrize(
        "key", ["sk-proj-Canary", "canary", "eyJcanary.eyJz.SflK", "0a1b.canary9Z", "u:canary@h", "/canary", "1:canary"]
    )
    def test_a_key_in_the_place_of_a_url_is_not_shown(self, complaints: Any, key: str) -> None:
        (output,) = complaints("upstreams: {a: {dialect: ollama, base_url: '${KEY}'}}", {"KEY": key})
        assert "anary" not in output

    def test_mistakes_of_every_kind_are_reported_together_and_their_consequences_are_not(self, complaints: Any) -> None:
        """Misspelt names, wrong types, unset variables, references to nothing, contradictions and keys given twice."""
        text = """
server: {prot: 1, host: 0.0.0.0, origins: ["no origin"]}
keys:
  - {name: "a b", key: "${NO}"}
  - {name: b, key: k, models: [ecko], scopes: [root]}
upstreams:
  a: {provider: 5}
  b: {dialect: ollama}
  c: {dialect: ollama, base_url: "http://h", timeouts: {connect: soon}}
models:
  - {name: m, upstream: a}
  - {name: n, upstream: d, fallbacks: [zz]}
  - {name: echo, upstream: builtin}
runs: {look_seconds: often, lease_seconds: 3}
runs: {}
storage: nowhere
"""
        assert [output.partition(":")[0] for output in complaints(text)] == [
            "line 15, column 1",
            "server.prot",
            "keys[0].key",
            "keys[1].scopes[0]",
            "upstreams.a.provider",
            "upstreams.c.timeouts.connect",
            "runs.look_seconds",
            "upstreams.b.base_url",
            "models[1].upstream",
            "models[1].fallbacks[0]",
            "server.origins[0]",
            "keys[0].name",
            "keys[1].models[0]",
            "storage",
        ]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("modles: [{name: a}]\ndefault_model: a", "modles: is not a setting; did you mean models?"),
            ("models: {name: a}\ndefault_model: a", "models: must be a list, not a mapping"),
            (
                "models: [{name: 5, upstream: builtin, model: echo}]\ndefault_model: a",
                "models[0].name: must be text, not a whole number",
            ),
            ("upstreams: []\nmodels: [{name: a, upstream: b}]", "upstreams: must be a mapping, not a list"),
            ("keys: {}\nserver: {host: 0.0.0.0, origins: ['*']}", "keys: must be a list, not a mapping"),
            ("tools: {mcp: {a: {comand: [x]}}}", "tools.mcp.a.comand: is not a setting; did you mean command?"),
        ],
    )
    def test_what_only_follows_from_a_mistake_is_not_reported(self, complaints: Any, text: str, message: str) -> None:
        assert complaints(text) == [message]

    def test_all_are_reported_together(self, complaints: Any) -> None:
        text = "server: {prot: 1, port: x}\nkeys: [{name: a, key: '${NO}'}]\nmodels: [3]\nlog: {level: loud}"
        assert len(complaints(text)) == 5

    def test_all_that_contradict_each_other_are_reported_together(self, complaints: Any) -> None:
        text = "upstreams: {a: {provider: groq}}\nmodels: [{name: x, upstream: b}, {name: x, upstream: a}]"
        assert [output.partition(":")[0] for output in complaints(text)] == [
            "upstreams.a.api_key",
            "models[1].name",
            "models[0].upstream",
        ]

    def test_a_file_that_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be used:\n  - cannot read the file: no such file"):
            load(tmp_path / "nowhere.yaml", {})
        with pytest.raises(ConfigError, match="is a directory"):
            load(tmp_path, {})

    def test_no_complaint_repeats_a_secret(self, complaints: Any) -> None:
        env = {"K": "canary-with space", "U": "http://user:canary-pw@host", "H": "canary\nheader", "D": "canary://x"}
        text = (
            "keys: [{name: a, key: '${K}'}]\nstorage: '${D}'\nredis: '${D}'\n"
            "upstreams: {a: {dialect: ollama, base_url: '${U}', api_key: '${H}', headers: {x: '${H}'}}}"
        )
        output = complaints(text, env)
        assert len(output) == 6
        assert "canary" not in "\n".join(output)


class TestTheAddress:
    """spec: E5: anything but loopback demands a key."""

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org"])
    def test_an_address_that_others_can_reach_demands_a_key(self, complaints: Any, host: str) -> None:
        (output,) = complaints(f"server: {{host: '{host}'}}")
        assert output.startswith(f"server.host: {host} can be reached from other machines, so a key is needed")
        assert complaints("", host=host) == [output]

    def test_with_a_key_any_address_will_do(self, written: Any) -> None:
        assert written("keys: [{name: a, key: k}]", host="0.0.0.0").server.host == "0.0.0.0"

    def test_the_command_line_goes_before_the_file(self, written: Any) -> None:
        config = written("server: {host: 0.0.0.0, port: 1}", host="127.0.0.1", port=2)
        assert (config.server.host, config.server.port) == ("127.0.0.1", 2)

    @pytest.mark.parametrize(
        ("host", "keys"),
        [("0.0.0.0", ["short"]), ("::", ["short"]), ("example.org", ["short"]), ("127.0.0.1", []), ("localhost", [])],
    )
    def test_short_keys_are_warned_of_where_others_can_try_them(self, written: Any, host: str, keys: list[str]) -> None:
        text = (
            "keys: [{name: short, key: 0123456789abcde}, {name: long, key: 0123456789abcdef},"
            f" {{name: digest, key: 'sha256:{'a' * 64}'}}]"
        )
        warnings = short_key_warnings(written(text, host=host))
        assert [warning.split()[2] for warning in warnings] == keys
        assert "0123456789" not in "".join(warnings)

    @pytest.mark.parametrize(
        ("host", "local"),
        [
            *[(name, True) for name in ("localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]")],
            *[(name, False) for name in ("0.0.0.0", "localhost.evil.org", "127.1", "", "::ffff:1.2.3.4")],
        ],
    )
    def test_loopback_is_known_by_sight(self, host: str, local: bool) -> None:
        assert is_loopback(host) is local


@pytest.mark.parametrize(
    ("dialect", "given", "wanted"),
    [
        ("openai_chat", "https://api.openai.com", "https://api.openai.com/v1"),
        ("openai_chat", "https://api.openai.com/v1/", "https://api.openai.com/v1"),
        ("openai_chat", "https://api.openai.com/v1/chat/completions", "https://api.openai.com/v1"),
        ("openai_responses", "https://api.openai.com/v1/responses", "https://api.openai.com/v1"),
        ("openai_chat", "https://api.groq.com", "https://api.groq.com/openai/v1"),
        ("openai_chat", "https://api.groq.com/openai", "https://api.groq.com/openai/v1"),
        ("openai_chat", "https://openrouter.ai/api", "https://openrouter.ai/api/v1"),
        (
            "openai_chat",
            "https://generativelanguage.googleapis.com",
            "https://generativelanguage.googleapis.com/v1beta/openai",
        ),
        (
            "openai_chat",
            "https://generativelanguage.googleapis.com/v1beta/openai/",
            "https://generativelanguage.googleapis.com/v1beta/openai",
        ),
        ("openai_chat", "https://res.openai.azure.com", "https://res.openai.azure.com/openai/v1"),
        ("openai_chat", "https://res.openai.azure.com/openai/v1/", "https://res.openai.azure.com/openai/v1"),
        ("openai_chat", "https://open.bigmodel.cn/api/paas/v4", "https://open.bigmodel.cn/api/paas/v4"),
        ("openai_chat", "https://h/v1/acct/gateway/openai", "https://h/v1/acct/gateway/openai"),
        ("openai_chat", "https://h/v1/projects/p/endpoints/openapi", "https://h/v1/projects/p/endpoints/openapi"),
        ("openai_chat", "http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("openai_chat", "http://127.0.0.1:8000/llm", "http://127.0.0.1:8000/llm/v1"),
        ("anthropic", "https://api.anthropic.com", "https://api.anthropic.com/v1"),
        ("anthropic", "https://api.anthropic.com/v1/messages", "https://api.anthropic.com/v1"),
        ("anthropic", "https://h/v1/acct/gateway/anthropic", "https://h/v1/acct/gateway/anthropic/v1"),
        ("anthropic", "https://api.deepseek.com/anthropic", "https://api.deepseek.com/anthropic/v1"),
        ("ollama", "http://127.0.0.1:11434/", "http://127.0.0.1:11434"),
        ("ollama", "http://127.0.0.1:11434/v1", "http://127.0.0.1:11434"),
        ("ollama", "http://127.0.0.1:11434/api/chat", "http://127.0.0.1:11434"),
        ("ollama", "http://h/ollama/api", "http://h/ollama"),
    ],
)
def test_a_base_url_may_be_given_with_or_without_its_version(dialect: Any, given: str, wanted: str) -> None:
    row = catalog().at(given)
    assert base_url(given, dialect, row.dialects.get(dialect) if row else None) == wanted
    assert base_url(wanted, dialect, row.dialects.get(dialect) if row else None) == wanted


class TestProviders:
    def test_a_provider_brings_dialect_address_key_and_quirks(self, written: Any) -> None:
        upstream = written("upstreams: {groq: {provider: groq}}", {"GROQ_API_KEY": "gsk_1"}).upstreams["groq"]
        assert (upstream.dialect, upstream.base_url) == ("openai_chat", "https://api.groq.com/openai/v1")
        assert upstream.api_key == Secret("gsk_1")
        assert upstream.quirks.max_tokens_field == "max_completion_tokens"
        assert upstream.provider == "groq"

    def test_settings_of_an_upstream_override_its_providers(self, written: Any) -> None:
        text = (
            "upstreams: {d: {provider: deepseek, dialect: anthropic, api_key: own, quirks: {name_limit: 32}}}\n"
            "models: [{name: a, upstream: d, quirks: {name_limit: 16}}, {name: b, upstream: d}]"
        )
        config = written(text, {"DEEPSEEK_API_KEY": "usual"})
        assert config.upstreams["d"].base_url == "https://api.deepseek.com/anthropic/v1"
        assert config.upstreams["d"].api_key == Secret("own")
        assert [model.targets[0].quirks.name_limit for model in config.models] == [16, 32]

    def test_a_provider_is_recognised_by_its_host(self, written: Any) -> None:
        text = "upstreams: {m: {base_url: 'https://api.mistral.ai', api_key: k}}"
        upstream = written(text, {}).upstreams["m"]
        assert (upstream.dialect, upstream.base_url) == ("openai_chat", "https://api.mistral.ai/v1")
        assert upstream.quirks.call_id_pattern == "[a-zA-Z0-9]{9}"

    def test_the_usual_key_goes_to_the_providers_own_hosts_only(self, written: Any) -> None:
        text = "upstreams: {a: {provider: openai, base_url: 'http://127.0.0.1:9'}, b: {provider: openai}}"
        upstreams = written(text).upstreams
        assert upstreams["a"].api_key is None
        assert upstreams["b"].api_key == Secret("sk-canary-2")

    def test_a_header_with_credentials_stands_in_for_the_key(self, written: Any) -> None:
        text = "upstreams: {a: {provider: groq, headers: {Authorization: 'Bearer x'}}}"
        assert written(text, {}).upstreams["a"].api_key is None


class TestModels:
    def test_the_upstreams_name_for_a_model_is_its_own_unless_given(self, written: Any) -> None:
        text = BOX + (
            "models:\n- {name: a, upstream: box}\n- {name: b, upstream: box, model: c}\n"
            "- {name: d, model: e, upstreams: [{upstream: box}, {upstream: box, model: f, weight: 2}]}"
        )
        targets = [[(t.upstream, t.model, t.weight) for t in model.targets] for model in written(text).models]
        assert targets == [[("box", "a", 1.0)], [("box", "c", 1.0)], [("box", "e", 1.0), ("box", "f", 2.0)]]

    def test_a_fallback_by_alias_is_known_by_its_public_name(self, written: Any) -> None:
        text = BOX + "models: [{name: a, upstream: box, fallbacks: [z]}, {name: b, upstream: box, aliases: [z]}]"
        assert written(text).models[0].fallbacks == ("b",)

    def test_capabilities_come_from_the_model_then_the_row_then_the_defaults(self, written: Any) -> None:
        text = (
            "upstreams: {c: {provider: cerebras, api_key: k}}\n"
            "models: [{name: a, upstream: c}, {name: b, upstream: c, capabilities: {parallel: true, context: 8192}}]"
        )
        first, second = [model.capabilities for model in written(text).models]
        assert (first.parallel, first.context, first.max_tools) == (False, None, 128)
        assert (second.parallel, second.context) == (True, 8192)

    def test_defaults_are_settings_of_a_request(self, written: Any) -> None:
        text = BOX + "models: [{name: a, upstream: box, defaults: {temperature: 0, stop: [x], effort: low}}]"
        assert written(text).models[0].defaults == RequestSettings(
            temperature=0, stop=("x",), thinking=ReasoningSettings(True, "low")
        )


@pytest.mark.parametrize(("value", "enabled"), [("false", False), ("0", False), ("true", True), ("", True)])
def test_tools_are_turned_off_by_a_variable(written: Any, value: str, enabled: bool) -> None:
    assert written("", {"ENABLE_TOOLS": value}).tools.enabled is enabled


class TestSecrets:
    """fault: O1."""

    def test_a_secret_is_not_shown_by_its_representations(self, written: Any) -> None:
        config = written(EXAMPLE)
        shown = [repr(config), str(config), f"{config}", repr(config.keys), format(config.upstreams["openai"])]
        assert "canary" not in "".join(shown)

    def test_a_traceback_with_local_variables_does_not_show_it(self) -> None:
        secret = Secret("canary")
        try:
            assert secret == 1 / 0
        except ZeroDivisionError as error:
            shown = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
        assert "secret = Secret(…)" in shown
        assert "canary'" not in shown.replace('Secret("canary")', "")

    def test_a_secret_is_neither_encoded_nor_pickled(self) -> None:
        with pytest.raises(TypeError):
            msgspec.json.encode(Secret("canary"))
        with pytest.raises(TypeError):
            pickle.dumps(Secret("canary"))

    def test_secrets_are_equal_by_value_and_keys_of_mappings(self) -> None:
        assert Secret("a") == Secret("a") != Secret("b")
        assert Secret("a") != "a"
        assert {Secret("a"): 1}[Secret("a")] == 1
        assert not Secret("")
        assert (Secret("0123456789abcdef").hint, Secret("short").hint) == ("…cdef", "…")

    @pytest.mark.parametrize("storage", ["postgresql://u:canary-pw@h/db", "postgresql:///db?password=canary-pw"])
    def test_the_configuration_lists_what_must_never_be_shown(self, written: Any, storage: str) -> None:
        text = EXAMPLE.replace("sqlite:///toolgate.db ", f"{storage} ")
        assert set(written(text).secrets()) == {"sk-canary-2", "sk-ant-canary-3", storage}


class TestReload:
    """spec: E3: what SIGHUP may change."""

    @pytest.mark.parametrize(
        ("text", "live", "restart"),
        [
            ("server: {}", (), ()),
            ("keys: [{name: a, key: k}]", ("keys.a",), ()),
            ("log: {level: debug, format: json}", ("log.level",), ("log.format",)),
            (
                BOX + "models: [{name: m, upstream: box}]",
                ("upstreams.box", "models.local", "models.echo", "models.m"),
                (),
            ),
            (
                "server: {port: 1, host: localhost, origins: ['http://x']}",
                ("server.origins",),
                ("server.host", "server.port"),
            ),
            ("server: {limits: {headers: 9}, drain_seconds: 9}", (), ("server.drain_seconds", "server.limits")),
            ("storage: sqlite:///x\nredis: redis://h\ntools: {python: [x]}", (), ("tools.python", "storage", "redis")),
        ],
    )
    def test_changes_are_sorted(self, written: Any, text: str, live: tuple[str, ...], restart: tuple[str, ...]) -> None:
        old, new = written(""), written(text)
        changes = diff(old, new)
        assert (changes.live, changes.restart) == (live, restart)
        assert diff(old, changes.config).restart == ()
        assert diff(changes.config, new).live == ()

    def test_a_model_that_only_moved_in_the_file_did_not_change(self, written: Any) -> None:
        old, new = [
            written(f"{BOX}models: [{{name: {a}, upstream: box}}, {{name: {b}, upstream: box}}]")
            for a, b in ("xy", "yx")
        ]
        assert (old.models[0].path, new.models[0].path) == ("models[0]", "models[0]")
        assert diff(old, new).live == ()

    def test_a_bad_file_leaves_the_old_configuration_alone(self, written: Any) -> None:
        old = written(EXAMPLE)
        with pytest.raises(ConfigError):
            written(EXAMPLE.replace("port: 8080", "port: no"))
        assert old.server.port == 8080

    def test_keys_cannot_be_removed_from_an_address_that_others_reach(self, written: Any) -> None:
        old = written("keys: [{name: a, key: k}]", host="0.0.0.0")
        new = written("server: {open: true}")  # the file says nothing of the address that the command line gave
        with pytest.raises(ConfigError, match=r"0\.0\.0\.0 can be reached from other machines"):
            diff(old, new)

    KEYS = "keys: [{name: a, key: k}]\n"

    @pytest.mark.parametrize(
        ("old", "new", "why"),
        [
            ("server: {}\n", "", "says nothing"),
            ("server: {}\n", "# keys: []\n", "says nothing"),
            (KEYS, "server: {}\n", r"write `server: \{open: true\}`"),
            (KEYS, "keys: []\n", r"write `server: \{open: true\}`"),
            ("log: {level: error}\n" + KEYS, "log: {level: err", None),
            ("server: {}\n", "server: {port: 80}", "end it with a line break"),
            ("server: {hosts: [a]}\n" + KEYS, KEYS, "server: is gone"),
            (KEYS + "tools: {approvals: {read_only: deny}}\n", KEYS, "tools: is gone"),
        ],
    )
    def test_a_file_that_may_be_cut_off_takes_no_check_away(
        self, written: Any, old: str, new: str, why: str | None
    ) -> None:
        before = written(old)
        with pytest.raises(ConfigError, match=why):
            diff(before, written(new))

    LIMITED = "keys:\n- name: a\n  key: k\n"

    @pytest.mark.parametrize(
        "check",
        [
            "models: [echo]",
            "tools: [clock]",
            "blocked_tools: ['*']",
            "requests_per_minute: 1",
            "tokens_per_minute: 1",
            "concurrency: 1",
            "budget: {amount: 1}",
        ],
    )
    def test_a_file_that_is_cut_at_a_line_break_takes_no_limit_of_a_key_away(self, written: Any, check: str) -> None:
        old = written(f"{self.LIMITED}  {check}\n- {{name: b, key: l}}\n")
        with pytest.raises(
            ConfigError, match=rf"the former one cut off.* keys.a.{check.partition(':')[0]} would be gone"
        ):
            diff(old, written(self.LIMITED))
        meant = diff(old, written(f"{self.LIMITED}# without limits\n"))
        assert meant.removed == ("keys.b", f"keys.a.{check.partition(':')[0]}")

    def test_a_file_that_is_cut_at_a_line_break_takes_no_rule_away(self, written: Any) -> None:
        beginning = "keys: [{name: a, key: k}]\ntools:\n  approvals:\n    read_only: ask\n"
        old = written(f"{beginning}    rules:\n    - {{stance: deny, tools: [delete_*]}}\n")
        with pytest.raises(ConfigError, match="rules: deny tools delete_"):
            diff(old, written(beginning))
        assert diff(written(f"{beginning}\n\n"), written(beginning)).removed == ()
        asks = written(f"{beginning}vscode:\n  enabled: true\n  tools: ask\n")
        with pytest.raises(ConfigError, match=r"vscode\.tools: ask, now allow"):
            diff(asks, written(f"{beginning}vscode:\n  enabled: true\n"))

    def test_the_last_key_of_a_file_may_be_deleted(self, written: Any) -> None:
        assert diff(written(f"{self.LIMITED}- {{name: b, key: l}}\n"), written(self.LIMITED)).removed == ("keys.b",)

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (KEYS, "server: {open: true}\n"),
            ("server: {hosts: [a]}\n" + KEYS, "server: {}\n" + KEYS),
            (KEYS + "tools: {approvals: {read_only: deny}}\n", KEYS + "tools: {}\n"),
            (KEYS + "tools: {offer: [a]}\n", KEYS),
        ],
    )
    def test_an_explicit_setting_removes_checks(self, written: Any, old: str, new: str) -> None:
        diff(written(old), written(new))

    def test_keys_and_an_open_server_contradict_each_other(self, complaints: Any) -> None:
        assert complaints("server: {open: true}\n" + self.KEYS) == [
            "server.open: contradicts `keys`: remove one of the two"
        ]


def test_limits_and_timeouts_agree_with_the_code_that_applies_them() -> None:
    edge, ours = msgspec.structs.asdict(EdgeLimits()), msgspec.structs.asdict(RequestLimitSettings())
    assert {name: ours[name] for name in edge if name != "body_bytes_at"} == {
        name: value for name, value in edge.items() if name != "body_bytes_at"
    }
    assert msgspec.structs.asdict(TimeoutSettings()) == msgspec.structs.asdict(TransportTimeouts())


def test_json_is_yaml_too(written: Any) -> None:
    assert written('{"server": {"port": 1}, "log": {"level": "error"}}').server.port == 1


def test_the_defaults_of_the_file_are_the_defaults_of_the_configuration() -> None:
    file, config = RootSettings(), Config()
    for name in ("server", "keys", "tools", "embedded", "text", "storage", "redis", "log"):
        assert getattr(file, name) == getattr(config, name)
    assert file.models == (LOCAL, ECHO)


def test_a_file_with_tags_runs_nothing(complaints: Any, tmp_path: Path) -> None:
    complaints(f"server: !!python/object/apply:pathlib.Path.touch [{tmp_path / 'ran'}]")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "nested deeper"),
        ("a: " + "{a: " * 100_000, "nested deeper"),
        ("\n".join([f"{' ' * depth}a:" for depth in range(100)]), "nested deeper"),
        ("a: &a [*a]", "an alias holds itself"),
        (
            "\n".join(["a: &a0 [x]", *[f"b{n}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]" for n in range(9)]]),
            "more than",
        ),
        ("x: [" + "1," * 300_000 + "]", "more than"),
        ("# " + "x" * 5_000_000, "larger than 4 MiB"),
        ("server: {port: " + "9" * 5000 + "}", "cannot be read"),
        ("server: {host: 2001-99-99}", "cannot be read"),
        ("server: {drain_seconds: .inf}", "must be a finite number"),
        ("server: {drain_seconds: .nan}", "must be a number >= 0"),
        ("server: {limits: {body_bytes: 99999999999999999999}}", "must be a number up to"),
        ('text: {templates: "a\\0b"}', "contains a NUL, or a character that is not Unicode"),
    ],
    ids=lambda value: value[:20],
)
def test_a_file_that_would_burst_the_parser_is_refused(complaints: Any, text: str, why: str) -> None:
    """In C the parser calls itself at every level: without a bound the process ended with a segmentation fault."""
    (problem,) = complaints(text)
    assert why in problem


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("tools: {mcp: {a: {url: 'https://[x'}}}", "tools.mcp.a.url"),
        ("tools: {mcp: {a: {url: 'https://a/?b\u2028c'}}}", "tools.mcp.a.url"),
        ("tools: {mcp: {a: {url: 'https://a', oauth: {issuer: 'https://[x'}}}}", "tools.mcp.a.oauth.issuer"),
        ('tools: {mcp: {a: {url: "https://a", headers: {a: "b\\r\\nc: d"}}}}', "tools.mcp.a.headers.a"),
        ("tools: {mcp: {'a b': {url: 'https://a'}}}", "tools.mcp.a b"),
        ("tools: {mcp: {a: {command: [x], env: {'a=b': c}}}}", "tools.mcp.a.env.a=b"),
        ("tools: {http: {a: {openapi: 'https://[x'}}}", "tools.http.a.openapi"),
        ("tools: {http: {a: {openapi: x, base_url: 'https://h:p'}}}", "tools.http.a.base_url"),
        ("tools: {approvals: {webhook: {url: 'https://[x'}}}", "tools.approvals.webhook.url"),
        ("upstreams: {a: {dialect: ollama, base_url: 'https://[x'}}", "upstreams.a.base_url"),
    ],
)
def test_a_malformed_address_or_header_is_a_problem_of_its_setting(complaints: Any, text: str, at: str) -> None:
    (problem,) = complaints(text)
    assert problem.startswith(f"{at}: ")
