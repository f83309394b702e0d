"""The command line: read arguments, call one function, print. Imports nothing heavy before a command runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import agpo_bench
from agpo_bench.training.world import LOCAL_RANK_OPTIONS, check_local_rank, end_well, launched_size

app = typer.Typer(
    name="agpo-bench",
    help="Train language models with many policy-optimisation methods under one generated-token budget, "
    "evaluate them on nine benchmarks, and print the comparison.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Tasks = Annotated[str, typer.Option(help="Benchmarks separated by commas, or all.")]
Out = Annotated[Path, typer.Option(help="Folder of the runs.")]


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"agpo-bench {agpo_bench.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_print_version, is_eager=True)
    ] = False,
    local_rank: Annotated[int | None, typer.Option(*LOCAL_RANK_OPTIONS, hidden=True)] = None,
) -> None:
    del version
    if local_rank is not None:
        check_local_rank(local_rank)


@app.command()
def train(
    *,
    method: Annotated[
        str, typer.Option(help="Names of recipes or paths of recipe files, separated by commas; or all.")
    ] = "agpo",
    preset: Annotated[str, typer.Option(help="Defaults to start from: see --list-presets.")] = "embedded",
    model: Annotated[str | None, typer.Option(help="A local model directory or a hub id.")] = None,
    data: Annotated[str | None, typer.Option(help="embedded, hub, or a directory of benchmark files.")] = None,
    tasks: Annotated[str | None, typer.Option(help="Benchmarks separated by commas, or all.")] = None,
    budget: Annotated[str | None, typer.Option(help="Generated tokens a run: 300M, 150k, 6000.")] = None,
    dedup: Annotated[
        str | None, typer.Option(help="Training problems that are test items: strict leaves them out, report, off.")
    ] = None,
    sampler: Annotated[str | None, typer.Option(help="What draws the rollouts: torch or vllm.")] = None,
    seed: Annotated[int | None, typer.Option(help="One seed.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Several seeds separated by commas: one run each.")] = None,
    out: Out = Path("runs"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue unfinished runs, skip finished ones.")] = False,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="slot.field=value changes the recipe, field=value the config. Repeatable."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at the same time; default: one a core if a run takes one thread.")
    ] = None,
    list_presets: Annotated[bool, typer.Option("--list-presets", help="Print what each preset sets and stop.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything that can be known before, print how to start, and stop.")
    ] = False,
    gpus: Annotated[int, typer.Option(min=1, help="For --dry-run: devices the run is meant for.")] = 1,
    gpu_memory: Annotated[float | None, typer.Option(min=0.1, help="For --dry-run: GiB of a device.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(min=1, help="For --dry-run: devices of a node.")] = None,
    host_memory: Annotated[float | None, typer.Option(min=1, help="For --dry-run: GiB of a node, for offload.")] = None,
) -> None:
    """Train with one or several methods under one token budget."""
    from agpo_bench.commands.train import TrainArguments, print_presets, run_train

    if list_presets:
        print_presets()
        return
    arguments = TrainArguments(
        method=method,
        preset=preset,
        fields={
            "model": model,
            "data": data,
            "tasks": tasks,
            "budget": budget,
            "dedup": dedup,
            "sampler": sampler,
        },
        seed=seed,
        seeds=seeds,
        out=out,
        resume=resume,
        changes=tuple(changes or ()),
        jobs=jobs,
    )
    if dry_run:
        from agpo_bench.commands.dry_run import run_dry
        from agpo_bench.planning.plan import Hardware

        hardware = Hardware(num_gpus=gpus, gpu_gib=gpu_memory, host_gib=host_memory, gpus_per_node=gpus_per_node)
        run_dry(arguments, hardware)
        return
    if gpus != 1 or any(option is not None for option in (gpu_memory, gpus_per_node, host_memory)):
        raise ValueError(
            "--gpus, --gpu-memory, --gpus-per-node and --host-memory describe a machine to --dry-run and to plan; "
            "a run takes as many devices as torchrun or deepspeed starts processes"
        )
    run_train(arguments)


@app.command()
def plan(
    *,
    method: Annotated[
        str, typer.Option(help="Names of recipes or paths of recipe files, separated by commas; or all.")
    ] = "agpo",
    preset: Annotated[str, typer.Option(help="Defaults to start from: see train --list-presets.")] = "embedded",
    model: Annotated[str | None, typer.Option(help="A local model directory or a hub id.")] = None,
    gpus: Annotated[int, typer.Option(min=1, help="Devices, one training process each.")] = 1,
    gpu_memory: Annotated[float | None, typer.Option(min=0.1, help="Memory of a device in GiB.")] = None,
    host_memory: Annotated[float | None, typer.Option(min=1, help="Memory of a node in GiB, for offload.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(min=1, help="Devices of a node; default: all.")] = None,
    engine: Annotated[str | None, typer.Option(help="torch or deepspeed.")] = None,
    zero: Annotated[int | None, typer.Option(min=1, max=3, help="ZeRO stage of the deepspeed engine.")] = None,
    offload: Annotated[str | None, typer.Option(help="What goes to host memory: none, optimizer, parameters.")] = None,
    budget: Annotated[str | None, typer.Option(help="Generated tokens a run: 300M, 150k, 6000.")] = None,
    prompt_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of a usual prompt.")] = None,
    response_tokens: Annotated[float | None, typer.Option(min=1, help="Mean tokens of a response.")] = None,
    peak_tflops: Annotated[float, typer.Option(min=0.001, help="Dense operations a second of a device, 1e12.")] = 312.0,
    mfu: Annotated[float, typer.Option(min=0.001, max=1, help="Share of it that training passes reach.")] = 0.35,
    generation_mfu: Annotated[float, typer.Option(min=0.001, max=1, help="Share that decoding reaches.")] = 0.10,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="slot.field=value changes the recipe, field=value the config. Repeatable."),
    ] = None,
) -> None:
    """Say whether a run fits a machine, why, and what it costs, before anything is downloaded."""
    from agpo_bench.commands.plan import PlanArguments, run_plan
    from agpo_bench.planning.cost import Rates
    from agpo_bench.planning.plan import Hardware

    run_plan(
        PlanArguments(
            method=method,
            preset=preset,
            fields={"model": model, "budget": budget, "engine": engine, "zero_stage": zero, "offload": offload},
            changes=tuple(changes or ()),
            hardware=Hardware(num_gpus=gpus, gpu_gib=gpu_memory, host_gib=host_memory, gpus_per_node=gpus_per_node),
            rates=Rates(peak_tflops=peak_tflops, mfu=mfu, generation_mfu=generation_mfu),
            prompt_tokens=prompt_tokens,
            response_tokens=response_tokens,
        )
    )


@app.command("eval")
def evaluate(
    *,
    tasks: Tasks = "all",
    run: Annotated[Path | None, typer.Option(help="One run directory; default: every run under --out.")] = None,
    model: Annotated[str | None, typer.Option(help="A model directory or hub id instead of runs.")] = None,
    out: Out = Path("runs"),
    data: Annotated[str | None, typer.Option(help="embedded, hub, or a directory; default: as trained.")] = None,
    maj: Annotated[str | None, typer.Option(help="Maj@k for these k, separated by commas: 4,64.")] = None,
    temperature: Annotated[float, typer.Option(help="Sampling temperature of the Maj@k draws.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Nucleus mass of the Maj@k draws.")] = 0.95,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N items of each benchmark.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the Maj@k draws.")] = 0,
    grading: Annotated[str, typer.Option(help="official, or a published rule with its defects: deepseek, lm_eval.")] = (
        "official"
    ),
    few_shot: Annotated[int, typer.Option(min=0, help="Solved examples before each question.")] = 0,
    few_shot_source: Annotated[
        str | None, typer.Option(help="Where they come from: train, dev, lm_eval or deepseek; default: the task's own.")
    ] = None,
    split: Annotated[str, typer.Option(help="Which questions: test, dev or train.")] = "test",
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of a response; default: as trained, else as the task says.")
    ] = None,
    sampler: Annotated[str, typer.Option(help="What draws the responses: torch or vllm.")] = "torch",
    checkpoint: Annotated[
        str, typer.Option(help="Of --run: newest, or best, which keep_best=reward marked; those results lie apart.")
    ] = "newest",
) -> None:
    """Evaluate trained runs and always the initial model; resumes where it stopped."""
    from agpo_bench.commands.evaluate import EvalArguments, run_eval

    run_eval(
        EvalArguments(
            tasks=tasks,
            run=run,
            model=model,
            out=out,
            data=data,
            maj=maj,
            temperature=temperature,
            top_p=top_p,
            limit=limit,
            seed=seed,
            grading=grading,
            num_few_shot=few_shot,
            few_shot_source=few_shot_source,
            split=split,
            max_new_tokens=max_new_tokens,
            sampler=sampler,
            checkpoint=checkpoint,
        )
    )


@app.command()
def report(
    *,
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    formats: Annotated[str, typer.Option("--format", help="md, tex, html, csv; separated by commas.")] = (
        "md,tex,html,csv"
    ),
    out: Annotated[Path | None, typer.Option(help="Folder of the report; default: RUNS/report.")] = None,
    specs: Annotated[
        str | None, typer.Option("--spec", help="Tables and figures by name, or paths of spec files; default: all.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option(help="Ask of a published table (CSV) whether its means can be true, and stop.")
    ] = None,
    compare: Annotated[str | None, typer.Option(help="paper: print ours minus the papers' numbers as well.")] = None,
    allow_mixed: Annotated[
        bool, typer.Option("--allow-mixed", help="Print results that do not compare in one table, with a note.")
    ] = False,
) -> None:
    """Fill the tables and figures from the files of the runs."""
    from agpo_bench.commands.report import check_table, run_report

    if check is not None:
        check_table(check)
        return
    run_report(runs=runs, formats=formats, out=out, specs=specs, compare=compare, allow_mixed=allow_mixed)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="A method: print its whole resolved recipe.")] = None,
    diff: Annotated[tuple[str, str] | None, typer.Option(help="Two methods: print what differs.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write the Markdown page of all methods to this file.")] = None,
    runs: Annotated[Path | None, typer.Option(help="With --page: a folder of runs, for what was measured.")] = None,
) -> None:
    """List the methods and their parts."""
    from agpo_bench.commands.listing import list_methods, write_page

    if page is not None:
        if name is not None or diff is not None:
            raise ValueError("--page writes all methods; leave out the name and --diff")
        write_page(page, runs=runs)
        return
    if runs is not None:
        raise ValueError("--runs goes with --page FILE: the page is what tells of runs")
    list_methods(name=name, diff=diff)


@app.command()
def tasks() -> None:
    """List the benchmarks."""
    from agpo_bench.commands.listing import list_tasks

    list_tasks()


data_app = typer.Typer(help="List, fetch, show and check benchmark data.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")


@data_app.command("list")
def data_list(
    data: Annotated[str | None, typer.Option(help="Count the items of embedded or of a directory.")] = None,
) -> None:
    """List the benchmarks with splits, sizes, licences, and what is on this machine."""
    from agpo_bench.commands.data import list_data

    list_data(data)


@data_app.command("fetch")
def data_fetch(
    out: Annotated[Path, typer.Option(help="Folder for the files; --data takes it afterwards.")] = Path("data"),
    tasks: Tasks = "all",
    mirror: Annotated[
        Path | None, typer.Option(help="A folder that mirrors the hub: one folder a data set id.")
    ] = None,
) -> None:
    """Copy benchmarks from the hub into a folder, with checksums; a second call continues the first."""
    from agpo_bench.commands.data import fetch_data

    fetch_data(tasks=tasks, out=out, mirror=mirror)


@data_app.command("show")
def data_show(
    item: Annotated[str, typer.Argument(help="task/split/row, as in gsm8k/test/0.")],
    data: Annotated[str, typer.Option(help="embedded, hub, or a directory of benchmark files.")] = "embedded",
    response: Annotated[str | None, typer.Option(help="A response to grade; default: the gold in a box.")] = None,
) -> None:
    """Show an item: prompt, gold, and how a response is graded."""
    from agpo_bench.commands.data import show_item

    show_item(item_id=item, data=data, response=response)


@data_app.command("check")
def data_check(
    train: Annotated[str, typer.Option(help="Training data: a file, a folder, embedded, or hub.")],
    evaluation: Annotated[str, typer.Option("--eval", help="Benchmarks separated by commas, or all.")] = "all",
    data: Annotated[str, typer.Option(help="Where the test items are: embedded, hub, or a directory.")] = "hub",
    report: Annotated[Path | None, typer.Option(help="Write every finding to this JSON file.")] = None,
    examples: Annotated[int, typer.Option(min=0, help="Findings of each stage to print.")] = 3,
) -> None:
    """Look for test items in a training set, in the benchmarks' own splits, and in few-shot prompts."""
    from agpo_bench.commands.data import check_data

    check_data(train=train, evaluation=evaluation, data=data, report=report, examples=examples)


