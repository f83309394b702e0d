"""A plain Llama read without the library's code is the model the library reads; anything unusual is left to it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agpo_bench.rollout.lean_model import LeanCausalLM
from agpo_bench.rollout.torch_sampler import TorchSampler
from agpo_bench.training.model import load_model, weights_fingerprint
from agpo_bench.training.policy import Policy, ScoredSequence
from tests.rollout import tiny_models

SEQUENCES = [
    ScoredSequence(prompt_ids=(5, 6, 7), response_ids=(8, 9, 2), temperature=0.8),
    ScoredSequence(prompt_ids=(5, 6, 7), response_ids=(10,), temperature=0.8),
]


def _save(directory: Path, name: str = "llama", dtype: torch.dtype = torch.float32) -> Any:
    model = tiny_models.build(name).to(dtype)
    model.generation_config.eos_token_id = [2, 9]
    model.save_pretrained(directory)
    tiny_models.tokenizer().save_pretrained(directory)
    return model


def _library_logprobs(model: Any) -> torch.Tensor:
    with torch.no_grad():
        logits = model(torch.tensor([[5, 6, 7, 8, 9, 2]])).logits[0, 2:5]
    return torch.log_softmax(logits / 0.8, -1).gather(1, torch.tensor([8, 9, 2])[:, None])[:, 0]


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_weights_settings_and_scores_are_the_librarys(tmp_path: Path, is_tied: bool) -> None:
    model = tiny_models.build("llama")
    if not is_tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.1)
    model.generation_config.eos_token_id = [2, 9]
    model.save_pretrained(tmp_path)
    tiny_models.tokenizer().save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert isinstance(loaded.model, LeanCausalLM)
    assert loaded.fingerprint == weights_fingerprint(AutoModelForCausalLM.from_pretrained(tmp_path))
    assert loaded.terminators == {2, 9}
    scored = Policy(loaded).logprobs(SEQUENCES, with_grad=False)
    torch.testing.assert_close(scored.logprob_BT[0], _library_logprobs(model), atol=1e-5, rtol=0)
    request = tiny_models.requests()
    sampled = TorchSampler(loaded).sample(request, with_entropy=True)
    from_library = tiny_models.wrap_model(AutoModelForCausalLM.from_pretrained(tmp_path), loaded.tokenizer)
    assert TorchSampler(from_library).sample(request, with_entropy=True) == sampled
    assert loaded.tokenizer.get_vocab() == AutoTokenizer.from_pretrained(tmp_path).get_vocab()


def test_the_library_reads_what_a_trained_policy_saves(tmp_path: Path) -> None:
    _save(tmp_path / "first")
    policy = Policy(load_model(tmp_path / "first"), value_head="separate")
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.1)
    policy.save_pretrained(tmp_path / "second")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "second")
    assert weights_fingerprint(model) == policy.fingerprint()
    assert model.generation_config.eos_token_id == [2, 9]
    expected = policy.score(SEQUENCES, max_tokens=100).logprob_BT[0]
    torch.testing.assert_close(_library_logprobs(model), expected, atol=1e-5, rtol=0)
    text = "a b word3 </s>"
    saved = AutoTokenizer.from_pretrained(tmp_path / "second")
    assert saved(text)["input_ids"] == tiny_models.tokenizer()(text)["input_ids"]


def test_a_frozen_copy_keeps_its_weights_and_the_tie(tmp_path: Path) -> None:
    _save(tmp_path)
    policy = Policy(load_model(tmp_path))
    reference = policy.frozen_copy()
    assert reference.loaded.model.lm_head.weight is reference.loaded.model.model.embed_tokens.weight
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    assert reference.fingerprint() == reference.loaded.fingerprint != policy.fingerprint()


def test_a_loaded_model_outlives_its_file(tmp_path: Path) -> None:
    _save(tmp_path)
    loaded = load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert weights_fingerprint(loaded.model) == loaded.fingerprint


def test_bfloat16_is_read_as_asked_and_saved_as_float32_once_trained(tmp_path: Path) -> None:
    _save(tmp_path, dtype=torch.bfloat16)
    loaded = load_model(tmp_path, dtype="bfloat16")
    assert isinstance(loaded.model, LeanCausalLM) and loaded.model.dtype is torch.bfloat16
    Policy(loaded).save_pretrained(tmp_path / "trained")
    assert json.loads((tmp_path / "trained/config.json").read_text())["dtype"] == "float32"
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "trained").dtype is torch.float32


def _edit(name: str, **fields: Any) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        content = json.loads((directory / name).read_text())
        (directory / name).write_text(json.dumps({**content, **fields}))

    return change


@pytest.mark.parametrize(
    "change",
    [
        _edit("config.json", rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}),
        _edit("config.json", rope_scaling={"type": "linear", "factor": 2.0}, rope_parameters=None),
        _edit("config.json", hidden_act="gelu"),
        _edit("tokenizer_config.json", tokenizer_class="LlamaTokenizer"),
        lambda directory: (directory / "model.safetensors").rename(directory / "weights.safetensors"),
        lambda directory: (directory / "model.safetensors").write_bytes(b"torn"),
    ],
)
def test_anything_unusual_is_left_to_the_library(tmp_path: Path, change: Callable[[Path], None]) -> None:
    _save(tmp_path)
    change(tmp_path)
    try:
        loaded = load_model(tmp_path)
    except ValueError as error:
        assert "cannot load a causal language model" in str(error)
    else:
        assert not isinstance(loaded.model, LeanCausalLM)


def test_another_architecture_is_left_to_the_library(tmp_path: Path) -> None:
    _save(tmp_path, "qwen2")
    assert not isinstance(load_model(tmp_path).model, LeanCausalLM)


def test_a_plain_llama_is_loaded_and_sampled_without_the_librarys_modelling_code(tmp_path: Path) -> None:
    _save(tmp_path)
    code = (
        "import sys; from agpo_bench.training.model import load_model; from agpo_bench.training.policy import Policy;"
        "from agpo_bench.rollout.torch_sampler import TorchSampler; from agpo_bench.rollout.sampler import *;"
        f"loaded = load_model({str(tmp_path)!r}); Policy(loaded);"
        "r = SamplingRequest(prompt_id='p', prompt_ids=(5,), seeds=(1,), temperature=1.0, max_new_tokens=4);"
        "assert TorchSampler(loaded).sample([r])[0].num_tokens;"
        "print([m for m in sys.modules if 'modeling_' in m or m == 'torch._dynamo'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
