import json
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agpo_bench.planning.known_shapes import KNOWN_SHAPES
from agpo_bench.planning.shapes import _LEAN_MAX_PARAMETERS, find_shape, shape_from_config
from agpo_bench.rollout.lean_decoder import LeanDecoder
from agpo_bench.rollout.lean_model import MAX_PARAMETERS

SMALL = {
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
SMALL_CONFIGS: list[dict[str, Any]] = [
    {"model_type": "llama"},
    {"model_type": "llama", "tie_word_embeddings": True},
    {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    {"model_type": "mistral", "sliding_window": None},
    {"model_type": "qwen2"},
    {"model_type": "qwen2", "tie_word_embeddings": True},
    {"model_type": "qwen3"},
    {"model_type": "gemma"},
    {"model_type": "gemma2"},
    {"model_type": "gemma2", "attention_bias": True},
    {"model_type": "gemma3_text"},
]


def on_meta(fields: dict[str, Any]) -> Any:
    config = AutoConfig.for_model(**fields)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def count(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("changes", SMALL_CONFIGS, ids=lambda changes: "-".join(map(str, changes.values())))
def test_parameter_count_is_that_of_the_model_the_library_builds(changes: dict[str, Any]) -> None:
    fields = SMALL | changes
    shape = shape_from_config(fields, name="small", source="here")
    model = on_meta(fields)
    assert shape.num_parameters == count(model)
    assert shape.trunk == count(model.base_model)


@pytest.mark.parametrize("changes", SMALL_CONFIGS, ids=lambda changes: "-".join(map(str, changes.values())))
def test_our_own_forward_is_foreseen_for_the_models_it_supports(changes: dict[str, Any]) -> None:
    fields = SMALL | changes
    shape = shape_from_config(fields, name="small", source="here")
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields))
    assert shape.is_lean == LeanDecoder.supports(model)


@pytest.mark.parametrize(
    ("model", "billions"),
    [("Qwen/Qwen2.5-14B", 14.77), ("meta-llama/Meta-Llama-3-8B", 8.03), ("google/gemma-2-9b", 9.24)],
)
def test_presets_have_the_parameter_counts_of_their_model_cards(model: str, billions: float) -> None:
    shape = find_shape(model)
    assert round(shape.num_parameters / 1e9, 2) == billions
    assert shape.num_parameters == count(on_meta(KNOWN_SHAPES[model]))
    assert not shape.is_lean


def test_gemma_2_keeps_a_window_in_every_other_layer_and_caps_its_logits() -> None:
    shape = find_shape("google/gemma-2-9b")
    kinds = AutoConfig.for_model(**KNOWN_SHAPES["google/gemma-2-9b"]).layer_types
    assert shape.num_windowed_layers == sum(kind == "sliding_attention" for kind in kinds) == 21
    assert shape.softcaps_logits
    assert shape.head_dim == 256
    # 2 (keys, values) x 8 heads x 256 x 42 layers for a short sequence; half the layers stop at 4096 for a long one.
    assert shape.kv_elements(1024) == 2 * 8 * 256 * 42 * 1024
    assert shape.kv_elements(8192) == 2 * 8 * 256 * 21 * (8192 + 4096)


def test_the_size_limit_of_our_own_forward_is_the_trainers() -> None:
    assert _LEAN_MAX_PARAMETERS == MAX_PARAMETERS


def test_a_local_directory_is_read(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL | {"model_type": "qwen2"}))
    assert find_shape(str(tmp_path)).num_qkv_biases == (6 + 2 * 2) * 16


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "holds no config.json"),
        ("{", "not readable JSON"),
        ("[]", "must hold an object"),
        ('{"model_type": "rwkv"}', "'rwkv' are not known"),
        ('{"model_type": "llama"}', "has no field 'hidden_size'"),
    ],
)
def test_a_directory_that_is_no_known_model_is_told_as_such(tmp_path: Any, content: str | None, sentence: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=sentence):
        find_shape(str(tmp_path))


def test_a_hub_id_out_of_reach_is_one_sentence_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"local folder with its config\.json") as error:
        find_shape("nobody/no-such-model")
    assert "\n" not in str(error.value)


def test_a_missing_directory_is_not_taken_for_a_hub_id() -> None:
    with pytest.raises(ValueError, match="no model directory"):
        find_shape("./nowhere")
