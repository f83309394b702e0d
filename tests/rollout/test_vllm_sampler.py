"""The vLLM sampler on the CPU build: the torch sampler's tokens, the policy's log-probabilities, weights that follow.

``make test-vllm`` makes the environment. CPU attention of vLLM takes heads of 32 and more, so the models are wider than
those of the other tests.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

from agpo_bench.records import Group
from agpo_bench.rollout.sampler import Sampler, SamplingRequest
from agpo_bench.rollout.torch_sampler import TorchSampler
from agpo_bench.rollout.vllm_engine import VllmEngine, VllmSettings
from agpo_bench.rollout.vllm_sampler import VllmSampler
from agpo_bench.training.model import LoadedModel, load_model, wrap_model
from agpo_bench.training.policy import Policy, ScoredSequence
from agpo_bench.training.sampler_gap import SamplerGap
from tests.rollout import tiny_models
from tests.rollout.wide_model import write_wide_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; make test-vllm installs it"),
]

# vLLM compiles one small function when log-probabilities are first asked for; without this that takes 20 seconds.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

SETTINGS = VllmSettings(max_rows=64, max_length=256)
REQUESTS = tiny_models.requests(8)
GREEDY = [dataclasses.replace(request, temperature=0.0, seeds=(0,)) for request in REQUESTS]
HEAD = {"hidden_size": 64, "num_attention_heads": 2, "head_dim": 32}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(write_wide_model(tmp_path_factory.mktemp("models") / "wide"))


@pytest.fixture(scope="module")
def sampler(wide: LoadedModel) -> Iterator[VllmSampler]:
    found = VllmSampler(wide, SETTINGS)
    yield found
    found.close()


@pytest.fixture(scope="module")
def chain() -> Iterator[tuple[LoadedModel, VllmSampler]]:
    """Its logits depend on the last token alone; ``set_chain`` says how. Tokens 2 and 7 end a response."""
    loaded = tiny_models.chain({}, eos=[2, 7], head_dim=32)
    found = VllmSampler(loaded, SETTINGS)
    yield loaded, found
    found.close()


def set_chain(chain: tuple[LoadedModel, VllmSampler], logits: dict[int, dict[int, float]]) -> VllmSampler:
    loaded, sampler = chain
    source = tiny_models.chain(logits, eos=[2, 7], head_dim=32).model
    with torch.no_grad():
        loaded.model.lm_head.weight.copy_(source.lm_head.weight)
    sampler.load_weights(sampler.weights_version + 1)
    return sampler


def _request(prompt_ids: tuple[int, ...], *, num: int = 1, **options: object) -> SamplingRequest:
    settings = {"temperature": 1.0, "max_new_tokens": 8, "prompt_id": "tiny/train/0", **options}
    return SamplingRequest(prompt_ids=prompt_ids, seeds=tuple(range(num)), **settings)  # type: ignore[arg-type]


def _responses(groups: list[Group]) -> list[list[tuple[int, ...]]]:
    return [[rollout.response_ids for rollout in group.rollouts] for group in groups]


def _gap(loaded: LoadedModel, groups: list[Group]) -> SamplerGap:
    sequences = [
        ScoredSequence(prompt_ids=group.prompt_ids, response_ids=rollout.response_ids, temperature=1.0)
        for group in groups
        for rollout in group.rollouts
    ]
    scored = Policy(loaded, is_frozen=True).score(sequences, max_tokens=4096)
    return SamplerGap.between([rollout.logprobs for group in groups for rollout in group.rollouts], scored)


def test_greedy_tokens_texts_and_finishes_are_the_torch_samplers(wide: LoadedModel, sampler: VllmSampler) -> None:
    for ours, theirs in zip(sampler.sample(GREEDY), TorchSampler(wide).sample(GREEDY), strict=True):
        for mine, other in zip(ours.rollouts, theirs.rollouts, strict=True):
            assert mine.response_ids == other.response_ids
            assert (mine.text, mine.is_finished) == (other.text, other.is_finished)
            assert mine.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_log_probabilities_are_the_policys_at_temperature_1_whatever_the_request(
    wide: LoadedModel, sampler: VllmSampler
) -> None:
    # Temperatures 1, 0.7, 1.3 and 0, nuclei of 1 and 0.9. Measured: 4e-7 on average, 6e-6 at most.
    gap = _gap(wide, sampler.sample(REQUESTS))
    assert gap.num_tokens > 200
    assert gap.largest < 5e-5


def test_the_same_seed_gives_the_same_tokens_whatever_shares_the_batch(sampler: VllmSampler) -> None:
    whole = sampler.sample(REQUESTS)
    alone = [sampler.sample([request])[0] for request in REQUESTS[::-1]][::-1]
    assert _responses(alone) == _responses(whole)
    last = dataclasses.replace(REQUESTS[0], seeds=REQUESTS[0].seeds[-1:])
    assert _responses(sampler.sample([last]))[0][0] == _responses(whole)[0][-1]


def test_groups_come_in_order_with_their_seeds_and_their_samples_differ(sampler: VllmSampler) -> None:
    groups = sampler.sample(REQUESTS)
    for request, group in zip(REQUESTS, groups, strict=True):
        assert (group.prompt_id, group.prompt_ids) == (request.prompt_id, request.prompt_ids)
        assert tuple(rollout.seed for rollout in group.rollouts) == request.seeds
        assert [rollout.sample_index for rollout in group.rollouts] == list(range(len(request.seeds)))
        assert all(rollout.entropies is None for rollout in group.rollouts)
        distinct = len({rollout.response_ids for rollout in group.rollouts})
        assert distinct == 1 if request.temperature == 0 else distinct > 1


def test_every_row_has_its_own_temperature(chain: tuple[LoadedModel, VllmSampler]) -> None:
    # From token 3 the next is 4, 5 or 6; then the response ends.
    end = {token: {2: 30.0} for token in (4, 5, 6)}
    sampler = set_chain(chain, {3: {4: 1.0, 5: 0.0, 6: -0.5}, **end})
    temperatures = (0.5, 1.0, 1.5)
    requests = [
        dataclasses.replace(_request((3,), num=600, temperature=one), seeds=tuple(range(1000 * i, 1000 * i + 600)))
        for i, one in enumerate(temperatures)
    ]
    plain = torch.log_softmax(torch.tensor([1.0, 0.0, -0.5], dtype=torch.float64), -1)
    for temperature, group in zip(temperatures, sampler.sample(requests), strict=True):
        firsts = torch.tensor([rollout.response_ids[0] for rollout in group.rollouts])
        counts = torch.bincount(firsts, minlength=7)[4:]
        expected = torch.softmax(torch.tensor([1.0, 0.0, -0.5], dtype=torch.float64) / temperature, -1)
        assert int(counts.sum()) == 600
        assert chisquare(counts.numpy(), 600 * expected.numpy()).pvalue > 1e-3
        for rollout in group.rollouts[:50]:
            assert rollout.logprobs[0] == pytest.approx(float(plain[rollout.response_ids[0] - 4]), abs=1e-5)


def test_top_p_cuts_the_choice_and_not_the_log_probability(chain: tuple[LoadedModel, VllmSampler]) -> None:
    end = {token: {2: 30.0} for token in (4, 5, 6)}
    sampler = set_chain(chain, {3: {4: math.log(0.6), 5: math.log(0.3), 6: math.log(0.1)}, **end})
    (group,) = sampler.sample([_request((3,), num=200, top_p=0.85)])
    seen = {rollout.response_ids[0]: rollout.logprobs[0] for rollout in group.rollouts}
    assert set(seen) == {4, 5}
    assert seen[4] == pytest.approx(math.log(0.6), abs=1e-5)
    assert seen[5] == pytest.approx(math.log(0.3), abs=1e-5)


def test_every_end_of_sequence_id_ends_a_response_and_counts_once(chain: tuple[LoadedModel, VllmSampler]) -> None:
    # The tokenizer's terminator is 2; the generation_config names 7 as well.
    for terminator in (2, 7):
        sampler = set_chain(chain, {3: {4: 30.0}, 4: {terminator: 30.0}})
        (rollout,) = sampler.sample([_request((3,))])[0].rollouts
        assert rollout.response_ids == (4, terminator)
        assert len(rollout.logprobs) == rollout.num_tokens == 2
        assert rollout.is_finished
        assert rollout.text == "t4"


def test_a_response_cut_by_the_limit_is_not_finished_and_one_that_ends_on_it_is(
    chain: tuple[LoadedModel, VllmSampler],
) -> None:
    sampler = set_chain(chain, {3: {5: 30.0}, 5: {6: 30.0}, 6: {2: 30.0}})
    limits = (1, 2, 3, 9)
    groups = sampler.sample([_request((3,), max_new_tokens=limit) for limit in limits])
    assert [group.num_tokens for group in groups] == [1, 2, 3, 3]
    assert [group.rollouts[0].is_finished for group in groups] == [False, False, True, True]


def test_a_stop_string_ends_the_response_keeps_its_tokens_and_cuts_the_text(
    chain: tuple[LoadedModel, VllmSampler],
) -> None:
    sampler = set_chain(chain, {3: {4: 30.0}, 4: {5: 30.0}, 5: {6: 30.0}, 6: {3: 30.0}})
    free, stopped, on_the_limit = sampler.sample(
        [
            _request((3,), max_new_tokens=6),
            _request((3,), max_new_tokens=6, stop=("zz", "5t6")),
            _request((3,), max_new_tokens=3, stop=("5t6",)),
        ]
    )
    assert free.rollouts[0].text == "t4t5t6t3t4t5"
    assert not free.rollouts[0].is_finished
    for group in (stopped, on_the_limit):
        (rollout,) = group.rollouts
        assert rollout.response_ids == (4, 5, 6)
        assert len(rollout.logprobs) == 3
        assert rollout.text == "t4t"
        assert rollout.is_finished


def test_stop_strings_cut_sampled_responses_where_the_torch_sampler_cuts_them(
    wide: LoadedModel, sampler: VllmSampler
) -> None:
    stop = ("0", "3", "5")
    requests = [dataclasses.replace(request, stop=stop if i % 2 else ()) for i, request in enumerate(GREEDY)]
    theirs = TorchSampler(wide).sample(requests)
    ours = sampler.sample(requests)
    assert [group.rollouts[0].text for group in ours] == [group.rollouts[0].text for group in theirs]
    assert _responses(ours) == _responses(theirs)
    assert [group.rollouts[0].is_finished for group in ours] == [group.rollouts[0].is_finished for group in theirs]


def test_the_models_generation_config_is_not_applied(chain: tuple[LoadedModel, VllmSampler]) -> None:
    loaded, _ = chain
    even = {token: dict.fromkeys(range(3, 7), 0.0) for token in range(16)}
    settings = {"top_k": 1, "temperature": 0.01, "repetition_penalty": 5.0, "max_new_tokens": 1, "do_sample": False}
    for field, value in settings.items():
        setattr(loaded.model.generation_config, field, value)
    (group,) = set_chain(chain, even).sample([_request((3,), num=8)])
    assert len({rollout.response_ids for rollout in group.rollouts}) == 8


def test_new_weights_answer_after_load_weights_and_carry_their_version(wide: LoadedModel, sampler: VllmSampler) -> None:
    # The wide model's output head is its embedding: tied weights are packed apart by vLLM.
    before = sampler.sample(GREEDY)
    kept = {name: parameter.detach().clone() for name, parameter in wide.model.named_parameters()}
    try:
        with torch.no_grad():
            for parameter in wide.model.parameters():
                parameter.mul_(1.3)
        with pytest.raises(RuntimeError, match="call load_weights again"):
            sampler.sample(GREEDY)
        sampler.load_weights(7)
        after = sampler.sample(GREEDY)
        assert _responses(after) == _responses(TorchSampler(wide).sample(GREEDY)) != _responses(before)
        assert {rollout.weights_version for group in after for rollout in group.rollouts} == {7}
        assert {rollout.weights_version for group in before for rollout in group.rollouts} == {0}
        assert _gap(wide, after).largest < 5e-5
    finally:
        with torch.no_grad():
            for name, parameter in wide.model.named_parameters():
                parameter.copy_(kept[name])
        sampler.load_weights(0)
    assert _responses(sampler.sample(GREEDY)) == _responses(before)


def test_a_prompt_is_read_once_for_its_group_and_again_after_new_weights(
    wide: LoadedModel, sampler: VllmSampler
) -> None:
    # Cached in blocks of 128 tokens on a CPU, so the prompt is longer.
    prompt = tuple(3 + i % 200 for i in range(150))
    params = [sampler._params(_request(prompt, num=2, max_new_tokens=4), seed) for seed in (1, 2)]
    engine: VllmEngine = sampler._engine
    engine.load_weights()
    first, second = engine.generate([prompt, prompt], params)
    assert first.num_cached_tokens == 0
    assert second.num_cached_tokens == 128
    engine.load_weights()
    (again,) = engine.generate([prompt], params[:1])
    assert again.num_cached_tokens == 0


def _gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tiny_models.VOCABULARY), n_positions=256, n_embd=64, n_layer=2, n_head=2, eos_token_id=2
        )
    )


def _wide_heads(config: str, model: str, **options: Any) -> Any:
    import transformers

    sizes = tiny_models.sizes(**HEAD, **options)
    return getattr(transformers, model)(getattr(transformers, config)(**sizes))


@pytest.mark.parametrize(
    "make",
    [
        # Grouped queries with biases and a head of its own; norms on queries and keys; a tied head that is the
        # embedding itself; transposed projections.
        lambda: _wide_heads("Qwen2Config", "Qwen2ForCausalLM", num_key_value_heads=1),
        lambda: _wide_heads("Qwen3Config", "Qwen3ForCausalLM", num_key_value_heads=1),
        lambda: _wide_heads("GemmaConfig", "GemmaForCausalLM", num_key_value_heads=1),
        _gpt2,
    ],
    ids=["qwen2", "qwen3", "gemma", "gpt2"],
)
def test_other_architectures_follow_their_weights_too(make: Any) -> None:
    loaded = wrap_model(tiny_models.scattered(make()), tiny_models.tokenizer())
    sampler: Sampler = VllmSampler(loaded, SETTINGS)
    try:
        before = sampler.sample(GREEDY)
        assert _responses(before) == _responses(TorchSampler(loaded).sample(GREEDY))
        with torch.no_grad():
            for parameter in loaded.model.parameters():
                parameter.mul_(1.3)
        sampler.load_weights(1)
        after = sampler.sample(GREEDY)
        assert _responses(after) == _responses(TorchSampler(loaded).sample(GREEDY)) != _responses(before)
    finally:
        sampler.close()


def test_a_sampler_goes_on_with_another_model_of_its_shape_and_with_no_other(
    wide: LoadedModel, sampler: VllmSampler, tmp_path: Path
) -> None:
    other = load_model(write_wide_model(tmp_path / "other"))
    with torch.no_grad():
        other.model.model.norm.weight.neg_()
    assert sampler.fits(other)
    assert not sampler.fits(tiny_models.load("llama"))
    before = sampler.sample(GREEDY)
    sampler.exchange(other, 5)
    try:
        groups = sampler.sample(GREEDY)
        assert _responses(groups) == _responses(TorchSampler(other).sample(GREEDY)) != _responses(before)
        assert groups[0].rollouts[0].weights_version == 5
    finally:
        sampler.exchange(wide, 0)
    assert _responses(sampler.sample(GREEDY)) == _responses(before)


def test_starting_an_engine_leaves_the_global_generators_alone(chain: tuple[LoadedModel, VllmSampler]) -> None:
    import random

    import numpy as np

    loaded, _ = chain
    engine = VllmEngine(loaded, SETTINGS)

    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))

    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    expected = drawn()
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    try:
        assert engine.max_length == 128
        assert drawn() == expected
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("prompt_ids", (), "no prompt tokens"),
        ("temperature", -1.0, "temperature is -1.0"),
        ("temperature", 0.005, "temperatures of 0.01 to 2.0, not 0.005"),
        ("temperature", 2.5, "temperatures of 0.01 to 2.0, not 2.5"),
        ("top_p", 1.5, "top_p is 1.5"),
        ("stop", ("",), "stop string is empty"),
        ("max_new_tokens", 256, "1 prompt tokens and up to 256 new ones are more than the 256"),
    ],
)
def test_a_request_that_cannot_be_sampled_is_refused_in_one_sentence(
    sampler: VllmSampler, field: str, value: object, message: str
) -> None:
    request = dataclasses.replace(_request((3,)), **{field: value})
    with pytest.raises(ValueError, match=message) as caught:
        sampler.sample([request])
    assert "tiny/train/0" in str(caught.value) and "\n" not in str(caught.value)


def test_heads_that_vllm_cannot_take_on_a_cpu_are_told_before_it_starts() -> None:
    with pytest.raises(ValueError, match=r"no attention for heads of size 16 .* use sampler=torch"):
        VllmSampler(tiny_models.load("llama"), SETTINGS).sample([_request((3,))])
