"""The same batch through TRL's own loss: value and gradient of every parameter agree to 1e-5.

The model is a tiny random Llama in float32, moved away from the policy that "sampled" the batch, so that ratios leave 1
and clips act. Sampling temperature 0.7 where TRL has one.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from agpo_bench.methods.batch import LossBatch, LossDenominators
from agpo_bench.methods.preference import PreferenceBatch
from agpo_bench.methods.recipe import load_method

pytestmark = pytest.mark.slow
trl = pytest.importorskip("trl")

TEMPERATURE = 0.7
MAX_NEW_TOKENS = 9
PAD = 0


@dataclass(frozen=True, kw_only=True)
class Case:
    model: Any
    tokenizer: Any
    directory: Path
    prompt_ids: torch.Tensor
    completion_ids: torch.Tensor
    mask: torch.Tensor
    old_logprob: torch.Tensor
    ref_logprob: torch.Tensor
    advantage: torch.Tensor


def logprobs(model, prompt_ids, completion_ids, temperature=TEMPERATURE) -> torch.Tensor:
    ids = torch.cat([prompt_ids, completion_ids], dim=1)
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, prompt_ids.shape[1] - 1 : -1]
    return (logits / temperature).log_softmax(-1).gather(-1, completion_ids[..., None])[..., 0]


def moved(model, scale: float, seed: int):
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return other


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Case:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("tiny")
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.3,
        attention_dropout=0.0,
    )
    model = LlamaForCausalLM(config)
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, 20)}
    inner = Tokenizer(WordLevel(vocabulary, unk_token="<pad>"))
    inner.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    generator = torch.Generator().manual_seed(1)
    prompt_ids = torch.randint(3, 20, (6, 4), generator=generator)
    completion_ids = torch.randint(3, 20, (6, MAX_NEW_TOKENS), generator=generator)
    lengths = torch.tensor([9, 1, 4, 7, 2, 5])
    mask = (torch.arange(MAX_NEW_TOKENS)[None] < lengths[:, None]).long()
    completion_ids = completion_ids * mask
    with torch.no_grad():
        old = logprobs(moved(model, 0.01, 2), prompt_ids, completion_ids)
        ref = logprobs(moved(model, 0.05, 3), prompt_ids, completion_ids)
    return Case(
        model=model,
        tokenizer=tokenizer,
        directory=directory,
        prompt_ids=prompt_ids,
        completion_ids=completion_ids,
        mask=mask,
        old_logprob=old,
        ref_logprob=ref,
        advantage=torch.tensor([1.2, -0.4, 0.3, -1.1, 0.8, -0.6]),
    )


def reward(completions, **_) -> list[float]:
    return [0.0] * len(completions)


def trainer_settings(tmp_path, **given) -> dict[str, Any]:
    return {
        "output_dir": str(tmp_path),
        "per_device_train_batch_size": 6,
        "gradient_accumulation_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
    } | given


def peer_gradient(trainer, loss: torch.Tensor) -> tuple[float, list[torch.Tensor]]:
    model = trainer.model
    model.zero_grad()
    loss.backward()
    return float(loss.detach()), [parameter.grad.clone() for parameter in model.parameters()]


def assert_same(ours: torch.Tensor, model, peer: tuple[float, list[torch.Tensor]]) -> None:
    model.zero_grad()
    ours.backward()
    value, gradients = peer
    assert float(ours.detach()) == pytest.approx(value, abs=1e-5)
    largest = max(float(gradient.abs().max()) for gradient in gradients)
    assert largest > 1e-3
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.allclose(parameter.grad, gradient, atol=1e-5 * max(1.0, largest))


def our_loss(case: Case, method, *, low: float, high: float) -> torch.Tensor:
    logprob = logprobs(case.model, case.prompt_ids, case.completion_ids)
    one = torch.ones(6, 1)
    batch = LossBatch(
        logprob_BT=logprob,
        old_logprob_BT=case.old_logprob,
        ref_logprob_BT=case.ref_logprob,
        mask_BT=case.mask.bool(),
        advantage_BT=case.advantage[:, None],
        clip_low_B1=low * one,
        clip_high_B1=high * one,
        kl_coefficient=method.kl_coefficient(method.start()),
    )
    counts = LossDenominators(num_tokens=int(case.mask.sum()), num_sequences=6, max_new_tokens=MAX_NEW_TOKENS)
    output = method.loss(batch, counts)
    if "cispo" not in method.surrogate.use:
        assert 0 < int(output.active_tokens_B.sum()) < int(case.mask.sum()), "the clip must act on some tokens only"
    return output.loss


GROUP_METHODS = {
    "grpo": ({"loss_type": "grpo", "beta": 0.03, "epsilon": 0.05}, {"clip.low": 0.05, "clip.high": 0.05}),
    "dr_grpo": ({"loss_type": "dr_grpo", "epsilon": 0.05}, {"clip.low": 0.05, "clip.high": 0.05}),
    "dapo": (
        {"loss_type": "dapo", "epsilon": 0.05, "epsilon_high": 0.07},
        {"clip.low": 0.05, "clip.high": 0.07},
    ),
    "gspo_asym": (
        {
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "epsilon": 0.003,
            "epsilon_high": 0.005,
        },
        {"aggregation.use": "sequence_mean"},
    ),
    "cispo": ({"loss_type": "cispo", "epsilon_high": 1.02}, {"clip.high": 0.02}),
}


@pytest.mark.parametrize("name", GROUP_METHODS)
def test_loss_and_gradient_are_those_of_trl_on_the_same_batch(case, name, tmp_path):
    from datasets import Dataset

    settings, overrides = GROUP_METHODS[name]
    config = trl.GRPOConfig(
        **trainer_settings(
            tmp_path,
            num_generations=6,
            max_completion_length=MAX_NEW_TOKENS,
            temperature=TEMPERATURE,
            steps_per_generation=1,
            **({"beta": 0.0} | settings),
        )
    )
    trainer = trl.GRPOTrainer(
        model=str(case.directory),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["w3 w4"] * 6}),
        processing_class=case.tokenizer,
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    peer = peer_gradient(
        trainer,
        trainer._compute_loss(
            trainer.model,
            {
                "prompt_ids": case.prompt_ids,
                "prompt_mask": torch.ones_like(case.prompt_ids),
                "completion_ids": case.completion_ids,
                "completion_mask": case.mask,
                "advantages": case.advantage,
                "old_per_token_logps": case.old_logprob,
                "ref_per_token_logps": case.ref_logprob,
                "num_items_in_batch": case.mask.sum(),
            },
        ),
    )
    method = load_method(name, overrides)
    assert_same(our_loss(case, method, low=method.clip.low, high=method.clip.high), case.model, peer)


def test_rloo_loss_and_gradient_are_those_of_trl_on_the_same_batch(case, tmp_path):
    from datasets import Dataset

    config = trl.RLOOConfig(
        **trainer_settings(
            tmp_path,
            num_generations=6,
            max_completion_length=MAX_NEW_TOKENS,
            temperature=TEMPERATURE,
            steps_per_generation=1,
            epsilon=0.02,
        )
    )
    trainer = trl.RLOOTrainer(
        model=str(case.directory),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["w3 w4"] * 6}),
        processing_class=case.tokenizer,
    )
    trainer.model.train()
    peer = peer_gradient(
        trainer,
        trainer._compute_loss(
            trainer.model,
            {
                "prompt_ids": case.prompt_ids,
                "prompt_mask": torch.ones_like(case.prompt_ids),
                "completion_ids": case.completion_ids,
                "completion_mask": case.mask,
                "advantages": case.advantage,
                "old_logps": (case.old_logprob * case.mask).sum(1),
            },
        ),
    )
    assert_same(our_loss(case, load_method("rloo"), low=0.02, high=0.02), case.model, peer)


def test_dpo_loss_and_gradient_are_those_of_trl_on_the_same_pairs(case, tmp_path):
    from datasets import Dataset

    config = trl.DPOConfig(**trainer_settings(tmp_path, beta=0.1, max_length=32))
    trainer = trl.DPOTrainer(
        model=str(case.directory),
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["w3 w4"] * 6, "chosen": ["w5"] * 6, "rejected": ["w6"] * 6}),
        processing_class=case.tokenizer,
    )
    trainer.ref_model.load_state_dict(moved(case.model, 0.05, 3).state_dict())
    trainer.model.train()
    ids = torch.cat([case.prompt_ids, case.completion_ids], dim=1)
    peer = peer_gradient(
        trainer,
        trainer._compute_loss(
            trainer.model,
            {
                "input_ids": ids,
                "attention_mask": torch.cat([torch.ones_like(case.prompt_ids), case.mask], dim=1),
                "completion_mask": torch.cat([torch.zeros_like(case.prompt_ids), case.mask], dim=1),
            },
            return_outputs=False,
        ),
    )
    with torch.no_grad():
        ref = logprobs(moved(case.model, 0.05, 3), case.prompt_ids, case.completion_ids, temperature=1.0)
    batch = PreferenceBatch(
        logprob_BT=logprobs(case.model, case.prompt_ids, case.completion_ids, temperature=1.0),
        ref_logprob_BT=ref,
        mask_BT=case.mask.bool(),
    )
    assert_same(load_method("dpo").preference_loss(batch, num_pairs=3).loss, case.model, peer)
