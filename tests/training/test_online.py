"""The loop as a whole: limits in which methods coincide, what is charged, what is logged, and what must not crash."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agpo_bench.config import RunConfig
from agpo_bench.methods.recipe import load_method
from agpo_bench.methods.registry import method_names
from agpo_bench.records import Verdict
from agpo_bench.training.metrics import StepRecord
from agpo_bench.training.rewards import Graded
from agpo_bench.training.run import StepResult, train
from agpo_bench.training.session import Session
from agpo_bench.training.setup import check, worst_case_tokens
from agpo_bench.training.update import RunningCorrelation

Config = Callable[..., RunConfig]
Take = Callable[..., tuple[Session, list[StepResult]]]

NO_FEEDBACK = {
    "clip.use_entropy": False,
    "clip.alpha": 0.0,
    "clip.gamma": 0.0,
    "clip.delta": 0.0,
    "clip.zeta": 0.0,
    "temperature.gain": 0.0,
}
"""AGPO with every weight at zero: radius 0.2 and temperature 1, as in GRPO."""


def weights(session: Session) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in session.policy.state_dict().items()}


def assert_same_weights(first: Session, second: Session) -> None:
    left, right = weights(first), weights(second)
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


def test_agpo_with_zero_weights_is_grpo_to_the_bit(small_config: Config, take_steps: Take) -> None:
    config = small_config(learning_rate_schedule="constant")
    silent, results = take_steps(config, load_method("agpo", NO_FEEDBACK), steps=3)
    plain, _ = take_steps(config, "grpo", steps=3)
    assert_same_weights(silent, plain)
    assert all(result.record.values["ctrl/eps"] == 0.2 for result in results)
    assert all(result.record.values["ctrl/tau"] == 1.0 for result in results)
    assert silent.ledger.by_phase()["train"] == plain.ledger.by_phase()["train"]
    assert silent.ledger.by_phase()["probe"] > 0 == plain.ledger.by_phase()["probe"]


def test_with_one_update_a_rollout_no_clip_can_act(small_config: Config, take_steps: Take) -> None:
    one = {"epochs_per_batch": 1, "minibatches_per_epoch": 1, "learning_rate_schedule": "constant"}
    config = small_config(**one, learning_rate=3e-3)
    adaptive, _ = take_steps(config, "agpo_no_ats", steps=2)
    fixed, _ = take_steps(config, "grpo", steps=2)
    assert_same_weights(adaptive, fixed)


def test_with_several_updates_the_clip_acts(small_config: Config, take_steps: Take) -> None:
    several = {"epochs_per_batch": 4, "learning_rate_schedule": "constant", "learning_rate": 1e-2}
    config = small_config(**several)
    narrow, results = take_steps(config, load_method("grpo", {"clip.low": 0.01, "clip.high": 0.01}), steps=2)
    wide, _ = take_steps(config, load_method("grpo", {"clip.low": 0.4, "clip.high": 0.4}), steps=2)
    assert results[0].record.values["clip/active_tokens"] > 0  # type: ignore[operator]
    assert any(not torch.equal(weights(narrow)[name], tensor) for name, tensor in weights(wide).items())


def test_an_adaptive_clip_with_one_update_is_refused(small_config: Config) -> None:
    with pytest.raises(ValueError, match="agpo_no_ats: with 1 update"):
        check(small_config(epochs_per_batch=1, minibatches_per_epoch=1), load_method("agpo_no_ats"))


@pytest.mark.parametrize("name", ["grpo", "ppo", "agpo", "rloo"])
def test_before_the_first_update_policy_and_reference_are_one(
    small_config: Config, take_steps: Take, name: str
) -> None:
    _, (result,) = take_steps(small_config(), name, steps=1)
    values = result.record.values
    assert values["kl/ref_k1"] == pytest.approx(0.0, abs=1e-6)
    assert values["kl/ref_k3"] == pytest.approx(0.0, abs=1e-6)
    assert values["clip/first_pass_ratio_err"] == pytest.approx(0.0, abs=1e-4)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(small_config: Config, take_steps: Take) -> None:
    first, results = take_steps(small_config(), "agpo", steps=2)
    second, again = take_steps(small_config(), "agpo", steps=2)
    assert_same_weights(first, second)
    assert [result.record.to_json() for result in results] == [result.record.to_json() for result in again]
    _, other = take_steps(small_config(seed=1337), "agpo", steps=1)
    assert other[0].rollouts != results[0].rollouts


def test_reused_probe_groups_are_trained_on_and_change_nothing_before_that(
    small_config: Config, take_steps: Take
) -> None:
    config = small_config()
    apart, plain = take_steps(config, "agpo", steps=1)
    session, reused = take_steps(config, load_method("agpo", {"probe.reuse": True}), steps=1)

    def of(result: StepResult, phase: str) -> list[dict[str, Any]]:
        return [line for line in result.rollouts if line["phase"] == phase]

    for phase in ("probe", "train"):
        tokens = [[line["token_ids"] for line in of(result, phase)] for result in (plain[0], reused[0])]
        assert tokens[0] == tokens[1]
    assert all(line["advantage"] is None for line in of(plain[0], "probe"))
    assert all(line["advantage"] is not None and line["eps"] is not None for line in of(reused[0], "probe"))
    # Each probe group is a group of its own: its advantages are z-scores and add up to 0.
    probe = of(reused[0], "probe")
    for start in range(0, len(probe), config.group_size):
        group = probe[start : start + config.group_size]
        assert abs(sum(line["advantage"] for line in group)) < 1e-6
        better = max(group, key=lambda line: line["reward"])
        assert better["advantage"] >= 0
    assert session.ledger.by_phase() == apart.ledger.by_phase()
    assert reused[0].record.values["groups/trained"] == 2 * plain[0].record.values["groups/trained"]
    assert reused[0].record.values["ctrl/tau"] == plain[0].record.values["ctrl/tau"]
    assert any(not torch.equal(weights(session)[name], weights(apart)[name]) for name in weights(session))


def test_reuse_of_a_probe_that_fits_no_training_group_is_refused(small_config: Config) -> None:
    with pytest.raises(ValueError, match="probe groups of 2 cannot be trained on beside groups of 4"):
        check(small_config(), load_method("agpo", {"probe.reuse": True, "probe.size": 2}))
    with pytest.raises(ValueError, match="two groups a prompt"):
        load_method("agpo", {"probe.reuse": True, "probe.scope": "prompt"})


def test_all_rollouts_have_their_own_seed_and_probe_and_training_differ(small_config: Config, take_steps: Take) -> None:
    _, results = take_steps(small_config(), "agpo_no_ats", steps=2)
    lines = [line for result in results for line in result.rollouts]
    assert len({line["seed"] for line in lines}) == len(lines)
    by_phase: dict[str, list[list[int]]] = {"probe": [], "train": []}
    for line in results[0].rollouts:
        by_phase[line["phase"]].append(line["token_ids"])
    assert by_phase["probe"] != by_phase["train"]


@pytest.mark.parametrize(
    "name", ["grpo", "agpo", "gspo_sym", "dr_grpo", "dapo", "ppo", "rloo", "p3o", "clip_cov", "kl_cov", "dpo"]
)
def test_one_micro_batch_of_all_rows_and_many_of_one_change_the_weights_alike(
    small_config: Config, take_steps: Take, name: str
) -> None:
    # With an epsilon far above the gradient AdamW moves in proportion to it: changes of weights show gradients.
    linear = {"adam_eps": 1e4, "learning_rate": 1e3, "weight_decay": 0.0, "max_grad_norm": 1e9}
    linear |= {"prompts_per_batch": 12}
    changes = []
    for tokens in (100_000, 1):
        config = small_config(**linear, budget=40_000, micro_batch_tokens=tokens, epochs_per_batch=1)
        before = weights(take_steps(config, name, steps=0)[0])
        session, _ = take_steps(config, name, steps=1)
        changes.append({key: (tensor - before[key]).double() for key, tensor in weights(session).items()})
    whole, pieces = changes
    largest = max(float(change.abs().max()) for change in whole.values())
    assert largest > 1e-5
    for key, change in whole.items():
        assert float((change - pieces[key]).abs().max()) <= 1e-3 * largest, key


def test_a_rollout_that_could_not_be_graded_leaves_the_mean_and_the_update(
    small_config: Config, take_steps: Take
) -> None:
    from agpo_bench.methods.batch import AdvantageInputs

    session, _ = take_steps(small_config(group_size=8), "grpo", steps=0)
    verdicts = [Verdict(score=float(i < 2), answer="1", reason="") for i in range(7)]
    failed = Verdict(score=0.0, answer=None, reason="timeout", is_error=True)
    graded = Graded.of([[*verdicts, failed]])
    inputs = AdvantageInputs(
        rewards_PG=graded.reward_PG,
        scores_PG=graded.reward_PG,
        prompt_ids=("p",),
        is_valid_PG=graded.is_valid_PG,
        is_finished_PG=torch.ones(1, 8, dtype=torch.bool),
    )
    _, advantages = session.method.advantages(session.method_state, inputs)
    # Mean 2/7 and Bessel deviation sqrt(10/42) over the seven that were graded.
    expected = (1 - 2 / 7) / (10 / 42) ** 0.5
    assert float(advantages.advantage_PG[0, 0]) == pytest.approx(expected, rel=1e-6)
    assert float(advantages.advantage_PG[0, 7]) == 0.0
    assert not bool(advantages.is_trained_PG[0, 7])


def test_the_loop_goes_on_when_a_grader_crashes_on_one_response(small_config: Config, take_steps: Take) -> None:
    from agpo_bench.training.rewards import grade_many

    class Fragile:
        """A grader that divides by the answer."""

        def grade(self, response: str, reference: Any) -> Verdict:
            return Verdict(score=1.0 / int(response), answer=response, reason="correct")

        def grade_many(self, pairs: Any) -> list[Verdict]:
            return [self.grade(*pair) for pair in pairs]

        def are_equivalent(self, first: str, second: str) -> bool:
            return first == second

    verdicts = grade_many(Fragile(), [("1", None), ("0", None), ("1", None)])  # type: ignore[list-item]
    assert [verdict.score for verdict in verdicts] == [1.0, 0.0, 1.0]
    assert [verdict.is_error for verdict in verdicts] == [False, True, False]
    assert verdicts[1].reason == "grader_ZeroDivisionError"


@pytest.fixture(scope="module")
def ignorant_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded architecture with random weights: it never answers right."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from agpo_bench.data.embedded import embedded_model_directory

    folder = tmp_path_factory.mktemp("ignorant")
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(embedded_model_directory())).save_pretrained(folder)
    AutoTokenizer.from_pretrained(embedded_model_directory()).save_pretrained(folder)
    return folder


def test_dynamic_sampling_without_any_reward_ends_by_the_ledger(
    small_config: Config, ignorant_model: Path, tmp_path: Path, read_jsonl: Callable[[Path], list[dict[str, Any]]]
) -> None:
    config = small_config(model=str(ignorant_model), tasks="math")
    outcome = train(config, load_method("dapo"), directory=tmp_path / "run")
    assert outcome.is_finished
    assert config.budget <= outcome.tokens_used
    # At most one more round of sampling after the budget was reached.
    assert outcome.overshoot < 4 * 4 * 24
    lines = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert lines[-1]["tokens/discarded"] == lines[-1]["tokens/used"] == outcome.tokens_used
    assert lines[-1]["updates"] == 0
    assert all(line["groups/trained"] == 0 for line in lines)


def test_dynamic_sampling_is_capped_and_trains_on_what_there_is(small_config: Config, take_steps: Take) -> None:
    session, results = take_steps(small_config(budget=100_000), load_method("dapo", {"groups.max_rounds": 2}), steps=4)
    for result in results:
        values = result.record.values
        assert values["gen/rounds"] in (1, 2)
        assert values["groups/trained"] <= 4  # type: ignore[operator]
        kept = {line["prompt_id"] for line in result.rollouts if line["phase"] == "train"}
        scores = [line["verdict"] for line in result.rollouts if line["phase"] == "train"]
        assert len(kept) == values["groups/trained"]
        assert not scores or 0 < sum(scores) < len(scores)
    assert session.ledger.by_phase()["discarded"] > 0


def test_the_ledger_holds_exactly_the_tokens_in_the_rollout_files(
    small_config: Config, tmp_path: Path, read_jsonl: Callable[[Path], list[dict[str, Any]]]
) -> None:
    for name in ("agpo", "dapo", "dpo", "mc_grpo"):
        directory = tmp_path / name
        train(small_config(), load_method(name), directory=directory)
        counted: Counter[str] = Counter()
        for file in sorted((directory / "rollouts").glob("*.jsonl")):
            for line in read_jsonl(file):
                counted[line["phase"]] += len(line["token_ids"])
        last = read_jsonl(directory / "metrics.jsonl")[-1]
        assert {phase: last[f"tokens/{phase}"] for phase in ("probe", "train", "discarded", "pairs")} == {
            phase: counted[phase] for phase in ("probe", "train", "discarded", "pairs")
        }


@pytest.mark.parametrize("name", ["grpo", "agpo"])
def test_a_run_ends_on_whole_groups_within_one_batch_of_its_budget(
    small_config: Config, tmp_path: Path, read_jsonl: Callable[[Path], list[dict[str, Any]]], name: str
) -> None:
    config = small_config()
    method = load_method(name)
    outcome = train(config, method, directory=tmp_path)
    assert config.budget <= outcome.tokens_used == config.budget + outcome.overshoot
    assert outcome.overshoot <= worst_case_tokens(config, method)
    for file in sorted((tmp_path / "rollouts").glob("*.jsonl")):
        for phase in ("probe", "train"):
            sizes = Counter(line["prompt_id"] for line in read_jsonl(file) if line["phase"] == phase)
            assert set(sizes.values()) <= {config.group_size}


def replayable(name: str) -> bool:
    return any(getattr(part, "path", None) is not None for part in load_method(name).parts.values())


@pytest.fixture(scope="module")
def agpo_log(small_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs in which agpo has trained, for the controls that replay it."""
    out = tmp_path_factory.mktemp("runs")
    train(small_config(), load_method("agpo"), directory=out / "agpo" / "seed-42")
    return out


