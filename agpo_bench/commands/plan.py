"""``agpo-bench plan``: whether a run fits a machine and what it costs, before anything is downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import typer

from agpo_bench.config import load_config
from agpo_bench.methods.registry import method_names
from agpo_bench.planning.cost import Rates
from agpo_bench.planning.needs import read_needs
from agpo_bench.planning.plan import Hardware, Plan, make_plan
from agpo_bench.planning.report import advice_lines, cost_lines, describe, memory_lines
from agpo_bench.planning.shapes import find_shape
from agpo_bench.planning.workload import Lengths


@dataclass(frozen=True, kw_only=True)
class PlanArguments:
    """The options of the command, as given."""

    method: str
    preset: str
    fields: Mapping[str, Any]
    """Config fields with an option of their own; None where the option was not given."""
    changes: tuple[str, ...]
    hardware: Hardware
    rates: Rates
    prompt_tokens: int | None
    response_tokens: float | None


def run_plan(arguments: PlanArguments) -> None:
    """Print the plan."""
    plans = make_plans(arguments)
    for line in describe(plans[0]):
        typer.echo(line)
    heaviest = max(plans, key=lambda plan: plan.memory.peak_bytes)
    shown = plans if len(plans) == 1 else [heaviest]
    for plan in shown:
        typer.echo()
        if len(plans) > 1:
            typer.echo(f"Of {len(plans)} methods {plan.needs.name} takes most:")
        for line in (*memory_lines(plan), *advice_lines(plan)):
            typer.echo(line)
    typer.echo()
    for line in cost_lines(plans, arguments.rates):
        typer.echo(line)


def make_plans(arguments: PlanArguments) -> list[Plan]:
    """One plan a method; every mistake is a ValueError before anything is printed."""
    from agpo_bench.commands.train import split_changes

    config_changes, recipe_changes = split_changes(arguments.changes)
    fields = {name: value for name, value in arguments.fields.items() if value is not None} | config_changes
    config = load_config(arguments.preset, **fields)
    shape = find_shape(config.model, revision=config.revision)
    lengths = Lengths.of(config, prompt=arguments.prompt_tokens, mean_response=arguments.response_tokens)
    names = method_names() if arguments.method == "all" else [part.strip() for part in arguments.method.split(",")]
    return [
        make_plan(config, shape, read_needs(name, recipe_changes), arguments.hardware, lengths)
        for name in dict.fromkeys(names)
    ]
