"""Low-rank adapters train alone, beside a reference that is the model without them, and leave a plain model behind."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("peft")

from agpo_bench.config import RunConfig, load_config
from agpo_bench.methods.recipe import load_method
from agpo_bench.rollout.adapters import (
    add_adapters,
    effective_weight,
    is_adapter_weight,
    merged_weights,
    without_adapters,
)
from agpo_bench.rollout.lean_decoder import LeanDecoder
from agpo_bench.rollout.torch_sampler import TorchSampler
from agpo_bench.training.checkpoint import checkpoints, newest_checkpoint
from agpo_bench.training.model import LoadedModel, load_model, weights_fingerprint
from agpo_bench.training.policy import Policy, ScoredSequence
from agpo_bench.training.run import train
from tests.marks import needs_smollm2
from tests.rollout.tiny_models import load as tiny_model
from tests.training import launched
from tests.training.test_resume import assert_same_run, stop_after

Config = Callable[..., RunConfig]

SEQUENCES = [
    ScoredSequence(prompt_ids=(5, 9, 11), response_ids=(20, 21, 22, 2), temperature=1.0),
    ScoredSequence(prompt_ids=(5, 9, 11), response_ids=(30, 2), temperature=0.7),
]


def adapted(name: str, *, scale: float = 0.0, targets: tuple[str, ...] = ("all-linear",)) -> LoadedModel:
    """A tiny model with adapters; with a scale their B is not 0."""
    loaded = tiny_model(name)
    add_adapters(loaded.model, rank=4, alpha=8.0, targets=targets, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight_name, parameter in loaded.model.named_parameters():
            if ".lora_B." in weight_name:
                parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return loaded


def library_logprobs(loaded: LoadedModel, sequence: ScoredSequence) -> torch.Tensor:
    """What the library's own forward says, adapters and all."""
    ids = torch.tensor([[*sequence.prompt_ids, *sequence.response_ids]])
    with torch.no_grad():
        logits = loaded.model(input_ids=ids).logits[0, len(sequence.prompt_ids) - 1 : -1]
    logprobs = torch.log_softmax(logits / sequence.temperature, dim=-1)
    return logprobs[torch.arange(len(sequence.response_ids)), torch.tensor(sequence.response_ids)]


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_our_forward_pass_and_the_sampler_use_the_adapted_weights_as_peft_does(name: str) -> None:
    loaded = adapted(name, scale=0.1)
    assert LeanDecoder.supports(loaded.model)
    policy = Policy(loaded)
    found = policy.logprobs(SEQUENCES, with_grad=False).logprob_BT
    for row, sequence in enumerate(SEQUENCES):
        expected = library_logprobs(loaded, sequence)
        torch.testing.assert_close(found[row, : len(expected)], expected, atol=2e-5, rtol=1e-4)
        with without_adapters(loaded.model):
            bare = library_logprobs(loaded, sequence)
        assert (expected - bare).abs().max() > 1e-3
    # Tokens chosen greedily by the sampler are the library's.
    from agpo_bench.rollout.sampler import SamplingRequest

    request = SamplingRequest(
        prompt_id="p", prompt_ids=(5, 9, 11), seeds=(0,), temperature=0.0, max_new_tokens=6, stop=()
    )
    response = TorchSampler(loaded).sample([request])[0].rollouts[0].response_ids
    with torch.no_grad():
        logits = loaded.model(input_ids=torch.tensor([[5, 9, 11, *response]])).logits[0, 2:-1]
    assert logits.argmax(dim=-1).tolist() == list(response)


def test_the_gradients_of_the_adapters_are_those_of_peft() -> None:
    loaded = adapted("llama", scale=0.1)
    own = {name: p for name, p in loaded.model.named_parameters() if is_adapter_weight(name)}
    policy = Policy(loaded)
    policy.logprobs(SEQUENCES[:1]).logprob_BT.sum().backward()
    found = {name: p.grad.clone() for name, p in own.items() if p.grad is not None}
    assert set(found) == set(own)
    loaded.model.zero_grad()
    ids = torch.tensor([[5, 9, 11, 20, 21, 22, 2]])
    logprobs = torch.log_softmax(loaded.model(input_ids=ids).logits[0, 2:-1], dim=-1)
    logprobs[torch.arange(4), ids[0, 3:]].sum().backward()
    for name, parameter in own.items():
        assert parameter.grad is not None
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-5, rtol=1e-3)
    assert all(p.grad is None for name, p in loaded.model.named_parameters() if not is_adapter_weight(name))


