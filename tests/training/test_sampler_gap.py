"""A separate sampling engine is compared with the policy before anything is learnt from its rollouts."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch

from agpo_bench.config import RunConfig
from agpo_bench.evaluation.evaluate import EvalOptions
from agpo_bench.methods.recipe import load_method
from agpo_bench.training.policy import TokenLogprobs
from agpo_bench.training.sampler_gap import SamplerGap
from agpo_bench.training.setup import check


def _scored(logprob_BT: list[list[float]], mask_BT: list[list[float]]) -> TokenLogprobs:
    return TokenLogprobs(torch.tensor(logprob_BT), None, None, torch.tensor(mask_BT))


def test_the_gap_is_over_response_tokens_alone() -> None:
    # |-1 + 1.1|, |-2 + 2| and |-0.5 + 0.2|; the padding of the second row would add 9.
    scored = _scored([[-1.1, -2.0], [-0.2, 9.0]], [[1.0, 1.0], [1.0, 0.0]])
    gap = SamplerGap.between([(-1.0, -2.0), (-0.5,)], scored)
    assert gap.num_tokens == 3
    assert gap.mean == pytest.approx(0.4 / 3, abs=1e-6)
    assert gap.largest == pytest.approx(0.3, abs=1e-6)


def test_what_rounding_explains_passes_and_the_rest_is_refused_in_one_sentence() -> None:
    gap = SamplerGap(mean=0.1, largest=0.5, num_tokens=100)
    gap.refuse(torch.bfloat16, version=3)
    with pytest.raises(ValueError, match=r"0\.1 nats a token on average .*weights 3.* other weights") as caught:
        gap.refuse(torch.float32, version=3)
    assert "\n" not in str(caught.value)


def test_a_gap_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="nan nats a token"):
        SamplerGap(mean=math.nan, largest=math.nan, num_tokens=1).refuse(torch.bfloat16, version=0)


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_a_run_and_an_evaluation_say_how_to_get_it(small_config: Callable[..., RunConfig]) -> None:
    for ask in (
        lambda: check(small_config(sampler="vllm"), load_method("agpo")),
        lambda: EvalOptions(sampler="vllm"),
    ):
        with pytest.raises(ValueError, match=r'pip install "agpo-bench\[vllm\]"'):
            ask()