@pytest.mark.parametrize("name", method_names())
def test_every_recipe_takes_steps_with_finite_and_documented_metrics(
    small_config: Config, take_steps: Take, agpo_log: Path, name: str
) -> None:
    method = load_method(name).with_logs(out=agpo_log, seed=42)
    config = small_config(prompts_per_batch=8, budget=20_000)
    check(config, method)
    session, results = take_steps(config, method, steps=2)
    for result in results:
        for key, value in result.record.values.items():
            assert isinstance(value, int | float), key
            assert math.isfinite(value), f"{key} = {value}"
            assert is_documented(key), f"{key} has no definition in StepRecord's docstring"
    counted = Counter[str]()
    for line in (line for result in results for line in result.rollouts):
        counted[line["phase"]] += len(line["token_ids"])
    assert counted == Counter(session.ledger.by_phase())
    assert session.num_updates > 0
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights(session).values())
    assert replayable(name) == (method != load_method(name))


def is_documented(key: str) -> bool:
    """Whether the docstring names the metric: ``a/b`` or ``a/x|b`` literally, or a family such as ``ctrl/…``."""
    documented: set[str] = set()
    for code in re.findall(r"``([^`]+)``", StepRecord.__doc__ or ""):
        family, slash, names = code.partition("/")
        documented |= {f"{family}/{name}" for name in names.split("|")} if slash else {code}
    family, _, name = key.partition("/")
    bare = re.sub(r"_c\d+$", "_c<c>", name)
    return (
        bool({key, f"{family}/{bare}", f"{family}/…"} & documented) or key.startswith("reward/task/") or key in _BRACED
    )


