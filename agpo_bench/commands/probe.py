"""``agpo-bench data probe``: whether a model knows benchmark items by heart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from agpo_bench.data.benchmarks import Split
    from agpo_bench.data.rows import Item

_EMBEDDED_ANSWER_TOKENS = 40
_NUM_FRESH = 200


def run_probe(
    *,
    model: str,
    tasks: str,
    data: str,
    split: str,
    limit: int | None,
    max_new_tokens: int | None,
    seed: int,
    report: Path | None,
) -> None:
    """Probe a model on several benchmarks; prints a line a probe and a verdict a benchmark."""
    from agpo_bench.data.benchmarks import SPLITS, load_task, open_source, select_tasks
    from agpo_bench.evaluation.memorization import probe_memorization
    from agpo_bench.files import write_whole
    from agpo_bench.rollout.torch_sampler import TorchSampler
    from agpo_bench.training.model import load_model
    from agpo_bench.training.setup import model_path

    if split not in SPLITS:
        raise ValueError(f"no split {split!r}; benchmarks have {', '.join(SPLITS)}")
    source = open_source(data)
    loaded = load_model(model_path(model))
    sampler = TorchSampler(loaded)
    if source.kind == "embedded":
        max_new_tokens = max_new_tokens or _EMBEDDED_ANSWER_TOKENS
    table = Table("benchmark", "probe", "items", "control", "difference", "99 % interval", box=None, pad_edge=False)
    results = []
    for name in select_tasks(tasks):
        task = load_task(name)
        result = probe_memorization(
            loaded,
            sampler,
            source.load(task, split),
            fresh=fresh_items(name, split, seed=seed) if source.kind == "embedded" else (),
            limit=limit,
            max_new_tokens=max_new_tokens,
            seed=seed,
        )
        results.append(result)
        for probe, one in result.probes.items():
            interval = f"{one.low:+.3f} to {one.high:+.3f}"
            table.add_row(name, probe, f"{one.items:.3f}", f"{one.control:.3f}", f"{one.difference:+.3f}", interval)
    console = Console(highlight=False)
    (console if console.is_terminal else Console(width=400, highlight=False)).print(table)
    for result in results:
        typer.echo(result.verdict)
    num_tokens = sum(result.num_tokens for result in results)
    typer.echo(f"{num_tokens:,} tokens sampled by the probes, outside every budget")
    if report is not None:
        content = [result.model_dump(mode="json") | {"verdict": result.verdict} for result in results]
        write_whole(report, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def fresh_items(task: str, split: Split, *, seed: int) -> list[Item]:
    """Problems of the same families as a split that are not among its items."""
    from itertools import islice

    from agpo_bench.data.embedded.items import drawn_problems, embedded_items
    from agpo_bench.data.rows import Item

    assert split != "validation"
    held = {item.prompt for item in embedded_items(task, split)}
    drawn = islice(drawn_problems(task, split, seed=seed + 1), 10 * _NUM_FRESH)
    prompts = {problem.prompt: problem for problem in drawn if problem.prompt not in held}
    return [
        Item(prompt_id=f"{task}/fresh/{number}", reference=problem.reference, prompt=prompt)
        for number, (prompt, problem) in enumerate(list(prompts.items())[:_NUM_FRESH])
    ]