def test_the_reference_is_the_model_without_adapters_and_takes_no_memory_of_its_own() -> None:
    loaded, plain = adapted("llama", scale=0.1), tiny_model("llama")
    policy = Policy(loaded)
    reference = policy.frozen_copy()
    assert reference.loaded.model is loaded.model
    expected = Policy(plain, is_frozen=True).score(SEQUENCES, max_tokens=100).logprob_BT
    before = policy.score(SEQUENCES, max_tokens=100).logprob_BT
    assert torch.equal(reference.score(SEQUENCES, max_tokens=100).logprob_BT, expected)
    assert torch.equal(reference.logprobs(SEQUENCES, with_grad=False).logprob_BT, expected)
    assert torch.equal(policy.score(SEQUENCES, max_tokens=100).logprob_BT, before)
    assert not torch.equal(before, expected)
    assert all(parameter.requires_grad for parameter in policy.parameters())


def test_new_adapters_leave_every_number_as_it_was_to_the_bit() -> None:
    policy = Policy(adapted("llama"))
    found, reference = (one.score(SEQUENCES, max_tokens=100).logprob_BT for one in (policy, policy.frozen_copy()))
    assert torch.equal(found, reference)


def test_only_adapters_are_trained_and_a_critic_shares_the_frozen_weights() -> None:
    loaded = adapted("llama")
    policy = Policy(loaded, value_head="separate")
    names = [name for name, _ in policy.named_parameters()]
    assert all(is_adapter_weight(name) or name.startswith("value_head.") for name in names)
    # 7 matrices a layer, 2 layers, A and B, in model and critic, and the head's weight and bias.
    assert len(names) == 7 * 2 * 2 * 2 + 2
    trunk = policy._modules["value_trunk"]
    first, second = loaded.model.model.layers[0].mlp.up_proj, trunk.layers[0].mlp.up_proj  # type: ignore[union-attr, index]
    assert first.base_layer.weight is second.base_layer.weight
    assert first.lora_A["default"].weight is not second.lora_A["default"].weight


def test_merged_weights_are_those_of_the_plain_model_with_the_products_added() -> None:
    loaded = adapted("qwen2", scale=0.1, targets=("q_proj", "down_proj"))
    merged, plain = dict(merged_weights(loaded.model)), dict(tiny_model("qwen2").model.named_parameters())
    assert set(merged) == set(plain)
    layer = loaded.model.model.layers[1].mlp.down_proj
    product = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    name = "model.layers.1.mlp.down_proj.weight"
    torch.testing.assert_close(merged[name], plain[name] + 8.0 / 4 * product.detach())
    assert torch.equal(merged["model.layers.1.mlp.up_proj.weight"], plain["model.layers.1.mlp.up_proj.weight"])
    assert torch.equal(effective_weight(layer), merged[name])


@pytest.mark.parametrize(
    ("targets", "told"), [("nope", "not found"), ("lm_head", "the output head takes no"), ("embed_tokens", "takes no")]
)
def test_targets_without_a_linear_layer_are_refused(targets: str, told: str) -> None:
    with pytest.raises(ValueError, match=f"lora_targets = {targets}: .*{told}"):
        add_adapters(tiny_model("llama").model, rank=2, alpha=2.0, targets=[targets], seed=0)


@pytest.fixture
def lora_config(small_config: Config) -> Config:
    return lambda **fields: small_config(lora_rank=4, learning_rate=3e-3, **fields)