_BRACED = {f"ctrl/eps_factor_{term}" for term in ("H", "E", "sigma", "kappa", "D")}


def test_every_rollout_line_says_what_was_sampled_and_how_it_was_judged(small_config: Config, take_steps: Take) -> None:
    _, (result,) = take_steps(small_config(), "agpo", steps=1)
    trained = [line for line in result.rollouts if line["phase"] == "train"]
    assert len(trained) == 16
    for line in trained:
        assert line["tau"] == result.record.values["ctrl/tau"]
        assert line["eps"] == result.record.values["ctrl/eps"]
        assert line["reward"] == line["verdict"]
        assert isinstance(line["advantage"], float)
        assert line["text"] is not None and line["reason"]
    assert all(line["advantage"] is None for line in result.rollouts if line["phase"] == "probe")
    rewards = [line["reward"] for line in trained]
    assert result.record.values["reward/mean"] == pytest.approx(sum(rewards) / len(rewards))
    lengths = [len(line["token_ids"]) for line in trained]
    assert result.record.values["len/mean"] == pytest.approx(sum(lengths) / len(lengths))


def test_the_step_kl_is_carried_into_the_next_radius(small_config: Config, take_steps: Take) -> None:
    _, results = take_steps(small_config(learning_rate=3e-3), "agpo_no_ats", steps=3)
    first, second, third = (result.record.values for result in results)
    assert first["ctrl/D_step"] == 0.0
    assert second["ctrl/D_step"] == first["kl/step_k1"] != 0.0
    assert third["ctrl/D_step"] == second["kl/step_k1"]


def test_one_rollout_a_prompt_means_more_prompts(small_config: Config, take_steps: Take) -> None:
    _, (result,) = take_steps(small_config(), "spo", steps=1)
    assert len({line["prompt_id"] for line in result.rollouts}) == 16 == len(result.rollouts)


def test_the_correlation_equals_the_textbook_one_and_is_absent_for_constants() -> None:
    generator = torch.Generator().manual_seed(1)
    x = 1 + 1e-4 * torch.randn(1000, generator=generator)
    y = torch.randn(1000, generator=generator) + 3e3 * (x - 1)
    running = RunningCorrelation()
    for start in range(0, 1000, 7):
        running.add(x[start : start + 7], y[start : start + 7])
    expected = float(torch.corrcoef(torch.stack([x.double(), y.double()]))[0, 1])
    assert running.value == pytest.approx(expected, abs=1e-6)
    constant = RunningCorrelation()
    constant.add(torch.ones(5), torch.randn(5, generator=generator))
    assert constant.value is None
