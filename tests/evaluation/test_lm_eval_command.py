"""The same task files under an unmodified lm-eval: its own command line, its own Hugging Face model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agpo_bench import paths
from agpo_bench.data.benchmarks import task_names
from agpo_bench.evaluation.evaluate import EvalOptions, evaluate_runs
from agpo_bench.evaluation.results import read_samples


def _lm_eval(
    model: Path, out: Path, *, tasks: str, metadata: dict[str, object] | None = None, **environment: str
) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    command = [
        sys.executable, "-m", "lm_eval", "run", "--model", "hf", "--model_args", f"pretrained={model}",
        "--device", "cpu", "--batch_size", "3", "--include_path", str(paths.definitions("tasks")), "--tasks", tasks,
        "--limit", "3", "--gen_kwargs", "max_gen_toks=12", "--output_path", str(out), "--log_samples",
    ]  # fmt: skip
    if metadata is not None:
        command += ["--metadata", json.dumps(metadata)]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (results,) = out.rglob("results_*.json")
    samples = {
        path.name.removeprefix("samples_agpo_").rsplit("_", 1)[0]: [json.loads(line) for line in path.open()]
        for path in out.rglob("samples_*.jsonl")
    }
    content: dict[str, Any] = json.loads(results.read_text())["results"]
    return content, samples


@pytest.mark.slow
def test_an_unmodified_lm_eval_gives_the_same_answers_and_scores(
    tmp_path: Path, random_model: Path, benchmark_folder: Path
) -> None:
    scores, samples = _lm_eval(
        random_model, tmp_path / "theirs", tasks="agpo_gsm8k,agpo_cmath", metadata={"data": str(benchmark_folder)}
    )
    options = EvalOptions(tasks=("gsm8k", "cmath"), source=str(benchmark_folder), limit=3, max_new_tokens=12)
    for result in evaluate_runs(tmp_path / "ours", options=options, model=str(random_model)):
        ours = list(read_samples(tmp_path / f"ours/initial/eval/{result.task}/samples.jsonl"))
        theirs = sorted(samples[result.task], key=lambda sample: int(sample["doc_id"]))
        assert [sample["doc_hash"] for sample in theirs] == [sample.doc_hash for sample in ours]
        assert [sample["prompt_hash"] for sample in theirs] == [sample.prompt_hash for sample in ours]
        assert [sample["resps"][0][0].split() for sample in theirs] == [sample.text.split() for sample in ours]
        assert [sample["score"] for sample in theirs] == [sample.score for sample in ours]
        assert scores[f"agpo_{result.task}"]["score,graded"] == pytest.approx(result.accuracy)
        assert scores[f"agpo_{result.task}"]["parsed,graded"] == pytest.approx(result.parse_rate)


@pytest.mark.slow
def test_the_group_runs_on_the_embedded_sample_named_by_a_variable(tmp_path: Path, random_model: Path) -> None:
    scores, samples = _lm_eval(random_model, tmp_path, tasks="agpo_all", AGPO_BENCH_DATA="embedded")
    assert set(samples) == set(task_names())
    for name in task_names():
        assert [sample["doc"]["prompt_id"] for sample in samples[name]] == [f"{name}/test/{n}" for n in range(3)]
        assert scores[f"agpo_{name}"]["failed,graded"] == 0
