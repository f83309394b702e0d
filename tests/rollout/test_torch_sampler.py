"""The in-process sampler, on every architecture: right tokens, right log-probabilities, and no surprises."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from agpo_bench.records import Group
from agpo_bench.rollout.lean_decoder import LeanDecoder
from agpo_bench.rollout.sampler import SamplingRequest, sampling_seed
from agpo_bench.rollout.torch_sampler import TorchSampler
from agpo_bench.training.model import load_model
from agpo_bench.training.setup import model_path
from tests.rollout import tiny_models

ALL = tiny_models.LEAN + tiny_models.LIBRARY


def _request(prompt_ids: tuple[int, ...], *, num: int = 1, **options: object) -> SamplingRequest:
    settings = {"temperature": 1.0, "max_new_tokens": 8, "prompt_id": "tiny/train/0", **options}
    return SamplingRequest(prompt_ids=prompt_ids, seeds=tuple(range(num)), **settings)  # type: ignore[arg-type]


def _responses(groups: list[Group]) -> list[list[tuple[int, ...]]]:
    return [[rollout.response_ids for rollout in group.rollouts] for group in groups]


@pytest.mark.parametrize("name", ALL)
def test_the_lean_forward_pass_takes_the_llama_family_and_nothing_else(name: str) -> None:
    assert LeanDecoder.supports(tiny_models.build(name)) == (name in tiny_models.LEAN)


def test_an_adapter_or_a_hook_sends_a_llama_through_the_library() -> None:
    hooked = tiny_models.build("llama")
    hooked.model.layers[0].register_forward_hook(lambda *_: None)
    adapted = tiny_models.build("llama")

    class Adapter(torch.nn.Linear):
        pass

    adapted.model.layers[1].mlp.up_proj.__class__ = Adapter
    assert not LeanDecoder.supports(hooked)
    assert not LeanDecoder.supports(adapted)


@pytest.mark.parametrize("name", ALL)
def test_log_probabilities_and_entropies_are_those_of_the_library_on_each_sequence_alone(name: str) -> None:
    # Prompts of 1 to 30 tokens share a batch, so this is also the test of padding and positions.
    loaded = tiny_models.load(name)
    groups = TorchSampler(loaded).sample(tiny_models.requests(), with_entropy=True)
    for group in groups:
        for rollout in group.rollouts:
            ids = torch.tensor([group.prompt_ids + rollout.response_ids])
            with torch.no_grad():
                logits = loaded.model(ids).logits[0, len(group.prompt_ids) - 1 : -1]
            scaled = torch.log_softmax(logits / (rollout.temperature or 1.0), dim=-1)
            expected = scaled.gather(1, torch.tensor(rollout.response_ids)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(rollout.logprobs), expected, atol=1e-5, rtol=0)
            entropy = torch.distributions.Categorical(logits=logits).entropy()
            torch.testing.assert_close(torch.tensor(rollout.entropies), entropy, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", tiny_models.LEAN)
@pytest.mark.parametrize("max_rows", [1, 2, 3, 5, 17])
def test_a_rollout_is_the_same_bits_whatever_shares_its_batch(name: str, max_rows: int) -> None:
    loaded = tiny_models.load(name)
    requests = tiny_models.requests(8)
    whole = TorchSampler(loaded).sample(requests, with_entropy=True)
    parts = TorchSampler(loaded, max_rows=max_rows).sample(requests[::-1], with_entropy=True)[::-1]
    assert parts == whole


@pytest.mark.parametrize("max_rows", [7, 64])
def test_a_rollout_of_the_embedded_model_is_the_same_bits_whatever_shares_its_prompt(max_rows: int) -> None:
    """Prompts of 10 to 45 tokens and responses of up to 40: all widths that the products are rounded up to."""
    loaded = load_model(model_path("embedded"))
    generator = np.random.default_rng(5)
    requests = [
        SamplingRequest(
            prompt_id=str(length),
            prompt_ids=tuple(generator.integers(3, 300, length).tolist()),
            seeds=tuple(range(100 * length, 100 * length + 8)),
            temperature=1.3,
            top_p=0.95,
            max_new_tokens=40,
        )
        for length in (45, 10, 33, 17, 32, 10, 25, 41)
    ]
    whole = TorchSampler(loaded).sample(requests, with_entropy=True)
    assert TorchSampler(loaded, max_rows=max_rows).sample(requests, with_entropy=True) == whole
    alone = TorchSampler(loaded)
    assert [alone.sample([request], with_entropy=True)[0] for request in requests] == whole


@pytest.mark.parametrize("name", tiny_models.LIBRARY)
@pytest.mark.parametrize("max_rows", [1, 3, 17])
def test_the_library_path_draws_the_same_tokens_whatever_shares_the_batch(name: str, max_rows: int) -> None:
    loaded = tiny_models.load(name)
    requests = tiny_models.requests(8)
    whole = TorchSampler(loaded).sample(requests)
    parts = TorchSampler(loaded, max_rows=max_rows).sample(requests[::-1])[::-1]
    assert _responses(parts) == _responses(whole)


def test_a_small_cache_changes_nothing() -> None:
    loaded = tiny_models.load("llama")
    requests = tiny_models.requests()
    assert TorchSampler(loaded, max_cache_bytes=1).sample(requests) == TorchSampler(loaded).sample(requests)


def test_a_sampler_used_again_with_other_lengths_forgets_the_earlier_rows() -> None:
    loaded = tiny_models.load("qwen2")
    sampler = TorchSampler(loaded)
    short, long = tiny_models.requests(4, max_new_tokens=5), tiny_models.requests(8, max_new_tokens=40)
    first = sampler.sample(short)
    sampler.sample(long)
    assert sampler.sample(short) == first


@pytest.mark.parametrize("name", ALL)
def test_greedy_decoding_equals_the_librarys_generate(name: str) -> None:
    loaded = tiny_models.load(name)
    requests = [dataclasses.replace(request, temperature=0.0, seeds=(0,)) for request in tiny_models.requests()]
    for request, group in zip(requests, TorchSampler(loaded).sample(requests), strict=True):
        ids = torch.tensor([request.prompt_ids])
        output = loaded.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20, eos_token_id=2, pad_token_id=0
        )
        assert list(group.rollouts[0].response_ids) == output[0, ids.shape[1] :].tolist()


def test_tokens_come_with_the_models_probabilities_at_every_temperature() -> None:
    # From token 3 the next is 4, 5 or 6; then the response ends.
    end = {token: {2: 30.0} for token in (4, 5, 6)}
    loaded = tiny_models.chain({3: {4: 1.0, 5: 0.0, 6: -0.5}, **end}, eos=2)
    for temperature in (0.5, 1.0, 1.5):
        request = _request((3,), num=4_000, temperature=temperature)
        (group,) = TorchSampler(loaded, max_rows=1024).sample([request])
        firsts = torch.tensor([rollout.response_ids[0] for rollout in group.rollouts])
        expected = torch.softmax(torch.tensor([1.0, 0.0, -0.5], dtype=torch.float64) / temperature, -1)
        counts = torch.bincount(firsts, minlength=7)[4:]
        assert int(counts.sum()) == 4_000
        assert chisquare(counts.numpy(), 4_000 * expected.numpy()).pvalue > 1e-3
        for rollout in group.rollouts[:50]:
            best = float(torch.log(expected[rollout.response_ids[0] - 4]))
            assert rollout.logprobs[0] == pytest.approx(best, abs=1e-5)


def test_top_p_cuts_the_choice_and_not_the_log_probability() -> None:
    end = {token: {2: 30.0} for token in (4, 5, 6)}
    row = {4: math.log(0.6), 5: math.log(0.3), 6: math.log(0.1)}
    loaded = tiny_models.chain({3: row, **end}, eos=2)
    (group,) = TorchSampler(loaded).sample([_request((3,), num=500, top_p=0.85)])
    seen = {rollout.response_ids[0]: rollout.logprobs[0] for rollout in group.rollouts}
    assert set(seen) == {4, 5}
    assert seen[4] == pytest.approx(math.log(0.6), abs=1e-5)
    assert seen[5] == pytest.approx(math.log(0.3), abs=1e-5)


def test_the_models_generation_config_is_not_applied() -> None:
    loaded = tiny_models.load("llama", spread=0.02)
    settings = {"top_k": 1, "temperature": 0.01, "repetition_penalty": 5.0, "max_new_tokens": 1, "do_sample": False}
    for field, value in settings.items():
        setattr(loaded.model.generation_config, field, value)
    (group,) = TorchSampler(loaded).sample([_request((5, 6), num=8)])
    assert len({rollout.response_ids for rollout in group.rollouts}) == 8


def test_every_end_of_sequence_id_ends_a_response_and_counts() -> None:
    # The tokenizer's terminator is 2; the generation_config names 7 as well.
    loaded = tiny_models.chain({3: {4: 30.0}, 4: {7: 30.0}}, eos=[2, 7])
    assert loaded.terminators == {2, 7}
    (group,) = TorchSampler(loaded).sample([_request((3,))])
    (rollout,) = group.rollouts
    assert rollout.response_ids == (4, 7)
    assert rollout.is_finished
    assert rollout.num_tokens == 2
    assert rollout.text == "t4"


def test_a_padding_token_that_is_the_terminator_is_counted_by_length() -> None:
    loaded = tiny_models.chain({3: {5: 30.0}, 5: {6: 30.0}, 6: {0: 30.0}}, eos=0, pad=0)
    assert loaded.pad_id == 0 and loaded.terminators == {0}
    (group,) = TorchSampler(loaded).sample([_request((3,))])
    assert group.rollouts[0].response_ids == (5, 6, 0)
    assert group.rollouts[0].is_finished
    assert group.num_tokens == 3


def test_a_response_cut_by_the_limit_is_not_finished_and_one_that_ends_on_it_is() -> None:
    loaded = tiny_models.chain({3: {5: 30.0}, 5: {6: 30.0}, 6: {2: 30.0}}, eos=2)
    for limit, is_finished in ((1, False), (2, False), (3, True), (9, True)):
        (group,) = TorchSampler(loaded).sample([_request((3,), max_new_tokens=limit)])
        assert group.rollouts[0].num_tokens == min(limit, 3)
        assert group.rollouts[0].is_finished == is_finished


def test_a_stop_string_ends_the_response_keeps_its_tokens_and_cuts_the_text() -> None:
    loaded = tiny_models.chain({3: {4: 30.0}, 4: {5: 30.0}, 5: {6: 30.0}, 6: {3: 30.0}}, eos=2)
    (free, stopped) = TorchSampler(loaded).sample(
        [_request((3,), max_new_tokens=6), _request((3,), max_new_tokens=6, stop=("zz", "5t6"))]
    )
    assert free.rollouts[0].text == "t4t5t6t3t4t5"
    rollout = stopped.rollouts[0]
    assert rollout.response_ids == (4, 5, 6)
    assert rollout.text == "t4t"
    assert rollout.is_finished


def test_groups_come_in_the_order_of_the_requests_with_their_seeds() -> None:
    loaded = tiny_models.load("llama")
    requests = tiny_models.requests()
    groups = TorchSampler(loaded, max_rows=5).sample(requests)
    for request, group in zip(requests, groups, strict=True):
        assert (group.prompt_id, group.prompt_ids) == (request.prompt_id, request.prompt_ids)
        assert tuple(rollout.seed for rollout in group.rollouts) == request.seeds
        assert [rollout.sample_index for rollout in group.rollouts] == list(range(len(request.seeds)))


def test_a_rollout_depends_on_its_own_seed_alone() -> None:
    loaded = tiny_models.load("llama")
    request = tiny_models.requests()[0]
    both = TorchSampler(loaded).sample([request])[0].rollouts
    last = TorchSampler(loaded).sample([dataclasses.replace(request, seeds=request.seeds[-1:])])[0].rollouts
    assert last[0].response_ids == both[-1].response_ids
    assert len({rollout.response_ids for rollout in both}) == len(both)


def test_seeds_differ_by_run_step_prompt_sample_and_phase() -> None:
    seeds = {
        sampling_seed(run, step=step, prompt_id=prompt, sample_index=sample, phase=phase)
        for run in (42, 1337)
        for step in range(5)
        for prompt in ("a/train/1", "a/train/11")
        for sample in range(8)
        for phase in ("probe", "train")
    }
    assert len(seeds) == 2 * 5 * 2 * 8 * 2
    assert max(seeds) < 2**63


def test_probe_and_train_rollouts_at_one_temperature_differ() -> None:
    loaded = tiny_models.load("llama", spread=0.02)
    responses = []
    for phase in ("probe", "train"):
        seeds = tuple(sampling_seed(1, step=0, prompt_id="p", sample_index=i, phase=phase) for i in range(4))
        (group,) = TorchSampler(loaded).sample([dataclasses.replace(_request((5, 6)), seeds=seeds)])
        responses += [rollout.response_ids for rollout in group.rollouts]
    assert len(set(responses)) == 8


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_changed_weights_are_refused_until_they_are_loaded_and_then_used(name: str) -> None:
    loaded = tiny_models.load(name)
    sampler = TorchSampler(loaded)
    request = dataclasses.replace(tiny_models.requests()[0], temperature=1.0)
    before = sampler.sample([request])
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.mul_(1.5)
    with pytest.raises(RuntimeError, match="call load_weights again"):
        sampler.sample([request])
    sampler.load_weights(7)
    after = sampler.sample([request])
    assert {rollout.weights_version for rollout in before[0].rollouts} == {0}
    assert {rollout.weights_version for rollout in after[0].rollouts} == {7}
    fresh = TorchSampler(loaded).sample([request])
    assert _responses(after) == _responses(fresh) != _responses(before)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("prompt_ids", (), "no prompt tokens"),
        ("max_new_tokens", 0, "max_new_tokens is 0"),
        ("temperature", -1.0, "temperature is -1.0"),
        ("temperature", float("nan"), "temperature is nan"),
        ("temperature", 1e-6, "use 0 for greedy"),
        ("top_p", 0.0, "top_p is 0.0"),
        ("top_p", 1.5, "top_p is 1.5"),
        ("stop", ("",), "stop string is empty"),
    ],
)
def test_a_request_that_cannot_be_sampled_is_refused_in_one_sentence(field: str, value: object, message: str) -> None:
    request = dataclasses.replace(_request((3,)), **{field: value})
    with pytest.raises(ValueError, match=message) as caught:
        TorchSampler(tiny_models.load("llama")).sample([request])
    assert "tiny/train/0" in str(caught.value) and "\n" not in str(caught.value)


def test_no_request_gives_no_group() -> None:
    assert TorchSampler(tiny_models.load("llama")).sample([]) == []


def test_stop_strings_of_some_rows_leave_the_others_alone_while_rows_come_and_go() -> None:
    # The stop string ends in a token that every response uses; few rows, so that they change places.
    loaded = tiny_models.load("llama", spread=0.02)
    requests = tiny_models.requests(8, num_samples=4, max_new_tokens=30)
    free = TorchSampler(loaded).sample(requests)
    texts = [rollout.text for group in free for rollout in group.rollouts]
    stop = texts[0][8:11]
    mixed = [dataclasses.replace(r, stop=(stop, "a") if i % 2 == 0 else ()) for i, r in enumerate(requests)]
    num_cut = 0
    for i, (group, expected) in enumerate(zip(TorchSampler(loaded, max_rows=5).sample(mixed), free, strict=True)):
        for rollout, whole in zip(group.rollouts, expected.rollouts, strict=True):
            if i % 2:
                assert rollout == whole
                continue
            cuts = [whole.text.find(ending) for ending in (stop, "a") if ending in whole.text]
            assert rollout.text == (whole.text[: min(cuts)] if cuts else whole.text)
            assert rollout.response_ids == whole.response_ids[: rollout.num_tokens]
            assert rollout.is_finished == (whole.is_finished or bool(cuts))
            num_cut += bool(cuts)
    assert num_cut > 4