@data_app.command("probe")
def data_probe(
    *,
    model: Annotated[str, typer.Option(help="embedded, smollm2, a local model directory, or a hub id.")] = "embedded",
    tasks: Tasks = "all",
    data: Annotated[str, typer.Option(help="embedded, hub, or a directory of benchmark files.")] = "embedded",
    split: Annotated[str, typer.Option(help="test or dev.")] = "test",
    limit: Annotated[int | None, typer.Option(min=2, help="Only the first N items of each benchmark.")] = 100,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of an answer; default: 40 embedded, else as the task says.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of paraphrases and intervals.")] = 0,
    report: Annotated[Path | None, typer.Option(help="Write the results to this JSON file.")] = None,
) -> None:
    """Ask whether a model knows test items by heart."""
    from agpo_bench.commands.probe import run_probe

    run_probe(
        model=model,
        tasks=tasks,
        data=data,
        split=split,
        limit=limit,
        max_new_tokens=max_new_tokens,
        seed=seed,
        report=report,
    )


@app.command("warm-start")
def warm_start(
    out: Annotated[Path, typer.Option(help="Folder for the remade model.")] = Path("warm-start"),
    seed: Annotated[int, typer.Option(help="Seed of weights and batches; the shipped model's is the default.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Supervised steps; default: as shipped.")] = None,
) -> None:
    """Remake the embedded model by supervised training."""
    from agpo_bench.commands.warm_start import run_warm_start

    run_warm_start(out=out, seed=seed, steps=steps)


def main() -> None:
    """Entry point: a mistake or an unusable file is one sentence on stderr and exit status 2, never a traceback."""
    try:
        app()
    except SystemExit as ended:
        if launched_size() > 1 and not ended.code:
            end_well()
        raise
    except (ValueError, OSError) as error:
        from agpo_bench.commands.mistakes import in_one_sentence
        from agpo_bench.training.world import is_first_to_tell

        if is_first_to_tell():
            typer.echo(f"error: {in_one_sentence(error)}", err=True)
        sys.exit(2)
