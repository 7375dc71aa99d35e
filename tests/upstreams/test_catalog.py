"""The provider table: rows that hold together, found by name or by host (spec: U7)."""

import re
from urllib.parse import urlsplit

import msgspec
import pytest

from toolgate.config.base_urls import base_url, url_problem
from toolgate.dialects.dialect import Quirks
from toolgate.upstreams.catalog import BuiltinProviderCatalog, catalog, parse

ROWS = catalog().rows
ENDPOINTS = [(name, dialect) for name, row in ROWS.items() for dialect in row.dialects]
WANTED = {
    *("openai", "anthropic", "ollama", "openrouter", "groq", "mistral", "deepseek", "xai", "gemini", "together"),
    *("vllm", "llamacpp", "lmstudio", "fireworks", "moonshot", "cerebras", "azure"),
}


def test_the_providers_that_people_use_have_a_row() -> None:
    assert set(ROWS) >= WANTED


@pytest.mark.parametrize(("name", "dialect"), ENDPOINTS)
def test_an_endpoint_is_an_address_that_its_dialect_can_use_as_it_stands(name: str, dialect: str) -> None:
    endpoint = ROWS[name].dialects[dialect]  # type: ignore[index]
    if endpoint.base_url is None:
        assert endpoint.path
        return
    assert url_problem(endpoint.base_url) is None
    assert base_url(endpoint.base_url, dialect, endpoint) == endpoint.base_url  # type: ignore[arg-type]
    host = urlsplit(endpoint.base_url).hostname
    assert endpoint.base_url.startswith("https://") or host == "127.0.0.1"


@pytest.mark.parametrize("name", ROWS)
def test_a_provider_elsewhere_wants_a_key_and_one_on_this_machine_does_not(name: str) -> None:
    row = ROWS[name]
    local = any(endpoint.base_url and "127.0.0.1" in endpoint.base_url for endpoint in row.dialects.values())
    assert (row.key is None) is local
    assert row.key is None or re.fullmatch(r"[A-Z_]+_(KEY|TOKEN)", row.key)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://API.OpenAI.com", "openai"),
        ("https://my-resource.openai.azure.com/openai/v1", "azure"),
        ("https://my.services.ai.azure.com", "azure"),
        ("https://api.moonshot.cn/v1", "moonshot"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "gemini"),
        ("http://127.0.0.1:11434", None),
        ("http://localhost:8000/v1", None),
        ("https://api.openai.com.evil.org/v1", None),
        ("https://evil.org/api.openai.com", None),
        ("https://evil-api.openai.com", None),
        ("https://api.openai.com@evil.org", None),
        ("https://openai.azure.com", None),
        ("https://xopenai.azure.com", None),
        ("not a url", None),
        ("http://[", None),
    ],
)
def test_a_provider_is_found_by_the_host_of_a_url_and_by_nothing_else(url: str, name: str | None) -> None:
    row = catalog().at(url)
    assert row is (ROWS[name] if name else None)


def test_facts_that_break_requests_when_wrong_are_there() -> None:
    def quirks(name: str) -> Quirks:
        row = ROWS[name]
        return msgspec.convert(row.quirks_in(next(iter(row.dialects))), Quirks)

    assert quirks("openai").max_tokens_field == "max_completion_tokens"
    assert re.fullmatch(quirks("mistral").call_id_pattern or "", "abcDEF123")
    assert "stream_options" in quirks("mistral").unsupported
    assert not quirks("mistral").usage_in_streams
    assert quirks("deepseek").reasoning_field == "reasoning_content"
    assert quirks("deepseek").output_format == "json"
    assert "logit_bias" in quirks("groq").unsupported


@pytest.mark.parametrize(
    "row",
    [
        "{title: X, dialects: {openai_chat: {}}, quirks: {no_such: 1}}",
        "{title: X, dialects: {openai_chat: {quirks: {name_limit: x}}}}",
        "{title: X, dialects: {openai_chat: {}}, capabilities: {no_such: 1}}",
        "{title: X, dialects: {smoke_signals: {}}}",
        "{title: X, dialects: {openai_chat: {}}, colour: red}",
    ],
)
def test_a_row_with_a_column_that_does_not_exist_is_refused(row: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        parse(f"x: {row}")


def test_a_table_may_be_another_one() -> None:
    table = parse("x: {title: X, hosts: [h.example], dialects: {ollama: {base_url: 'http://y.example'}}}")
    assert isinstance(table, BuiltinProviderCatalog)
    assert table.at("http://h.example:1") is table.at("http://y.example") is table.rows["x"]
