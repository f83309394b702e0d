"""``agpo-bench train --dry-run``: what can be known before a run starts, without a GPU and without training."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from agpo_bench.commands.train import PlannedRun, TrainArguments, chosen_seeds, plan, split_changes
from agpo_bench.config import RunConfig, load_config
from agpo_bench.planning.adapters import adapters_of
from agpo_bench.planning.checks import (
    Check,
    check_data,
    check_memory,
    check_model,
    check_output,
    check_packages,
    guarded,
    launch_lines,
    plans_of,
)
from agpo_bench.planning.needs import needs_of
from agpo_bench.planning.plan import Hardware, machine_of
from agpo_bench.planning.shapes import find_shape

_OWN_FLAGS = ("--dry-run",)
_OWN_OPTIONS = ("--gpus", "--gpu-memory", "--gpus-per-node", "--host-memory")


def run_dry(arguments: TrainArguments, hardware: Hardware) -> None:
    """Print one sentence a check and how to start; exit with 1 if a check fails."""
    checks = _checks(arguments, hardware)
    for check in checks:
        typer.echo(str(check))
    if any(check.outcome == "FAIL" for check in checks):
        typer.echo("nothing was started; a check failed", err=True)
        raise typer.Exit(1)
    machine = machine_of(_configs(arguments)[0], hardware)
    typer.echo("to start:")
    if hardware.num_gpus > 1:
        typer.echo("  export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=1800  # seconds for a last step and a checkpoint; else 30")
    for line in launch_lines(
        own_words(sys.argv[1:]),
        engine=machine.engine,
        num_gpus=hardware.num_gpus,
        gpus_per_node=hardware.gpus_per_node,
    ):
        typer.echo(f"  {line}")


def _configs(arguments: TrainArguments) -> list[RunConfig]:
    config_changes, _ = split_changes(arguments.changes)
    fields = {name: value for name, value in arguments.fields.items() if value is not None} | config_changes
    return [load_config(arguments.preset, **(fields | {"seed": seed})) for seed in chosen_seeds(arguments, fields)]


def _checks(arguments: TrainArguments, hardware: Hardware) -> list[Check]:
    """All checks; those that need the ones before them are left out once these fail."""
    configs: list[RunConfig] = []
    runs: list[PlannedRun] = []

    def config_sentence() -> str:
        configs.extend(_configs(arguments))
        seeds = ", ".join(str(config.seed) for config in configs)
        machine = machine_of(configs[0], hardware)
        return (
            f"preset {arguments.preset}, {configs[0].budget:,} tokens a run, seeds {seeds}, engine {machine.engine}, "
            f"sampler {machine.sampler}, {machine.dtype}"
        )

    def recipe_sentence() -> str:
        _, recipe_changes = split_changes(arguments.changes)
        runs.extend(plan(arguments, configs, recipe_changes, starts_here=False))
        names = list(dict.fromkeys(run.method.name for run in runs))
        return f"{len(runs)} run{'s' * (len(runs) != 1)} of {', '.join(names)}, each with a budget for whole batches"

    found = [guarded("config", config_sentence)]
    if not configs:
        return found
    found.append(guarded("recipe", recipe_sentence))
    found.append(guarded("data", lambda: check_data(configs[0])))
    needs = list({run.method.name: needs_of(run.method) for run in runs}.values())
    shapes = guarded("sizes", lambda: _sizes(configs[0]))
    found.append(shapes)
    if shapes.outcome == "FAIL":
        return found
    shape = find_shape(configs[0].model, revision=configs[0].revision)
    found += check_model(configs[0], shape)
    if not needs:
        return found
    plans = plans_of(configs[0], needs, hardware)
    found.append(guarded("output", lambda: check_output(arguments.out, plans, num_seeds=len(configs))))
    found += check_packages(configs[0])
    found += [check_memory(one) for one in plans]
    return found


def _sizes(config: RunConfig) -> str:
    shape = find_shape(config.model, revision=config.revision)
    adapters = adapters_of(shape, machine_of(config, Hardware()))
    beside = "" if adapters is None else f", {adapters.num_parameters:,} of adapters beside them"
    sizes = f"{shape.num_parameters:,} parameters, {shape.num_layers} layers of {shape.family}"
    return f"{sizes}, from {shape.source}{beside}"


def own_words(argv: Sequence[str]) -> list[str]:
    """The command line without what belongs to the dry run."""
    words: list[str] = []
    skip = False
    for word in argv:
        if skip:
            skip = False
        elif word in _OWN_OPTIONS:
            skip = True
        elif word not in _OWN_FLAGS and not word.startswith(tuple(f"{option}=" for option in _OWN_OPTIONS)):
            words.append(word)
    return words
