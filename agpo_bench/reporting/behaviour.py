"""What the runs of a folder did, one sentence a method: for the page of methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

from agpo_bench import paths
from agpo_bench.reporting.collect import Collection, TrainedRun, collect
from agpo_bench.reporting.run_statistics import metric_series

_LAST = {"eps": "ctrl/eps", "tau": "ctrl/tau", "H": "ctrl/H"}
"""Clip radius, sampling temperature, mean token entropy (nats, temperature 1)."""


def measured_behaviour(root: Path) -> dict[str, str]:
    """A sentence for each method with results below ``root``.

    Accuracy is the mean over benchmarks within a seed, then the mean and the deviation (ddof 1) over seeds; only seeds
    with a final result on every benchmark that any run has count. eps, tau and H are those of a run's
    last step that has them, averaged over seeds. Speed is left to the throughput table: on a page it would compare runs
    that shared their machine with different work.
    """
    collections = collect(root)
    if len(collections) > 1:
        models = ", ".join(collection.model for collection in collections)
        raise ValueError(f"{root} holds runs from several models ({models}); give the folder of one experiment")
    (collection,) = collections
    tasks = sorted({task for _, _, task in collection.evaluated})
    initial = _accuracy(collection, paths.INITIAL_MODEL, None, tasks)
    return {method: _sentence(collection, method, tasks, initial) for method in collection.methods}


def _accuracy(collection: Collection, method: str, seed: int | None, tasks: Sequence[str]) -> float | None:
    found = [collection.evaluated.get((method, seed, task)) for task in tasks]
    values = [one.result.accuracy for one in found if one is not None and not one.problem]
    numbers = [value for value in values if value is not None]
    return mean(numbers) if numbers and len(numbers) == len(tasks) else None


def _sentence(collection: Collection, method: str, tasks: Sequence[str], initial: float | None) -> str:
    runs = collection.runs_of(method)
    sources = sorted({one.result.data_source for key, one in collection.evaluated.items() if key[0] == method})
    budgets = sorted({run.budget for run in runs})
    parts = [f"{'; '.join(sources)}, {' or '.join(f'{budget:,}' for budget in budgets)} tokens"]
    scores = [_accuracy(collection, method, seed, tasks) for seed in collection.seeds(method)]
    complete = [score for score in scores if score is not None]
    if complete:
        spread = f" ± {100 * stdev(complete):.1f}" if len(complete) > 1 else ""
        before = "" if initial is None else f" (initial model {100 * initial:.1f})"
        parts.append(
            f"accuracy {100 * mean(complete):.1f}{spread} %{before}, mean over {len(tasks)} benchmarks, "
            f"{len(complete)} seed{'s' if len(complete) > 1 else ''}"
        )
    else:
        parts.append("no seed has a final result on every benchmark")
    last = [_last_values(run) for run in runs]
    ends = [f"{name} {mean(values):.3f}" for name in _LAST if (values := [one[name] for one in last if name in one])]
    if ends:
        parts.append("at the end " + ", ".join(ends))
    return "; ".join(parts) + "."


def _last_values(run: TrainedRun) -> Mapping[str, float]:
    series = {name: metric_series(run, key)[1] for name, key in _LAST.items()}
    return {name: float(values[-1]) for name, values in series.items() if len(values)}
