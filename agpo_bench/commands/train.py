"""``agpo-bench train``: one run a method and seed, one after another or several at a time."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer
import yaml
from rich.console import Console

from agpo_bench import paths
from agpo_bench.commands.mistakes import in_one_sentence
from agpo_bench.config import PRESETS, RunConfig, load_config
from agpo_bench.threads import limit_threads, num_cores, silence_local_loading
from agpo_bench.training.stop_requests import exit_status
from agpo_bench.training.world import (
    ALONE,
    LOCAL_RANK_OPTIONS,
    World,
    launched_size,
    launched_world,
    processes_per_machine,
)

if TYPE_CHECKING:
    from agpo_bench.methods.method import Method
    from agpo_bench.training.run import RunOutcome


@dataclass(frozen=True, kw_only=True)
class TrainArguments:
    """The options of the command, as given."""

    method: str
    preset: str
    fields: Mapping[str, Any]
    """Config fields with an option of their own; None where the option was not given."""
    seed: int | None
    seeds: str | None
    out: Path
    resume: bool
    changes: tuple[str, ...]
    jobs: int | None
    """Processes at the same time; None decides by the number of cores and the threads a run takes."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run before it starts."""

    config: RunConfig
    method: Method
    selector: str
    """What ``--method`` called it."""
    directory: Path

    @property
    def label(self) -> str:
        """Method and seed."""
        return f"{self.method.name} seed {self.config.seed}"

    @property
    def replays(self) -> bool:
        """Whether the method reads the log of another run."""
        return bool(self.method.logs)


def print_presets() -> None:
    """What each preset sets."""
    console = Console()
    for name, fields in PRESETS.items():
        console.print(f"[bold]{name}[/bold]: " + ", ".join(f"{key}={value}" for key, value in fields.items()))


def run_train(arguments: TrainArguments) -> None:
    """Plan the runs, refuse what cannot work before the first one starts, and train."""
    config_changes, recipe_changes = split_changes(arguments.changes)
    fields = {name: value for name, value in arguments.fields.items() if value is not None} | config_changes
    seeds = chosen_seeds(arguments, fields)
    configs = [load_config(arguments.preset, **(fields | {"seed": seed})) for seed in seeds]
    num_processes = launched_size()
    if num_processes > 1 and arguments.jobs not in (None, 1):
        raise ValueError(
            f"--jobs {arguments.jobs}: the {num_processes} processes of a launcher share one run at a time"
        )
    # Several one-thread runs share the cores; a model that uses every core, or an engine of its own, runs alone.
    is_small = configs[0].num_threads == 1 and configs[0].sampler == "torch"
    jobs = arguments.jobs or (num_cores() if is_small and num_processes == 1 else 1)
    limit_threads(configs[0].num_threads if jobs == 1 else 1, sharing=processes_per_machine())
    silence_local_loading(configs[0].model)
    if jobs == 1:
        with launched_world(device=configs[0].device) as world:
            _train_in_turn(arguments, plan(arguments, configs, recipe_changes), world)
        return
    runs = plan(arguments, configs, recipe_changes)
    if len(runs) > 1:
        _train_in_processes(arguments, runs, jobs=jobs)
    else:
        _train_in_turn(arguments, runs, ALONE)


def _train_in_turn(arguments: TrainArguments, runs: Sequence[PlannedRun], world: World) -> None:
    for number, run in enumerate(runs, start=1):
        outcome = train_one(run, resume=arguments.resume, world=world)
        if not outcome.is_finished or (outcome.stopped_by and number < len(runs)):
            if world.is_main:
                again = resume_command(sys.argv) if world.size == 1 else "the same command with --resume"
                typer.echo(f"stopped; to continue: {again}", err=True)
            raise typer.Exit(exit_status(outcome.stopped_by))