def test_a_run_starts_at_the_reference_trains_adapters_alone_and_moves(
    lora_config: Config, take_steps: Callable[..., Any]
) -> None:
    session, results = take_steps(lora_config(), "grpo", steps=2)
    first, second = (result.record.values for result in results)
    # Between the sampler's numbers and the reference's lies rounding; between policy and reference nothing.
    assert first["kl/ref_k1"] == pytest.approx(0.0, abs=1e-6) and first["kl/ref_k3"] == pytest.approx(0.0, abs=1e-9)
    assert first["clip/first_pass_ratio_err"] < 1e-3 and first["kl/step_k3"] > 0 and second["kl/ref_k3"] > 0
    held = sum(tensor.numel() for state in session.engine.optimizer.state.values() for tensor in state.values())
    model = load_model(session.policy.loaded.source)
    assert held < model.num_parameters, "two moments of everything would be twice the model"
    with without_adapters(session.policy.loaded.model):
        base = dict(merged_weights(session.policy.loaded.model))
    assert all(torch.equal(base[name], parameter) for name, parameter in model.model.named_parameters())


def test_bfloat16_weights_stay_as_they_are_beside_float32_adapters_that_learn(
    lora_config: Config, take_steps: Callable[..., Any]
) -> None:
    session, results = take_steps(lora_config(dtype="bfloat16"), "agpo", steps=3)
    values = [result.record.values for result in results]
    # Policy and reference are the same products with the same roundings until the first update.
    assert values[0]["kl/ref_k3"] == 0.0 < values[1]["kl/ref_k3"] < values[2]["kl/ref_k3"] < 1
    assert all(math.isfinite(value) for step in values for value in step.values() if value is not None)
    model = session.policy.loaded.model
    initial = load_model(session.policy.loaded.source, dtype="bfloat16").model
    with without_adapters(model):
        frozen = dict(merged_weights(model))
    assert all(torch.equal(frozen[name], parameter) for name, parameter in initial.named_parameters())
    adapters = [parameter for name, parameter in model.named_parameters() if is_adapter_weight(name)]
    moments = [tensor for state in session.engine.optimizer.state.values() for tensor in state.values()]
    assert {tensor.dtype for tensor in (*adapters, *moments)} == {torch.float32}


def test_float32_adapters_beside_bfloat16_weights_go_through_the_librarys_forward_too() -> None:
    loaded = tiny_model("gemma")
    loaded.model.to(torch.bfloat16)
    loaded = replace(loaded, compute_dtype=torch.bfloat16)
    add_adapters(loaded.model, rank=4, alpha=8.0, targets=["all-linear"], seed=1)
    policy = Policy(loaded)
    found, reference = (one.score(SEQUENCES, max_tokens=100).logprob_BT for one in (policy, policy.frozen_copy()))
    assert torch.equal(found, reference)
    policy.logprobs(SEQUENCES).logprob_BT.sum().backward()
    gradients = {name: parameter.grad for name, parameter in policy.named_parameters()}
    # B is 0, so nothing reaches A yet.
    assert all(bool((grad != 0).any()) == (".lora_B." in name) for name, grad in gradients.items() if grad is not None)
    assert all(grad is not None and grad.dtype == torch.float32 for grad in gradients.values())
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.05, generator=torch.Generator().manual_seed(0))
    from agpo_bench.rollout.sampler import SamplingRequest

    request = SamplingRequest(
        prompt_id="p", prompt_ids=(5, 9, 11), seeds=(0, 1), temperature=1.0, max_new_tokens=6, stop=()
    )
    for rollout in TorchSampler(loaded).sample([request])[0].rollouts:
        sequence = ScoredSequence(prompt_ids=(5, 9, 11), response_ids=rollout.response_ids, temperature=1.0)
        ours = policy.score([sequence], max_tokens=100).logprob_BT[0]
        torch.testing.assert_close(ours, torch.tensor(rollout.logprobs), atol=0.15, rtol=0)


