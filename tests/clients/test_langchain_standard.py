"""LangChain's public standard tests through the gateway: same dialect and across, against a model that obliges."""

import base64
import itertools
import os
from types import SimpleNamespace
from typing import Any, ClassVar

import httpx
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_anthropic import _client_utils as _anthropic_clients
from langchain_core.language_models import BaseChatModel
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from langchain_openai.chat_models import _client_utils
from langchain_tests.integration_tests import ChatModelIntegrationTests

from tests.clients.obliging import oblige
from tests.stage import UPSTREAMS, Stage

pytestmark = pytest.mark.filterwarnings("ignore")
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture(autouse=True)
def obliging(stage: Stage) -> None:
    stage.play(*itertools.repeat(oblige, 60))


@pytest.fixture(autouse=True)
def pictures_without_internet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite downloads its samples; a pixel does as well, for nobody looks at them."""
    monkeypatch.setattr(httpx, "get", lambda *_, **__: SimpleNamespace(content=PIXEL))


@pytest.fixture(autouse=True)
def clients_of_this_loop() -> None:
    """LangChain keeps one async client for all event loops, but every test has a loop of its own."""
    _client_utils._cached_async_httpx_client.cache_clear()
    _anthropic_clients._get_default_async_httpx_client.cache_clear()


@pytest.fixture
def benchmark() -> None:
    """The one test that measures time does so with recorded answers alone, but asks for this first."""


@pytest.fixture
def vcr() -> SimpleNamespace:
    """A recorder without recordings: the test that would replay them reads a stream of the gateway, unmeasured."""
    return SimpleNamespace(responses=[])


class Standard(ChatModelIntegrationTests):
    """What the standard suite needs to know of any model behind the gateway."""

    dialect: ClassVar[str]
    upstream: ClassVar[str]
    address: str = ""

    @pytest.fixture(autouse=True)
    def _address(self, stage: Stage) -> None:
        type(self).address = stage.url

    @property
    def model_override_value(self) -> str:
        """Another model, of another API: an upstream of the same API says its own name."""
        return next(name for name in UPSTREAMS if name not in (self.upstream, self.dialect))

    @property
    def supports_image_inputs(self) -> bool:
        return True

    @property
    def supports_image_tool_message(self) -> bool:
        return True

    @property
    def supports_pdf_inputs(self) -> bool:
        return True

    @property
    def supports_pdf_tool_message(self) -> bool:
        return True

    @property
    def supports_audio_inputs(self) -> bool:
        return True

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def enable_vcr_tests(self) -> bool:
        return True


class ChatStandard(Standard):
    """ChatOpenAI by Chat Completions."""

    dialect = "openai_chat"

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": self.upstream, "base_url": f"{self.address}/v1", "api_key": "unused", "stream_usage": True}


class ResponsesStandard(Standard):
    """ChatOpenAI by Responses."""

    dialect = "openai_responses"

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        base_url = f"{self.address}/v1"
        return {"model": self.upstream, "base_url": base_url, "api_key": "unused", "use_responses_api": True}


class MessagesStandard(Standard):
    """ChatAnthropic, which refuses sound by itself."""

    dialect = "anthropic"

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatAnthropic

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": self.upstream, "base_url": self.address, "api_key": "unused", "max_tokens": 500}

    @property
    def supports_audio_inputs(self) -> bool:
        return False


class OllamaStandard(Standard):
    """ChatOllama, which drops a tool choice, and refuses sound, documents and Anthropic's blocks by itself."""

    dialect = "ollama"

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOllama

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": self.upstream, "base_url": self.address}

    @property
    def has_tool_choice(self) -> bool:
        return False

    @property
    def supports_anthropic_inputs(self) -> bool:
        return False

    @property
    def supports_pdf_inputs(self) -> bool:
        return False

    @property
    def supports_pdf_tool_message(self) -> bool:
        return False

    @property
    def supports_audio_inputs(self) -> bool:
        return False


CLIENTS = {"Chat": ChatStandard, "Responses": ResponsesStandard, "Messages": MessagesStandard, "Ollama": OllamaStandard}
DEFAULT = {
    ("Chat", "openai_chat"),
    ("Chat", "anthropic"),
    ("Messages", "anthropic"),
    ("Messages", "openai_chat"),
    ("Ollama", "ollama"),
    ("Ollama", "openai_responses"),
}
"""The pairs of the default suite; `make conformance` runs all sixteen."""
for _client, _upstream in itertools.product(CLIENTS, UPSTREAMS):
    if os.environ.get("TOOLGATE_CONFORMANCE") or (_client, _upstream) in DEFAULT:
        _name = f"Test{_client}Over_{_upstream}"
        globals()[_name] = type(_name, (CLIENTS[_client],), {"upstream": _upstream})
