"""Loading a model: what is changed in it, what is refused, and its fingerprint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from agpo_bench.training.model import load_model, weights_fingerprint, wrap_model
from tests.rollout import tiny_models


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    loaded = tiny_models.load("llama")
    loaded.model.generation_config.eos_token_id = [2, 9]
    loaded.model.save_pretrained(path)
    loaded.tokenizer.save_pretrained(path)
    return path


def test_a_saved_model_comes_back_with_its_weights_tokenizer_and_terminators(directory: Path) -> None:
    loaded = load_model(directory)
    original = tiny_models.build("llama")
    assert loaded.fingerprint == weights_fingerprint(original)
    assert loaded.terminators == {2, 9}
    assert loaded.pad_id == 0
    assert loaded.source == str(directory)
    assert loaded.num_parameters == sum(parameter.numel() for parameter in original.parameters())
    assert loaded.tokenizer.decode([3]) == "!"
    assert not loaded.model.training


def test_the_type_asked_for_is_the_type_of_the_weights(directory: Path) -> None:
    loaded = load_model(directory, dtype="bfloat16")
    assert loaded.compute_dtype is torch.bfloat16
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}


def test_the_fingerprint_sees_every_weight_and_nothing_else(directory: Path) -> None:
    loaded = load_model(directory)
    assert load_model(directory).fingerprint == loaded.fingerprint
    with torch.no_grad():
        loaded.model.model.norm.weight[3] += 1e-6
    assert weights_fingerprint(loaded.model) != loaded.fingerprint


@pytest.mark.parametrize("place", ["/no/such/folder", "./no-such-folder", "no/such/folder"])
def test_a_missing_directory_is_one_sentence_that_names_it(place: str) -> None:
    with pytest.raises(ValueError, match=f"no model directory '{place}'; give a folder") as caught:
        load_model(place)
    assert "\n" not in str(caught.value)


def test_a_directory_that_is_no_model_is_one_sentence_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no model here", encoding="utf-8")
    with pytest.raises(ValueError, match="cannot load a causal language model from the directory") as caught:
        load_model(tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_type_is_refused(directory: Path) -> None:
    with pytest.raises(ValueError, match="no dtype 'float8'; use one of float32, bfloat16"):
        load_model(directory, dtype="float8")  # type: ignore[arg-type]


def test_dropout_is_zero_everywhere_so_training_mode_changes_nothing() -> None:
    config = GPT2Config(vocab_size=140, n_positions=32, n_embd=32, n_layer=2, n_head=4)
    assert config.resid_pdrop > 0
    torch.manual_seed(0)
    loaded = wrap_model(GPT2LMHeadModel(config), tiny_models.tokenizer())
    ids = torch.arange(20)[None]
    quiet = loaded.model(ids).logits
    loaded.model.train()
    torch.testing.assert_close(loaded.model(ids).logits, quiet, atol=0, rtol=0)


def test_attention_dropout_of_a_llama_is_silenced_too() -> None:
    model = tiny_models.build("llama")
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    wrap_model(model, tiny_models.tokenizer())
    assert all(layer.self_attn.attention_dropout == 0 for layer in model.model.layers)
