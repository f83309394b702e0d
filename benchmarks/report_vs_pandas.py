"""The report's aggregation of samples.jsonl against the same in plain pandas: seconds, peak memory, equal results.

    python benchmarks/report_vs_pandas.py                # 9 tasks x 25 methods x 3 seeds x 16 draws x 1,000 items:
                                                         # 10.8 million samples, ten minutes, 6 GB of disk
    python benchmarks/report_vs_pandas.py --scale 0.05   # one twentieth of the methods

The samples are generated. Each side is a process of its own that reads the same files. ``aggregation`` builds the
collection a report is made from (every item kept, every result recomputed and compared with results.json) and fills
the main table; ``pandas`` reads each file with ``read_json(lines=True)`` and groups by item; the ratio is theirs.
``report`` is the whole of ``agpo-bench report``, all tables, tests, figures, formats and the page.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from math import fsum
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from measure import Comparison, Measurement

from agpo_bench import paths
from agpo_bench.config import load_config
from agpo_bench.data.benchmarks import load_task, task_names
from agpo_bench.evaluation.results import PROTOCOL_VERSION, EvalResult, Sample, write_result

ITEMS, DRAWS, METHODS, SEEDS = 1000, 16, 25, (42, 1337, 2026)
LIMIT_SECONDS, LIMIT_BYTES, LEAST_RATIO = 60.0, 2 << 30, 3.0


def generate(root: Path, *, num_methods: int) -> int:
    """Write the runs; returns the number of samples. Draw 0 is greedy, so 16 draws are 15 sampled ones."""
    generator = np.random.default_rng(0)
    count = 0
    recipes = sorted(path.stem for path in paths.definitions("trainers").glob("*.yaml"))
    first = ["agpo", "grpo", "ppo", "dpo", "grpo_ats", "agpo_no_ats", "ppo_adaptive_kl"]
    methods = [*first, *(name for name in recipes if name not in first)][:num_methods]
    for number, method in enumerate(methods):
        for seed in SEEDS:
            run = root / method / f"seed-{seed}"
            run.mkdir(parents=True)
            config = load_config("embedded", seed=seed).model_dump(mode="json")
            (run / paths.CONFIG_FILE).write_text(yaml.safe_dump(config))
            (run / paths.RECIPE_FILE).write_text(yaml.safe_dump({"name": run.parent.name, "title": run.parent.name}))
            (run / paths.LEDGER_FILE).write_text(json.dumps({"budget": 150_000, "used": 150_100, "phases": {}}))
            for task in task_names():
                count += _task(run, task, seed, generator.random((ITEMS, DRAWS)) < 0.3 + 0.01 * number)
    return count


def _task(run: Path, task: str, seed: int, right: np.ndarray) -> int:
    folder = run / paths.EVAL_DIRECTORY / task
    folder.mkdir(parents=True)
    head, middle, tail = _line_parts(task)
    with (folder / paths.SAMPLES_FILE).open("w", encoding="utf-8") as file:
        for item in range(ITEMS):
            scores = np.where(right[item], 1.0, 0.0).tolist()
            file.write("".join(f'{{"doc_id":{item}{head}{d}{middle}{scores[d]}{tail}' for d in range(DRAWS)))
    greedy, sampled = right[:, 0], right[:, 1:]
    result = EvalResult(
        task=task, title=load_task(task).title, language="en", data_source_kind="embedded",
        data_source="generated for the benchmark", data_checksum="0" * 64, split="test", num_items=ITEMS,
        num_draws=DRAWS - 1, accuracy=float(greedy.mean()), score_sum=float(greedy.sum()), stderr=0.01, parse_rate=1.0,
        truncation_rate=0.0, error_count=0, avg_sampled=fsum(sampled.mean(axis=1)) / ITEMS, tokens_eval=1,
        grading_mode="official", protocol_version=PROTOCOL_VERSION, task_version=1, num_few_shot=0,
        few_shot_source="none", max_new_tokens=64, temperature=1.0, top_p=0.95, sampling_seed=0, limit=None,
        is_complete=True, method=run.parent.name, title_method=run.parent.name, seed=seed, tokens_used=150_100,
        budget=150_000, updates_per_rollout=8, model="m", model_fingerprint="f" * 64, generation_key="k", versions={},
        git_commit=None,
    )  # fmt: skip
    write_result(folder / paths.RESULTS_FILE, result)
    return right.size


def _line_parts(task: str) -> tuple[str, str, str]:
    """A real sample line around the three values that differ."""
    text = "Each box holds twelve pens, so 4 boxes hold 4 * 12 = 48 pens. She gives 6 away and keeps 42.\n#### 42"
    line = Sample(
        doc_id=0, prompt_id=f"{task}/test/0", doc_hash="a" * 64, prompt_hash="b" * 64, draw=0, draw_key="c" * 64,
        text=text, answer="42", score=0.0, reason="equal numbers", is_error=False, is_truncated=False, is_leaked=False,
        num_tokens=40,
    ).model_dump_json()  # fmt: skip
    head, rest = line.split('{"doc_id":0', 1)[1].split('"draw":0', 1)
    middle, tail = rest.split('"score":0.0', 1)
    return head + '"draw":', middle + '"score":', tail + "\n"


def aggregation(root: Path) -> dict[str, list[float]]:
    """Collect, recompute, check, and fill the main table."""
    from agpo_bench.reporting.collect import collect
    from agpo_bench.reporting.fill import fill
    from agpo_bench.reporting.spec import TableSpec, load_spec

    collections = collect(root)
    assert not any(one.problem for one in collections[0].evaluated.values())
    spec = load_spec("main_results")
    assert isinstance(spec, TableSpec)
    table = fill("main_results", spec, collections, task_titles=str)
    means = {row.method: [float(cell.mean or 0) for cell in row.cells[:-1]] for row in table.rows}
    pooled: dict[str, list[float]] = {}
    for method in means:
        for task in task_names():
            found = [one for (m, _, t), one in collections[0].evaluated.items() if (m, t) == (method, task)]
            values = [value for one in found if one.scores and (value := one.scores.mean_of_draws()) is not None]
            pooled.setdefault(method, []).append(100 * sum(values) / len(values))
    return {method: means[method] + pooled[method] for method in sorted(means)}


def plain_pandas(root: Path) -> dict[str, list[float]]:
    """What one would write in ten lines."""
    import pandas as pd

    rows = []
    for file in sorted(root.glob(f"*/seed-*/{paths.EVAL_DIRECTORY}/*/{paths.SAMPLES_FILE}")):
        frame = pd.read_json(file, lines=True)
        frame = frame[~frame["is_error"]]
        greedy = frame[frame["draw"] == 0]["score"].mean()
        sampled = frame[frame["draw"] > 0].groupby("doc_id")["score"].mean().mean()
        rows.append((file.parents[3].name, file.parents[0].name, greedy, sampled))
    table = pd.DataFrame(rows, columns=["method", "task", "greedy", "sampled"]).groupby(["method", "task"]).mean() * 100
    values = {key: (float(row["greedy"]), float(row["sampled"])) for key, row in table.iterrows()}
    return {
        method: [values[method, task][column] for column in (0, 1) for task in task_names()]
        for method in sorted({row[0] for row in rows})
    }


def whole_report(root: Path) -> dict[str, list[float]]:
    """Everything the command does."""
    from agpo_bench.reporting.report import build_report

    report = build_report(root, out=root / "report")
    main = report.tables[0].table
    assert main is not None
    return {row.method: [float(cell.mean or 0) for cell in row.cells[:-1]] for row in main.rows}


def measure(which: str, root: Path) -> dict[str, object]:
    """Run one side in this process: wall seconds, CPU seconds, peak memory and its numbers."""
    started, cpu = time.perf_counter(), time.process_time()
    means = {"aggregation": aggregation, "pandas": plain_pandas, "report": whole_report}[which](root)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu,
        "peak_bytes": peak,
        "means": means,
    }


def compare(args: argparse.Namespace) -> list[Comparison]:
    """Two methods of the 25: 864,000 samples."""
    root = Path(tempfile.mkdtemp(prefix="report-bench-"))
    sides: dict[str, list[Measurement]] = {"aggregation": [], "pandas": []}
    try:
        count = generate(root, num_methods=2)
        for _ in range(args.repeats):
            for side, found in sides.items():
                told = run(side, root)
                found.append(
                    Measurement(
                        tokens=count,
                        cpu_seconds=told["cpu_seconds"],
                        wall_seconds=told["seconds"],
                        peak_bytes=told["peak_bytes"],
                    )
                )
    finally:
        shutil.rmtree(root)
    name = f"{count:,} samples of a report, plain pandas"
    ours, peer = sides["aggregation"], sides["pandas"]
    return [Comparison(name=name, ours=ours, peer=peer, target=LEAST_RATIO, what="samples/s")]


def run(side: str, root: Path) -> dict[str, Any]:
    """One side in a process of its own."""
    command = [sys.executable, __file__, "--side", side, "--root", str(root)]
    told: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return told


def main() -> None:
    """Generate, run both, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the 25 methods")
    parser.add_argument("--side", choices=["aggregation", "pandas", "report"], help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help="where the samples go; default: a temporary folder, removed after")
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(measure(arguments.side, arguments.root)))
        return
    root = arguments.root or Path(tempfile.mkdtemp(prefix="report-bench-"))
    try:
        count = generate(root, num_methods=max(1, round(METHODS * arguments.scale)))
        told = {}
        for side in ("aggregation", "pandas", "report"):
            told[side] = run(side, root)
        first, second = (
            np.array([value for _, values in sorted(told[side]["means"].items()) for value in values])
            for side in ("aggregation", "pandas")
        )
        assert np.allclose(first, second, rtol=0, atol=1e-9), "the two sides disagree"
    finally:
        if arguments.root is None:
            shutil.rmtree(root)
    ratio = told["pandas"]["seconds"] / told["aggregation"]["seconds"]
    print(f"{count:,} samples; both sides agree on {first.size} means")
    for side, one in told.items():
        memory = one["peak_bytes"] / 1e9
        print(f"{side:11} {one['seconds']:8.2f} s wall {one['cpu_seconds']:8.2f} s CPU {memory:6.2f} GB")
    print(f"ratio {ratio:.1f} (at least {LEAST_RATIO:g})")
    whole = told["report"]
    if ratio < LEAST_RATIO or whole["seconds"] > LIMIT_SECONDS or whole["peak_bytes"] > LIMIT_BYTES:
        sys.exit(f"too slow or too large: at most {LIMIT_SECONDS:g} s and {LIMIT_BYTES / 1e9:.1f} GB")


if __name__ == "__main__":
    main()
