from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from agpo_bench.config import load_config
from agpo_bench.evaluation.evaluate import EvalOptions, evaluate_runs
from agpo_bench.evaluation.targets import find_targets
from agpo_bench.ledger import TokenLedger


def _write_run(out: Path, model: Path, *, method: str, seed: int, steps: dict[int, bool]) -> Path:
    """A run directory as training leaves it; ``steps`` maps a checkpoint's step to whether the run was finished."""
    run = out / method / f"seed-{seed}"
    run.mkdir(parents=True)
    config = load_config("embedded", model=str(model), seed=seed, budget=1000, max_new_tokens=8)
    (run / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    (run / "recipe.yaml").write_text(yaml.safe_dump({"name": method, "title": method.upper()}))
    for step, is_finished in steps.items():
        ledger = TokenLedger(1000, used_by_phase={"train": 100 * step, "probe": step})
        state = {
            "step": step, "weights_version": step, "num_updates": 8 * step, "num_skipped_updates": 0,
            "ledger": ledger.to_json(), "method_state": "{}", "prompts": {}, "gradient_norms": [],
            "reference_fingerprint": "f", "run_fingerprint": "f", "file_sizes": {}, "is_finished": is_finished,
        }  # fmt: skip
        folder = run / f"checkpoints/{step:06d}"
        shutil.copytree(model, folder / "model")
        (folder / "state.json").write_text(json.dumps(state))
    return run


def test_finished_runs_are_taken_at_their_newest_checkpoint_with_the_initial_model_first(
    tmp_path: Path, random_model: Path
) -> None:
    _write_run(tmp_path, random_model, method="grpo", seed=42, steps={9: False, 10: True})
    _write_run(tmp_path, random_model, method="agpo", seed=1, steps={2: True})
    _write_run(tmp_path, random_model, method="agpo", seed=2, steps={3: False})
    initial, agpo, grpo = find_targets(tmp_path)
    assert (initial.method, initial.model, initial.seed) == ("initial", str(random_model), None)
    assert (agpo.method, agpo.title, agpo.seed, agpo.tokens_used) == ("agpo", "AGPO", 1, 202)
    assert (grpo.seed, grpo.tokens_used, grpo.budget, grpo.updates_per_rollout) == (42, 1010, 1000, 8)
    assert grpo.model.endswith("grpo/seed-42/checkpoints/000010/model")


def test_a_run_named_by_hand_may_be_unfinished(tmp_path: Path, random_model: Path) -> None:
    run = _write_run(tmp_path, random_model, method="agpo", seed=2, steps={3: False})
    initial, trained = find_targets(Path("elsewhere"), run=run)
    assert (initial.directory, trained.directory) == (tmp_path / "initial", run)
    with pytest.raises(ValueError, match=r"no finished run in .* \(1 unfinished\)"):
        find_targets(tmp_path)
    with pytest.raises(ValueError, match="no checkpoint in"):
        find_targets(tmp_path, run=tmp_path / "agpo")


def test_runs_and_their_initial_model_are_asked_the_same_as_trained(tmp_path: Path, random_model: Path) -> None:
    _write_run(tmp_path, random_model, method="agpo", seed=1, steps={2: True})
    options = EvalOptions(tasks=("gsm8k", "gaokao_cloze"), limit=5)
    results = evaluate_runs(tmp_path, options=options)
    assert [(result.method, result.seed, result.task) for result in results] == [
        ("initial", None, "gsm8k"),
        ("initial", None, "gaokao_cloze"),
        ("agpo", 1, "gsm8k"),
        ("agpo", 1, "gaokao_cloze"),
    ]
    for result in results:
        assert result.data_source_kind == "embedded"
        assert "embedded sample" in result.data_source
        assert result.max_new_tokens == 8
    # These two checkpoints hold equal weights: equal draws, in files of their own.
    assert results[0].accuracy == results[2].accuracy
    for folder in ("initial", "agpo/seed-1"):
        assert (tmp_path / folder / "eval/gsm8k/results.json").is_file()
        assert (tmp_path / folder / "eval/gsm8k/samples.jsonl").is_file()
    assert (results[2].tokens_used, results[2].budget, results[2].updates_per_rollout) == (202, 1000, 8)
