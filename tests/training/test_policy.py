"""The policy: equal to the library's forward and gradients, to the sampler, and to itself however a batch is cut."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from agpo_bench.rollout.torch_sampler import TorchSampler
from agpo_bench.training.head import token_logprobs
from agpo_bench.training.model import LoadedModel, wrap_model
from agpo_bench.training.policy import Policy, ScoredSequence
from tests.rollout import tiny_models

ALL = tiny_models.LEAN + tiny_models.LIBRARY


def _sequences(num_prompts: int = 5, num_samples: int = 4, seed: int = 0) -> list[ScoredSequence]:
    """Groups of responses of 1 to 20 tokens, one prompt of a single token, several temperatures."""
    generator = torch.Generator().manual_seed(seed)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, 140, (length,), generator=generator).tolist())

    sequences = []
    for index in range(num_prompts):
        prompt = ids(1 + 7 * index)
        for sample in range(num_samples):
            length = 1 if sample == 0 else int(torch.randint(1, 21, (1,), generator=generator))
            temperature = [1.0, 0.7, 1.3][(index + sample) % 3]
            sequences.append(ScoredSequence(prompt_ids=prompt, response_ids=ids(length), temperature=temperature))
    return sequences


def _library_logprobs(loaded: LoadedModel, sequences: Sequence[ScoredSequence]) -> list[Tensor]:
    """Each sequence alone through the library."""
    values = []
    for sequence in sequences:
        ids = torch.tensor([sequence.prompt_ids + sequence.response_ids])
        logits = loaded.model(ids).logits[0, len(sequence.prompt_ids) - 1 : -1]
        logprobs = torch.log_softmax(logits / sequence.temperature, dim=-1)
        values.append(logprobs.gather(1, ids[0, len(sequence.prompt_ids) :, None])[:, 0])
    return values


def _gradients(policy: Policy, loss: Tensor) -> dict[str, Tensor]:
    for parameter in policy.parameters():
        parameter.grad = None
    loss.backward()
    return {name: parameter.grad for name, parameter in policy.named_parameters() if parameter.grad is not None}


def _assert_close(gradients: dict[str, Tensor], expected: dict[str, Tensor], *, tolerance: float) -> None:
    assert set(gradients) == set(expected)
    for name, gradient in expected.items():
        scale = float(gradient.abs().max()) or 1.0
        torch.testing.assert_close(gradients[name] / scale, gradient / scale, atol=tolerance, rtol=0, msg=name)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_log_probabilities_and_gradients_are_the_librarys(name: str, checkpointing: bool) -> None:
    loaded = tiny_models.load(name)
    policy = Policy(loaded, gradient_checkpointing=checkpointing)
    sequences = _sequences()
    scored = policy.logprobs(sequences)
    mask = scored.mask_BT.bool()
    weight = torch.randn(int(mask.sum()), generator=torch.Generator().manual_seed(1))
    gradients = _gradients(policy, (scored.logprob_BT[mask] * weight).sum())

    expected = torch.cat(_library_logprobs(loaded, sequences))
    torch.testing.assert_close(scored.logprob_BT[mask], expected, atol=1e-5, rtol=0)
    _assert_close(gradients, _gradients(policy, (expected * weight).sum()), tolerance=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_the_sampler_and_the_policy_agree_so_the_first_ratio_is_one(name: str) -> None:
    loaded = tiny_models.load(name)
    requests = [request for request in tiny_models.requests() if request.temperature > 0]
    groups = TorchSampler(loaded).sample(requests, with_entropy=True)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    sequences = [
        ScoredSequence(prompt_ids=group.prompt_ids, response_ids=r.response_ids, temperature=r.temperature)
        for group in groups
        for r in group.rollouts
    ]
    scored = Policy(loaded).logprobs(sequences, with_entropy=True, with_grad=False)
    assert scored.entropy_BT is not None
    for row, rollout in enumerate(rollouts):
        n = rollout.num_tokens
        ratio = torch.exp(scored.logprob_BT[row, :n] - torch.tensor(rollout.logprobs))
        assert float((ratio - 1).abs().max()) < 1e-5
        torch.testing.assert_close(scored.entropy_BT[row, :n], torch.tensor(rollout.entropies), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["llama3-gqa", "gpt2"])
@pytest.mark.parametrize("max_tokens", [1, 60, 10_000])
def test_any_split_gives_the_same_scores_and_gradient(name: str, max_tokens: int) -> None:
    policy = Policy(tiny_models.load(name))
    sequences = _sequences()
    whole = policy.logprobs(sequences, with_entropy=True)
    expected = _gradients(policy, whole.logprob_BT.square().sum())
    for parameter in policy.parameters():
        parameter.grad = None
    for indices in policy.split(sequences, max_tokens=max_tokens):
        policy.logprobs([sequences[i] for i in indices]).logprob_BT.square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in policy.named_parameters() if parameter.grad is not None}
    _assert_close(gradients, expected, tolerance=1e-5)

    scored = policy.score(sequences, max_tokens=max_tokens, with_entropy=True)
    torch.testing.assert_close(scored.logprob_BT, whole.logprob_BT.detach(), atol=1e-5, rtol=0)
    torch.testing.assert_close(scored.entropy_BT, whole.entropy_BT.detach(), atol=1e-5, rtol=0)
    assert torch.equal(scored.mask_BT, whole.mask_BT)


def test_micro_batches_hold_every_sequence_once_within_the_limit() -> None:
    sequences = _sequences(num_prompts=12, num_samples=8)
    for max_tokens in (1, 50, 200, 100_000):
        batches = Policy.split(sequences, max_tokens=max_tokens)
        assert sorted(i for batch in batches for i in batch) == list(range(len(sequences)))
        for batch in batches:
            prompts = {sequences[i].prompt_ids for i in batch}
            tokens = sum(map(len, prompts)) + sum(len(sequences[i].response_ids) for i in batch)
            assert tokens <= max_tokens or len(batch) == 1
        for batch in Policy(tiny_models.load("gpt2")).micro_batches(sequences, max_tokens=max_tokens):
            padded = len(batch) * max(sequences[i].num_tokens for i in batch)
            assert padded <= max_tokens or len(batch) == 1


def test_the_mask_goes_by_length_and_not_by_token() -> None:
    # Padding and terminator are both 0: response 5, 6, 0 has three tokens, 0, 0 has two.
    loaded = tiny_models.chain({3: {5: 1.0}, 5: {6: 1.0}, 6: {0: 1.0}}, eos=0, pad=0)
    sequences = [
        ScoredSequence(prompt_ids=(3,), response_ids=(5, 6, 0), temperature=1.0),
        ScoredSequence(prompt_ids=(3,), response_ids=(0, 0), temperature=1.0),
    ]
    scored = Policy(loaded).logprobs(sequences)
    assert scored.mask_BT.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert float(scored.logprob_BT[1, 2].detach()) == 0


def test_the_temperature_of_each_sequence_is_in_its_log_probability_and_not_in_its_entropy() -> None:
    # After token 3 the logits are [2, 0] for tokens 4 and 5: log sigmoid(4) at temperature .5, log sigmoid(2) at 1.
    loaded = tiny_models.chain({3: {4: 2.0, 5: 0.0}}, eos=2)
    sequences = [ScoredSequence(prompt_ids=(3,), response_ids=(4,), temperature=t) for t in (0.5, 1.0)]
    scored = Policy(loaded).logprobs(sequences, with_entropy=True)
    assert scored.logprob_BT[:, 0].tolist() == pytest.approx([-0.018150, -0.126928], abs=1e-6)
    p = 1 / (1 + math.exp(-2))
    entropy = -(p * math.log(p) + (1 - p) * math.log(1 - p))
    assert scored.entropy_BT is not None
    assert scored.entropy_BT[:, 0].tolist() == pytest.approx([entropy, entropy], abs=1e-5)


def test_the_entropy_of_four_equal_logits_is_ln_4_at_the_position_the_token_was_drawn_from() -> None:
    # Token 3 is followed by four equal candidates, token 4 by one: entropies ln 4, then 0.
    loaded = tiny_models.chain({3: dict.fromkeys((4, 5, 6, 7), 10.0), 4: {8: 60.0}}, eos=2)
    sequences = [ScoredSequence(prompt_ids=(9, 3), response_ids=(4, 8), temperature=0.5)]
    scored = Policy(loaded).logprobs(sequences, with_entropy=True)
    assert scored.entropy_BT is not None
    assert scored.entropy_BT[0].tolist() == pytest.approx([1.386294, 0.0], abs=1e-5)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("chunk_elements", [1, 40, 1 << 24])
def test_the_chunked_head_has_the_values_and_gradients_of_the_plain_formula(
    with_bias: bool, with_entropy: bool, chunk_elements: int
) -> None:
    generator = torch.Generator().manual_seed(3)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).float().requires_grad_()

    hidden, weight, bias = leaf(9, 5), leaf(11, 5), leaf(11) if with_bias else None
    target = torch.randint(0, 11, (9,), generator=generator)
    temperature = torch.rand(9, generator=generator) + 0.5
    leaves = [hidden, weight] + ([bias] if bias is not None else [])
    logprob, entropy = token_logprobs(
        hidden, weight, bias, target, temperature, with_entropy=with_entropy, chunk_elements=chunk_elements
    )
    a, b = torch.randn(9, generator=generator), torch.randn(9, generator=generator)
    loss = (logprob * a).sum() + ((entropy * b).sum() if entropy is not None else 0)
    gradients = torch.autograd.grad(loss, leaves)

    logits = hidden @ weight.t() + (0 if bias is None else bias)
    plain = torch.log_softmax(logits / temperature[:, None], -1).gather(1, target[:, None])[:, 0]
    plain_entropy = torch.distributions.Categorical(logits=logits).entropy()
    expected = torch.autograd.grad((plain * a).sum() + ((plain_entropy * b).sum() if with_entropy else 0), leaves)
    torch.testing.assert_close(logprob, plain, atol=1e-5, rtol=1e-5)
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
@pytest.mark.parametrize("kind", ["shared", "separate"])
def test_a_value_belongs_to_the_state_before_its_token(name: str, kind: str) -> None:
    loaded = tiny_models.load(name)
    policy = Policy(loaded, value_head=kind)  # type: ignore[arg-type]
    sequences = _sequences()
    assert not policy.values(sequences).any()
    with torch.no_grad():
        for name_, parameter in policy.named_parameters():
            if name_.startswith("value_head"):
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(5))
    values = policy.values(sequences)
    scored = policy.logprobs(sequences, with_values=True)
    assert torch.equal(scored.value_BT, values)
    weight, bias = (parameter for n, parameter in policy.named_parameters() if n.startswith("value_head"))
    for row, sequence in enumerate(sequences):
        ids = torch.tensor([sequence.prompt_ids + sequence.response_ids])
        hidden = loaded.model.base_model(ids).last_hidden_state[0, len(sequence.prompt_ids) - 1 : -1]
        expected = (hidden @ weight.t() + bias)[:, 0]
        torch.testing.assert_close(values[row, : len(expected)], expected, atol=1e-5, rtol=1e-5)


def test_a_shared_critic_moves_the_model_and_a_separate_one_does_not() -> None:
    for kind, moves in (("shared", True), ("separate", False)):
        policy = Policy(tiny_models.load("llama"), value_head=kind)  # type: ignore[arg-type]
        with torch.no_grad():
            for parameter in policy.critic_parameters():
                parameter.add_(0.1)
        gradients = _gradients(policy, policy.values(_sequences()).sum())
        assert any(name.startswith("model.") for name in gradients) == moves
        assert any(name.startswith("value_trunk.") for name in gradients) != moves
        assert "value_head.weight" in gradients


def test_a_frozen_copy_stays_when_the_policy_moves() -> None:
    policy = Policy(tiny_models.load("llama"))
    sequences = _sequences()
    reference = policy.frozen_copy()
    before = policy.score(sequences, max_tokens=1000).logprob_BT
    assert torch.equal(reference.score(sequences, max_tokens=1000).logprob_BT, before)
    assert reference.fingerprint() == policy.fingerprint() == reference.loaded.fingerprint
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.1)
    assert torch.equal(reference.score(sequences, max_tokens=1000).logprob_BT, before)
    assert not torch.equal(policy.score(sequences, max_tokens=1000).logprob_BT, before)
    assert not any(parameter.requires_grad for parameter in reference.parameters())
    assert not reference.logprobs(sequences).logprob_BT.requires_grad


def test_weights_go_out_and_come_back_and_strange_ones_are_refused() -> None:
    policy = Policy(tiny_models.load("llama"), value_head="separate")
    other = Policy(tiny_models.load("llama", seed=1), value_head="separate")
    state = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    other.load_state_dict(state)
    sequences = _sequences()
    assert torch.equal(
        other.score(sequences, max_tokens=1000).logprob_BT, policy.score(sequences, max_tokens=1000).logprob_BT
    )
    with pytest.raises(ValueError, match="weights of another policy"):
        Policy(tiny_models.load("llama")).load_state_dict(state)
    state["value_head.weight"] = torch.zeros(1, 3)
    with pytest.raises(ValueError, match=r"'value_head.weight' is \(1, 3\), not \(1, 64\)"):
        other.load_state_dict(state)


def test_a_model_in_bfloat16_is_trained_with_float32_weights() -> None:
    loaded = tiny_models.load("llama", spread=0.05)
    exact = Policy(loaded).score(_sequences(), max_tokens=1000).logprob_BT
    half = tiny_models.build("llama", spread=0.05).to(torch.bfloat16)
    policy = Policy(wrap_model(half, tiny_models.tokenizer()))
    assert {parameter.dtype for parameter in policy.parameters()} == {torch.float32}
    scored = policy.logprobs(_sequences())
    assert scored.logprob_BT.dtype is torch.float32
    torch.testing.assert_close(scored.logprob_BT.detach(), exact, atol=0.1, rtol=0)
    assert not torch.equal(scored.logprob_BT.detach(), exact)
    # A step too small for bfloat16 still arrives.
    before = policy.fingerprint()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1 + 1e-5)
    assert policy.fingerprint() != before
    assert policy.frozen_copy().loaded.model.dtype is torch.bfloat16


def test_what_cannot_be_scored_is_refused() -> None:
    policy = Policy(tiny_models.load("llama"))
    with pytest.raises(ValueError, match="one token or more"):
        policy.logprobs([ScoredSequence(prompt_ids=(3,), response_ids=(), temperature=1.0)])
    with pytest.raises(ValueError, match="no value head"):
        policy.values(_sequences())
    with pytest.raises(ValueError, match="no value head 'both'"):
        Policy(tiny_models.load("llama"), value_head="both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="frozen"):
        Policy(tiny_models.load("llama"), value_head="shared", is_frozen=True)
