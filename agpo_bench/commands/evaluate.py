"""``agpo-bench eval``: accuracies of trained runs and of the model they started from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import typer
import yaml
from rich.console import Console
from rich.table import Table

from agpo_bench import paths
from agpo_bench.config import Backend
from agpo_bench.data.benchmarks import Split
from agpo_bench.threads import limit_threads, silence_local_loading

if TYPE_CHECKING:
    from agpo_bench.evaluation.results import EvalResult
    from agpo_bench.evaluation.targets import Wanted
    from agpo_bench.grading.answer import GradingMode


@dataclass(frozen=True, kw_only=True)
class EvalArguments:
    """The options of the command, as given."""

    tasks: str
    run: Path | None
    model: str | None
    out: Path
    data: str | None
    maj: str | None
    temperature: float
    top_p: float
    limit: int | None
    seed: int
    grading: str
    num_few_shot: int
    few_shot_source: str | None
    split: str
    max_new_tokens: int | None
    sampler: str
    checkpoint: str


def run_eval(arguments: EvalArguments) -> None:
    """Evaluate and print one row a model and one column a task."""
    if arguments.run is not None and arguments.model is not None:
        raise ValueError("--run and --model were both given; use one")
    wanted = _wanted(arguments.checkpoint)
    limit_threads(_num_threads(arguments))
    silence_local_loading(arguments.model or "embedded")
    from agpo_bench.data.benchmarks import select_tasks
    from agpo_bench.evaluation.evaluate import EvalOptions, evaluate_runs

    options = EvalOptions(
        tasks=tuple(select_tasks(arguments.tasks)),
        source=arguments.data or ("embedded" if arguments.model == "embedded" else None),
        limit=arguments.limit,
        maj=_draw_counts(arguments.maj),
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        seed=arguments.seed,
        grading=_grading(arguments.grading),
        num_few_shot=arguments.num_few_shot,
        few_shot_source=arguments.few_shot_source,
        split=_split(arguments.split),
        max_new_tokens=arguments.max_new_tokens,
        sampler=_sampler(arguments.sampler),
    )
    console = Console(stderr=True, highlight=False)
    with console.status("evaluating") as status:

        def progress(label: str, task: str, done: int, total: int) -> None:
            status.update(f"{label}: {task} {done}/{total}")

        try:
            results = evaluate_runs(
                arguments.out,
                options=options,
                run=arguments.run,
                model=arguments.model,
                checkpoint=wanted,
                progress=progress,
            )
        except KeyboardInterrupt:
            console.print("stopped; finished answers are kept: the same command goes on from them")
            raise typer.Exit(130) from None
    print_results(results)
    if arguments.run is not None:
        from agpo_bench.evaluation.targets import trained_target

        target = trained_target(arguments.run, may_be_unfinished=True, wanted=wanted)
        Console(highlight=False, soft_wrap=True).print(
            f"{wanted} checkpoint: {Path(target.model).parent}, {target.tokens_used:,} tokens; results in "
            f"{target.directory / paths.EVAL_DIRECTORY}",
            markup=False,
        )


def print_results(results: Sequence[EvalResult]) -> None:
    """Accuracy in percent with n, parse rate and truncation rate beneath; Maj@k behind it where it was asked for."""
    tasks = list(dict.fromkeys(result.task for result in results))
    table = Table("model", *tasks, "mean", box=None, pad_edge=False)
    by_model: dict[tuple[str, int | None], dict[str, EvalResult]] = {}
    for result in results:
        by_model.setdefault((result.title_method, result.seed), {})[result.task] = result
    for (title, seed), row in by_model.items():
        scores = [found.accuracy for found in row.values() if found.accuracy is not None]
        mean = f"{100 * sum(scores) / len(scores):.1f}" if len(scores) == len(tasks) else "-"
        label = title if seed is None else f"{title} seed {seed}"
        table.add_row(label, *(_cell(row.get(task)) for task in tasks), mean)
    console = Console(highlight=False)
    (console if console.is_terminal else Console(width=240, highlight=False)).print(table)
    sources = sorted({result.data_source for result in results})
    console.print(
        f"accuracy in percent; below it n, parse rate, truncation rate. Data: {', '.join(sources)}", markup=False
    )
    incomplete = [result for result in results if not result.is_complete]
    for result in incomplete:
        console.print(
            f"warning: {result.title_method} on {result.task}: {result.error_count} of {result.num_items} items could "
            "not be graded; run eval again",
            markup=False,
        )


def _cell(result: EvalResult | None) -> str:
    if result is None:
        return "-"
    accuracy = "-" if result.accuracy is None else f"{100 * result.accuracy:.1f}"
    maj = "".join(f" maj@{k} {100 * value:.1f}" for k, value in sorted(result.maj.items()))
    parsed = "-" if result.parse_rate is None else f"{100 * result.parse_rate:.0f}%"
    return f"{accuracy}{maj}\n{result.num_items} {parsed} {100 * result.truncation_rate:.0f}%"


def _draw_counts(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise ValueError(f"--maj {text!r}: write whole numbers separated by commas, such as 4,64") from None


def _grading(mode: str) -> GradingMode:
    from agpo_bench.grading.answer import GradingMode as Mode

    valid: tuple[GradingMode, ...] = get_args(Mode)
    for known in valid:
        if mode == known:
            return known
    raise ValueError(f"no grading mode {mode!r}; there are {', '.join(valid)}")


def _split(name: str) -> Split:
    valid: tuple[Split, ...] = get_args(Split)
    for known in valid:
        if name == known:
            return known
    raise ValueError(f"no split {name!r}; there are {', '.join(valid)}")


def _wanted(name: str) -> Wanted:
    from agpo_bench.evaluation.targets import Wanted as Kind

    valid: tuple[Wanted, ...] = get_args(Kind)
    for known in valid:
        if name == known:
            return known
    raise ValueError(f"no checkpoint {name!r}; there are {', '.join(valid)}")


def _sampler(name: str) -> Backend:
    valid: tuple[Backend, ...] = get_args(Backend)
    for known in valid:
        if name == known:
            return known
    raise ValueError(f"no sampler {name!r}; there are {', '.join(valid)}")


def _num_threads(arguments: EvalArguments) -> int | None:
    """Threads of the runs' config: a tiny model is faster on one, and two spinning threads slow each other down."""
    if arguments.model is not None:
        return 1 if arguments.model == "embedded" else None
    configs = [arguments.run / paths.CONFIG_FILE] if arguments.run else arguments.out.glob(f"*/*/{paths.CONFIG_FILE}")
    for file in sorted(configs):
        if file.is_file():
            threads: int | None = yaml.safe_load(file.read_text(encoding="utf-8")).get("num_threads")
            return threads
    return None