def split_changes(changes: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """``--set`` values: ``slot.field=value`` for the recipe, a config field's name for the config."""
    config: dict[str, Any] = {}
    recipe: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or not name:
            raise ValueError(f"--set {change!r} is not of the form name=value")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ValueError(f"--set {name}: {text!r} cannot be read as a value") from None
        if name in RunConfig.model_fields:
            config[name] = value
        elif "." in name:
            recipe[name] = value
        else:
            raise ValueError(
                f"no config field {name!r}; the fields are {', '.join(RunConfig.model_fields)}; "
                "a recipe's are written slot.field"
            )
    return config, recipe


def chosen_seeds(arguments: TrainArguments, fields: Mapping[str, Any]) -> list[int]:
    """``--seeds``, else ``--seed``, else the config's."""
    if arguments.seeds is None:
        seed = (
            arguments.seed if arguments.seed is not None else fields.get("seed", RunConfig.model_fields["seed"].default)
        )
        return [int(seed)]
    if arguments.seed is not None:
        raise ValueError("--seed and --seeds were both given; use one")
    try:
        seeds = [int(part) for part in arguments.seeds.split(",")]
    except ValueError:
        raise ValueError(f"--seeds {arguments.seeds!r}: write whole numbers separated by commas") from None
    return list(dict.fromkeys(seeds))


def plan(
    arguments: TrainArguments,
    configs: Sequence[RunConfig],
    recipe_changes: Mapping[str, Any],
    *,
    starts_here: bool = True,
) -> list[PlannedRun]:
    """Every run of the command, checked; those that replay another run's log come last.

    What is meant for another machine (``starts_here`` false) may need packages that are not installed on this one.
    """
    from agpo_bench.methods.recipe import load_method
    from agpo_bench.methods.registry import method_names
    from agpo_bench.training.setup import check, check_settings

    selectors = method_names() if arguments.method == "all" else [part.strip() for part in arguments.method.split(",")]
    runs = []
    for selector in dict.fromkeys(selectors):
        method = load_method(selector, recipe_changes)
        if "group_size" in _explicit(arguments) and method.group_size not in (None, 1, configs[0].group_size):
            raise ValueError(
                f"{method.name}: its recipe fixes group_size {method.group_size}, so --set group_size would do nothing"
            )
        for config in configs:
            (check if starts_here else check_settings)(config, method)
            directory = paths.run_directory(arguments.out, method=method.name, seed=config.seed)
            runs.append(PlannedRun(config=config, method=method, selector=selector, directory=directory))
    runs.sort(key=lambda run: run.replays)
    if not arguments.resume:
        for run in runs:
            if (run.directory / paths.CONFIG_FILE).exists():
                raise ValueError(
                    f"{run.directory} already holds a run; add --resume to continue it, or choose another --out"
                )
    return runs


def _explicit(arguments: TrainArguments) -> set[str]:
    return {change.partition("=")[0] for change in arguments.changes}


def train_one(run: PlannedRun, *, resume: bool, world: World = ALONE) -> RunOutcome:
    """Train one run behind a progress bar and say how it ended; of several processes the main one does."""
    from agpo_bench.training.metrics import StepRecord
    from agpo_bench.training.progress import ProgressBar
    from agpo_bench.training.run import train
    from agpo_bench.training.session import Session

    started = time.perf_counter()
    bar: ProgressBar | None = None

    def on_start(session: Session) -> None:
        nonlocal bar
        if not world.is_main:
            return
        bar = ProgressBar(run.label, budget=session.ledger.budget, used=session.ledger.used)
        bar.start()

    def on_step(session: Session, record: StepRecord) -> None:
        if bar is not None:
            bar.show(used=session.ledger.used, metrics=record.values)

    try:
        outcome = train(
            run.config,
            run.method,
            directory=run.directory,
            resume=resume,
            on_start=on_start,
            on_step=on_step,
            world=world,
        )
    finally:
        if bar is not None:
            bar.stop()
    if not world.is_main:
        return outcome
    if outcome.was_skipped:
        typer.echo(f"{run.label}: finished before ({outcome.tokens_used:,} tokens); nothing to do")
    elif outcome.is_finished:
        typer.echo(
            f"{run.label}: {outcome.tokens_used:,} tokens in {outcome.num_steps} steps, {outcome.overshoot:,} over the "
            f"budget of {run.config.budget:,}, {time.perf_counter() - started:.0f} s -> {run.directory}"
        )
    else:
        typer.echo(f"{run.label}: checkpoint after {outcome.num_steps} steps, {outcome.tokens_used:,} tokens")
    return outcome


def resume_command(argv: Sequence[str]) -> str:
    """The command line that was typed, with ``--resume``; without what a launcher put in."""
    typed = [word for word in argv[1:] if word != "--resume" and not word.startswith(LOCAL_RANK_OPTIONS)]
    words = ["agpo-bench", *typed, "--resume"]
    return " ".join(f"'{word}'" if " " in word else word for word in words)


def _train_in_processes(arguments: TrainArguments, runs: Sequence[PlannedRun], *, jobs: int) -> None:
    """Share the runs among ``jobs`` processes of one thread each; those that replay a log wait for all others."""
    left = [run.label for run in runs]
    has_failed = False
    for group in ([run for run in runs if not run.replays], [run for run in runs if run.replays]):
        found, stopped_by = _share_out(arguments, group, jobs=min(jobs, len(group)))
        left = [label for label in left if not found.get(label)]
        has_failed = has_failed or not all(found.values())
        if stopped_by:
            break
    if left:
        more = f" and {len(left) - 5} more" * (len(left) > 5)
        typer.echo(f"not finished: {', '.join(left[:5])}{more}; to continue: {resume_command(sys.argv)}", err=True)
        raise typer.Exit(exit_status(stopped_by) if stopped_by and not has_failed else 1)


def _share_out(arguments: TrainArguments, runs: Sequence[PlannedRun], *, jobs: int) -> tuple[dict[str, bool], int]:
    """Labels of the runs that ended, with whether they were finished or failed, and the signal that stopped the others.

    Those leave checkpoints; the signal is 0 for none.
    """
    # Spawned, not forked: a child must read the thread settings before it imports torch, and CUDA cannot be forked.
    context = multiprocessing.get_context("spawn")
    # Numbers, which all fit into the pipe at once: this process must not wait to hand out what nobody takes any more.
    waiting: multiprocessing.SimpleQueue[int | None] = context.SimpleQueue()
    ended: multiprocessing.SimpleQueue[tuple[int, bool]] = context.SimpleQueue()
    workers = [context.Process(target=_work, args=(runs, waiting, ended, arguments.resume)) for _ in range(jobs)]

    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for worker in workers:
            if worker.is_alive():
                worker.terminate()

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in [*range(len(runs)), *[None] * jobs]:
            waiting.put(number)
        started = []
        for worker in workers:
            if received:
                break
            worker.start()
            started.append(worker)
            if received:  # it came while this one was not yet known to be alive
                worker.terminate()
        for worker in started:
            worker.join()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    found = {}
    while not ended.empty():
        number, is_finished = ended.get()
        found[runs[number].label] = is_finished
    return found, received[0] if received else 0


def _work(
    runs: Sequence[PlannedRun],
    waiting: multiprocessing.SimpleQueue[int | None],
    ended: multiprocessing.SimpleQueue[tuple[int, bool]],
    resume: bool,
) -> None:
    """One process: take runs until there are none, or until a run was stopped."""
    while (number := waiting.get()) is not None:
        run = runs[number]
        try:
            outcome = train_one(run, resume=resume)
        except (ValueError, OSError) as error:
            typer.echo(f"error: {run.label}: {in_one_sentence(error)}", err=True)
            ended.put((number, False))
            continue
        if outcome.is_finished:
            ended.put((number, True))
        if outcome.stopped_by:
            return
