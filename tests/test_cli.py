"""The command line: quick to answer, and one sentence for bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from agpo_bench.commands.train import resume_command, split_changes
from agpo_bench.methods.recipe import load_method
from agpo_bench.paths import definitions


def run(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agpo_bench", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def refused(*words: str, cwd: Path | None = None) -> str:
    """The one line on stderr of a command that refuses its input."""
    result = run(*words, cwd=cwd)
    assert result.returncode == 2, result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


HEAVY = ("torch", "transformers", "numpy", "pandas", "matplotlib", "lm_eval", "scipy", "datasets")


@pytest.mark.parametrize(
    "words", [["--help"], ["train", "--help"], ["eval", "--help"], ["report", "--help"], ["--version"]]
)
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys\nfrom agpo_bench.cli import app\n"
        f"try:\n    app({words!r})\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout
    assert result.stderr.strip() == "[]"


def test_the_version_is_printed() -> None:
    import agpo_bench

    assert run("--version").stdout.strip() == f"agpo-bench {agpo_bench.__version__}"


def test_every_command_has_help() -> None:
    listed = run("--help").stdout
    for command in ("train", "eval", "report", "methods", "tasks", "warm-start"):
        assert command in listed
        assert run(command, "--help").returncode == 0


def test_an_unknown_method_is_named_with_those_that_exist(tmp_path: Path) -> None:
    line = refused("train", "--method", "agppo", "--out", str(tmp_path))
    assert "'agppo'" in line and "grpo" in line


def test_an_unknown_recipe_field_is_named_with_those_that_exist(tmp_path: Path) -> None:
    line = refused("train", "--method", "grpo", "--set", "clip.widht=0.3", "--out", str(tmp_path))
    assert "'widht'" in line and "high" in line


def test_an_unknown_config_field_is_named_with_those_that_exist(tmp_path: Path) -> None:
    line = refused("train", "--method", "grpo", "--set", "learning_rte=0.3", "--out", str(tmp_path))
    assert "'learning_rte'" in line and "learning_rate" in line


def test_a_budget_below_one_batch_is_refused_with_the_size_of_a_batch(tmp_path: Path) -> None:
    line = refused("train", "--method", "grpo", "--budget", "1k", "--out", str(tmp_path))
    assert "1,000" in line and "10,240" in line  # 32 prompts x 8 rollouts x 40 tokens


def test_an_adaptive_clip_with_one_update_is_refused(tmp_path: Path) -> None:
    words = ("--set", "epochs_per_batch=1", "--set", "minibatches_per_epoch=1", "--out", str(tmp_path))
    line = refused("train", "--method", "agpo_no_ats", *words)
    assert "agpo_no_ats" in line and "1 update" in line


def test_a_missing_model_directory_is_named(tmp_path: Path) -> None:
    line = refused("train", "--method", "grpo", "--model", "./nowhere", "--out", str(tmp_path))
    assert "./nowhere" in line
    (tmp_path / "empty").mkdir()
    line = refused("train", "--method", "grpo", "--model", str(tmp_path / "empty"), "--out", str(tmp_path))
    assert str(tmp_path / "empty") in line and "config.json" in line


def test_a_place_that_cannot_be_written_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = refused("train", "--method", "grpo", "--out", str(tmp_path / "file"))
    assert str(tmp_path / "file") in line and "Not a directory" in line


def test_a_refused_run_leaves_no_folder(tmp_path: Path) -> None:
    refused("train", "--method", "grpo", "--data", "./nowhere", "--out", str(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


def test_a_group_size_that_the_recipe_fixes_cannot_be_set_without_effect(tmp_path: Path) -> None:
    line = refused("train", "--method", "grpo_g16", "--set", "group_size=4", "--out", str(tmp_path))
    assert "group_size 16" in line


def test_both_kinds_of_seeds_at_once_are_refused(tmp_path: Path) -> None:
    assert "--seeds" in refused("train", "--seed", "1", "--seeds", "1,2", "--out", str(tmp_path))


def test_an_empty_folder_has_nothing_to_evaluate_or_report(tmp_path: Path) -> None:
    assert str(tmp_path) in refused("eval", "--out", str(tmp_path))
    assert str(tmp_path) in refused("report", "--runs", str(tmp_path))


def test_set_goes_to_the_config_or_to_the_recipe_by_its_name() -> None:
    config, recipe = split_changes(["group_size=4", "clip.high=0.3", "learning_rate=1e-5", "probe.signals_mask='0111'"])
    assert config == {"group_size": 4, "learning_rate": "1e-5"}
    assert recipe == {"clip.high": 0.3, "probe.signals_mask": "0111"}


def test_a_set_without_a_value_is_refused() -> None:
    with pytest.raises(ValueError, match="name=value"):
        split_changes(["group_size"])


def test_the_resume_command_is_the_typed_one_with_resume() -> None:
    assert resume_command(["x", "train", "--method", "agpo"]) == "agpo-bench train --method agpo --resume"
    assert resume_command(["x", "train", "--resume", "--set", "a.b=c d"]) == "agpo-bench train --set 'a.b=c d' --resume"
    assert resume_command(["x", "--local_rank=0", "train", "--seed", "1"]) == "agpo-bench train --seed 1 --resume"


def test_a_launchers_local_rank_is_taken_where_its_environment_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert "it is not set: start with torchrun or deepspeed" in refused("--local_rank=1", "tasks")
    monkeypatch.setenv("LOCAL_RANK", "1")
    for spelling in ("--local_rank=1", "--local-rank=1"):
        assert "gsm8k" in run(spelling, "tasks").stdout
    assert "--local_rank 0 is for launchers, which also set LOCAL_RANK; it is 1" in refused(
        "--local-rank", "0", "tasks"
    )
    assert "local" not in run("--help").stdout


def test_methods_and_tasks_are_listed() -> None:
    assert "agpo_no_ats" in run("methods").stdout
    assert "Eq. 4" in run("methods", "agpo").stdout
    difference = run("methods", "--diff", "agpo", "agpo_no_ats").stdout
    assert "temperature" in difference and "clip" not in difference
    assert "gaokao_cloze" in run("tasks").stdout


def test_the_page_of_all_methods_is_written_to_the_file_asked_for(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "methods.md"
    assert run("methods", "--page", str(page)).returncode == 0
    assert "## AGPO (`agpo`)" in page.read_text(encoding="utf-8")
    assert "--page writes all methods" in refused("methods", "agpo", "--page", str(page))
    assert "--runs goes with --page" in refused("methods", "--runs", str(tmp_path))
    assert "no results in" in refused("methods", "--page", str(page), "--runs", str(tmp_path))


SMALL = ("--set", "prompts_per_batch=4", "--set", "group_size=4", "--set", "max_new_tokens=24", "--tasks", "gsm8k,math")


def test_several_runs_share_the_cores_and_finished_ones_are_skipped(tmp_path: Path) -> None:
    words = [
        "train",
        "--method",
        "agpo_replay,grpo,agpo",
        "--budget",
        "2k",
        "--out",
        str(tmp_path),
        "--jobs",
        "2",
        *SMALL,
    ]
    first = run(*words)
    assert first.returncode == 0, first.stderr
    for name in ("agpo", "grpo", "agpo_replay"):
        assert (tmp_path / name / "seed-42" / "ledger.json").is_file()
        assert f"{name} seed 42: 2," in first.stdout or f"{name} seed 42: 3," in first.stdout
    # The replay waits for the run that it replays and repeats its radii.
    logs = [
        (tmp_path / name / "seed-42" / "metrics.jsonl").read_text().splitlines() for name in ("agpo", "agpo_replay")
    ]
    for original, replayed in zip(*logs, strict=False):
        assert json.loads(original)["ctrl/eps"] == json.loads(replayed)["ctrl/eps"]
    line = refused(*words)
    assert "already holds a run; add --resume" in line
    again = run(*words, "--resume")
    assert again.returncode == 0
    assert again.stdout.count("nothing to do") == 3


def test_one_line_of_a_recipe_changes_the_method(tmp_path: Path) -> None:
    recipe = definitions("trainers") / "grpo.yaml"
    mine = tmp_path / "mine.yaml"
    mine.write_text(recipe.read_text().replace("name: grpo", "name: mine").replace("low: 0.2", "low: 0.1"))
    result = run("train", "--method", str(mine), "--budget", "2k", "--out", str(tmp_path / "runs"), *SMALL)
    assert result.returncode == 0, result.stderr
    saved = yaml.safe_load((tmp_path / "runs" / "mine" / "seed-42" / "recipe.yaml").read_text())
    assert saved["clip"] == {"use": "fixed", "low": 0.1, "high": 0.2}


def test_a_misspelt_method_is_answered_with_the_nearest_names() -> None:
    with pytest.raises(ValueError, match=r"no method 'GSPO-sim'; did you mean gspo_sym"):
        load_method("GSPO-sim")
