"""The arithmetic of a plan, against numbers worked out by hand."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from agpo_bench.commands.plan import PlanArguments, make_plans
from agpo_bench.planning.advice import changes_that_fit
from agpo_bench.planning.cost import Rates, sequence_flops
from agpo_bench.planning.items import GIB, item
from agpo_bench.planning.plan import Hardware, Plan
from agpo_bench.planning.report import advice_lines, memory_lines
from agpo_bench.planning.shapes import find_shape
from agpo_bench.planning.workload import Lengths, Workload, micro_batch


def plan_for(
    preset: str = "qwen2.5-14b",
    method: str = "agpo",
    *changes: str,
    gpus: int = 2,
    gpu_memory: float | None = 80,
    **fields: object,
) -> Plan:
    (plan,) = make_plans(
        PlanArguments(
            method=method,
            preset=preset,
            fields=fields,
            changes=changes,
            hardware=Hardware(num_gpus=gpus, gpu_gib=gpu_memory),
            rates=Rates(),
            prompt_tokens=None,
            response_tokens=None,
        )
    )
    return plan


def gib_of(plan: Plan, name: str) -> float:
    (found,) = [one for one in plan.memory.items if one.name == name]
    return found.num_bytes / GIB


ZERO_2 = ("engine=deepspeed", "zero_stage=2", "offload=none", "gradient_checkpointing=true")


def test_an_item_shows_the_product_it_is() -> None:
    one = item("optimiser", (14_770_033_664, "parameters"), (12, "B"), ranks=2)
    # 14,770,033,664 x 12 / 2 / 2^30 = 82.53
    assert one.arithmetic == "14,770,033,664 parameters × 12 B / 2 ranks = 82.53 GiB"


def test_a_14b_model_with_adamw_under_zero_2_does_not_fit_two_80_gb_devices() -> None:
    plan = plan_for("qwen2.5-14b", "agpo", *ZERO_2)
    # 14.77e9 parameters: 2 B of weights, and 4 + 12 B shared by two ranks.
    assert gib_of(plan, "weights") == pytest.approx(27.51, abs=0.01)
    assert gib_of(plan, "optimiser") == pytest.approx(82.53, abs=0.01)
    assert gib_of(plan, "gradients") == pytest.approx(27.51, abs=0.01)
    assert gib_of(plan, "reference") == pytest.approx(27.51, abs=0.01)
    assert plan.fits is False
    text = "\n".join([*memory_lines(plan), *advice_lines(plan)])
    assert "14,770,033,664 parameters × 12 B / 2 ranks = 82.53 GiB" in text
    assert "DOES NOT FIT" in text
    assert "--set offload=optimizer" in text


def test_every_change_that_is_advised_does_fit_when_it_is_made() -> None:
    plan = plan_for("qwen2.5-14b", "agpo", *ZERO_2)
    changes = changes_that_fit(plan)
    assert changes
    for change in changes:
        settings = [*ZERO_2, *(f"{name}={value}" for name, value in change.settings.items())]
        again = plan_for("qwen2.5-14b", "agpo", *settings, gpus=change.num_gpus)
        assert again.fits
        assert again.memory.peak_bytes == change.plan.memory.peak_bytes


def test_offload_moves_eighteen_bytes_a_parameter_to_the_host() -> None:
    plan = plan_for("qwen2.5-14b", "agpo", "offload=optimizer", "sampler=torch", "park_reference=false")
    assert {one.name for one in plan.memory.items}.isdisjoint({"optimiser", "gradients"})
    # 14,770,033,664 x 18 B = 247.60 GiB: master weights, two moments, float32 gradients, a buffer of weights
    # 14,770,033,664 x 12 B = 165.07 GiB: master weights and moments, gathered to be saved
    host = {one.name: one.num_bytes / GIB for one in plan.memory.host_items}
    assert host == {
        "offloaded optimiser": pytest.approx(247.60, abs=0.01),
        "checkpoint": pytest.approx(165.07, abs=0.01),
    }


def test_stage_3_shares_the_weights_and_gathers_them_for_sampling() -> None:
    plan = plan_for("qwen2.5-14b", "agpo", "engine=deepspeed", "zero_stage=3")
    assert gib_of(plan, "weights") == pytest.approx(27.51 / 2, abs=0.01)


def test_the_presets_of_the_paper_fit_two_80_gb_devices_with_what_they_leave_to_the_host() -> None:
    for preset in ("qwen2.5-14b", "llama-3-8b", "gemma-2-9b"):
        assert plan_for(preset, "agpo").fits
        assert plan_for(preset, "agpo", "offload=none", "park_reference=false").fits is False


def test_a_parked_reference_is_on_the_device_only_while_it_scores() -> None:
    parked = plan_for("qwen2.5-14b", "agpo")
    (reference,) = [one for one in parked.memory.items if one.name == "reference"]
    assert reference.phases == {"score"}
    # One host copy a rank: 2 x 14,770,033,664 x 2 B
    (host,) = [one for one in parked.memory.host_items if one.name == "parked references"]
    assert host.num_bytes == 2 * 14_770_033_664 * 2


def test_a_critic_of_its_own_costs_its_trunk_in_every_state() -> None:
    shared = plan_for("llama-3-8b", "ppo", "critic.trunk=shared", *ZERO_2)
    separate = plan_for("llama-3-8b", "ppo", "critic.trunk=separate", *ZERO_2)
    # 8,030,261,248 - 128,256 x 4,096 (the head stays the policy's) = 7,504,924,672 parameters.
    more = gib_of(separate, "optimiser") - gib_of(shared, "optimiser")
    assert more == pytest.approx(7_504_924_672 * 12 / 2 / GIB, rel=1e-6)
    assert separate.cost.score_critic > 0 == shared.cost.score_critic
    assert separate.cost.total > shared.cost.total


def test_a_method_without_a_reference_is_told_that_it_may_drop_it() -> None:
    plan = plan_for("llama-3-8b", "dapo", *ZERO_2, "park_reference=false")
    assert "reference" in {one.name for one in plan.memory.items}
    without = plan_for("llama-3-8b", "dapo", *ZERO_2, "track_reference_kl=false", "park_reference=false")
    assert "reference" not in {one.name for one in without.memory.items}
    assert plan.memory.peak_bytes - without.memory.peak_bytes == pytest.approx(8_030_261_248 * 2, rel=1e-9)


def test_gemmas_logits_exist_for_every_position_and_llamas_in_chunks() -> None:
    gemma, llama = (plan_for(preset, "grpo", *ZERO_2) for preset in ("gemma-2-9b", "llama-3-8b"))
    names = {one.name for one in gemma.memory.items if "update" in one.phases}
    assert "logits as the model makes them" in names
    chunk = next(one for one in llama.memory.items if one.name == "logits of a chunk")
    assert chunk.factors[0][0] == 1 << 24


def test_forward_operations_are_two_a_weight_and_token_and_four_a_head_number_attended() -> None:
    shape = find_shape("meta-llama/Meta-Llama-3-8B")
    layers, head = sequence_flops(shape, prompt=100, response=50)
    # Per layer 4096 x 128 x 2 x (32 + 8) + 3 x 4096 x 14336 = 218,103,808 weights; 150 tokens; 150^2 / 2 pairs.
    assert layers == 32 * (2 * 218_103_808 * 150 + 4 * 32 * 128 * 150**2 / 2)
    assert head == 2 * 128_256 * 4096 * 50


def test_the_probe_takes_half_the_tokens_and_so_half_the_updates() -> None:
    agpo, grpo = (plan_for("llama-3-8b", method, *ZERO_2) for method in ("agpo", "grpo"))
    assert agpo.cost.sampled_tokens == 2 * grpo.cost.sampled_tokens
    assert agpo.cost.trained_tokens == grpo.cost.trained_tokens
    assert agpo.cost.updates == pytest.approx(grpo.cost.updates / 2, rel=0.01)
    assert agpo.cost.update == pytest.approx(grpo.cost.update / 2, rel=0.01)
    assert agpo.cost.generation == pytest.approx(grpo.cost.generation, rel=0.01)
    both = plan_for("llama-3-8b", "agpo", "probe.reuse=true", *ZERO_2)
    assert both.cost.trained_tokens == 2 * agpo.cost.trained_tokens


def test_hours_are_operations_over_what_the_devices_do() -> None:
    cost = plan_for("llama-3-8b", "grpo", *ZERO_2).cost
    machine = plan_for("llama-3-8b", "grpo", *ZERO_2).machine
    rates = Rates(peak_tflops=100, mfu=0.5, generation_mfu=0.5)
    assert cost.hours(machine, rates) == pytest.approx(cost.total / (2 * 100e12 * 0.5) / 3600)


def test_the_budget_is_spent_in_as_many_batches_as_it_holds() -> None:
    cost = plan_for("llama-3-8b", "grpo", budget="10M").cost
    assert cost.batches == -(-10_000_000 // int(cost.sampled_tokens))
    assert cost.updates == 4 * cost.batches


def work_of(**changes: object) -> Workload:
    lengths = Lengths(prompt=100, longest_prompt=100, longest_response=50, mean_response=50)
    given = {"num_prompts": 8, "group_size": 4, "probe_size": 0, "reuses_probe": False, "minibatches": 2, "updates": 2}
    return Workload(lengths=lengths, **(given | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("max_tokens", "prompts", "rows"),
    [
        (300, 1, 4),  # a whole group: 100 + 4 x 50
        (299, 1, 3),
        (450, 2, 5),  # the group, then a second prompt with one row
        (449, 1, 4),
        (10, 1, 1),  # a single sequence longer than the limit gets a micro-batch of its own
        (100_000, 4, 16),  # the minibatch: 8 prompts in 2 parts
    ],
)
def test_a_micro_batch_holds_whole_groups_and_then_rows(max_tokens: int, prompts: int, rows: int) -> None:
    found = micro_batch(work_of(), max_tokens=max_tokens, num_ranks=1, is_padded=False)
    assert (found.num_prompts, found.num_rows) == (prompts, rows)
    assert found.num_tokens == prompts * 100 + rows * 49


def test_a_micro_batch_is_what_the_trainer_cuts() -> None:
    from agpo_bench.training.policy import Policy
    from agpo_bench.training.sequences import ScoredSequence

    group = [
        ScoredSequence(prompt_ids=(p, *range(99)), response_ids=tuple(range(50)), temperature=1.0)
        for p in range(4)
        for _ in range(4)
    ]
    for max_tokens in (10, 299, 300, 449, 450, 700, 100_000):
        parts = Policy.split(group, max_tokens=max_tokens)
        largest = max(len(part) for part in parts)
        assert micro_batch(work_of(), max_tokens=max_tokens, num_ranks=1, is_padded=False).num_rows == largest


def test_lengths_that_leave_no_room_are_refused_in_one_sentence() -> None:
    from agpo_bench.config import load_config

    config = load_config("llama-3-8b")
    with pytest.raises(ValueError, match="leave no room for an answer in max_length 1024"):
        Lengths.of(config, prompt=1024)
    with pytest.raises(ValueError, match="a mean response of 2000 tokens is not between 1 and"):
        Lengths.of(config, mean_response=2000)


def test_a_preset_is_planned_without_torch_in_about_a_second() -> None:
    code = (
        "import sys; from agpo_bench.cli import app\n"
        "try: app(['plan', '--preset', 'qwen2.5-14b', '--gpus', '2', '--gpu-memory', '80', '--method', 'all'])\n"
        "except SystemExit as end: assert not end.code\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    started = time.process_time()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ppo" in done.stdout
    assert time.process_time() - started < 5