@pytest.mark.parametrize(
    ("name", "dtype"), [("grpo", "float32"), ("ppo", "float32"), ("dpo", "float32"), ("agpo", "bfloat16")]
)
def test_a_run_of_adapters_in_two_parts_equals_a_run_in_one(
    lora_config: Config, tmp_path: Path, name: str, dtype: str
) -> None:
    config, method = lora_config(budget=2000, checkpoint_every_steps=100, dtype=dtype), load_method(name)
    whole = train(config, method, directory=tmp_path / "whole")
    train(config, method, directory=tmp_path / "parts", on_step=stop_after(1))
    stopped = newest_checkpoint(tmp_path / "parts")
    assert stopped is not None and not (stopped / "model").exists()
    assert (stopped / "adapter" / "adapter_model.safetensors").stat().st_size < 200_000
    assert load_model(stopped / "adapter").fingerprint != load_model(_base(stopped / "adapter")).fingerprint
    resumed = train(config, method, directory=tmp_path / "parts", resume=True)
    assert resumed.is_finished and resumed.num_steps == whole.num_steps
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_finished_run_leaves_a_plain_model_and_adapters_that_peft_reads(lora_config: Config, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    train(lora_config(budget=1000), load_method("grpo"), directory=tmp_path)
    (last,) = checkpoints(tmp_path)
    merged = load_model(last / "model")
    from_adapters = load_model(last / "adapter")
    assert weights_fingerprint(merged.model) == from_adapters.fingerprint
    base = AutoModelForCausalLM.from_pretrained(_base(last / "adapter"))
    other = PeftModel.from_pretrained(base, last / "adapter")
    ids = torch.tensor([[1, 5, 9, 3]])
    library = AutoModelForCausalLM.from_pretrained(last / "model")
    with torch.no_grad():
        torch.testing.assert_close(other(input_ids=ids).logits, library(input_ids=ids).logits, atol=1e-4, rtol=1e-4)
        with other.disable_adapter():
            assert not torch.allclose(other(input_ids=ids).logits, library(input_ids=ids).logits, atol=1e-4)


def _base(adapter: Path) -> str:
    base: str = json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"]
    return base


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_processes_train_the_adapters_of_policy_and_critic_that_one_trains(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"lora_rank": 4, "learning_rate": 5e-4, "budget": 1800}
    launched.run(tmp_path / "two", "--method", "ppo", processes=2, **settings)
    train(launched.config(**settings), load_method("ppo"), directory=tmp_path / "one")
    launched.assert_alike(tmp_path / "two" / "ppo" / "seed-42", tmp_path / "one", rel=3e-4, absolute=3e-6)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@needs_smollm2
def test_smollm2_learns_an_answer_with_float32_adapters_beside_bfloat16_weights(take_steps: Callable[..., Any]) -> None:
    config = load_config(
        "smollm2",
        data="embedded",
        tasks="gsm8k",
        prompts_per_batch=2,
        group_size=2,
        max_new_tokens=8,
        num_threads=1,
        dtype="bfloat16",
        lora_rank=8,
        learning_rate=1e-3,
        learning_rate_schedule="constant",
    )
    session, (result,) = take_steps(config, "grpo", steps=1)
    assert result.record.values["kl/ref_k3"] == 0.0
    policy, reference, engine = session.policy, session.reference, session.engine
    ids = policy.loaded.tokenizer(" forty-two")["input_ids"]
    prompt = session.prompt_ids[next(iter(session.prompt_ids))]
    wanted = [ScoredSequence(prompt_ids=prompt, response_ids=tuple(ids), temperature=1.0)]
    anchor = reference.score(wanted, max_tokens=512).logprob_BT
    seen = []
    for _ in range(6):
        logprob_BT = policy.logprobs(wanted).logprob_BT
        seen.append(float(logprob_BT.detach().sum()))
        engine.backward(-logprob_BT.mean())
        assert math.isfinite(engine.step())
    # Updates far below a bfloat16 weight's last bit add up in the adapters until the product shows them.
    assert seen[-1] > seen[0] + 3, seen
    assert torch.equal(reference.score(wanted, max_tokens=512).logprob_BT, anchor)
    numbers = [parameter for _, parameter in policy.named_parameters()]
    # 30 layers of rank 8: q, o 2 x 576 each, k, v 576 + 192 each, gate, up, down 576 + 1536 each.
    assert sum(one.numel() for one in numbers) == 30 * 8 * (2 * 1152 + 2 * 768 + 3 * 2112) == 2_442_240
    assert {one.dtype for one in numbers} == {torch.float32}
