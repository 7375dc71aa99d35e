"""The listings by which editors and clients find models, valid by the official client's own types."""

import json

from ollama import ListResponse, ProcessResponse, ShowResponse

from tests.typed import given
from toolgate.dialects.ollama.model_listings import ModelCard, ps, show, tags, version
from toolgate.wire.jsontext import encode

CARD = ModelCard("claude", 200_000, ("completion", "tools", "vision"), modified=1_700_000_000)


def test_the_version_is_new_enough_for_editors() -> None:
    """spec: V3"""
    assert tuple(map(int, version()["version"].split("."))) >= (0, 6, 4)


def test_tags_list_the_models() -> None:
    listed = ListResponse.model_validate_json(encode(tags([CARD, ModelCard("plain", 4096)])))
    assert [model.model for model in listed.models] == ["claude", "plain"]
    assert tags([CARD])["models"][0]["name"] == "claude"
    assert len({model.digest for model in listed.models}) == 2
    assert given(listed.models[0].modified_at).year == 2023


def test_a_card_has_what_an_editor_looks_for() -> None:
    """spec: C5; VS Code skips a model without a list of capabilities and reads its window by the architecture"""
    card = json.loads(encode(show(CARD)))
    info = card["model_info"]
    assert card["capabilities"] == ["completion", "tools", "vision"]
    assert info[f"{info['general.architecture']}.context_length"] == 200_000
    assert info["general.basename"] == "claude"
    assert set(card["details"]) >= {"family", "families", "format", "parameter_size", "quantization_level"}
    assert ShowResponse.model_validate(card).capabilities == ["completion", "tools", "vision"]
    assert (card["license"], bool(card["modelfile"]), bool(card["template"])) == ("", True, True)


def test_ps_lists_what_is_loaded() -> None:
    listed = ProcessResponse.model_validate_json(encode(ps([CARD], 1_700_000_300)))
    assert (listed.models[0].name, listed.models[0].context_length) == ("claude", 200_000)
    assert given(listed.models[0].expires_at).year == 2023
