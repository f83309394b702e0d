"""Seconds from the shell prompt to the score: ``agpo-bench eval`` against lm-eval's own command line.

The same task file, model, 64 items, 64 new tokens, greedy; both are whole processes, imports included.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time

import setting
from measure import Comparison, Measurement, compared, environment, report, table

from agpo_bench import paths
from agpo_bench.training.setup import model_path

TASK = "gsm8k"
NUM_ITEMS = 64
NUM_NEW_TOKENS = 64


def _timed(arguments: str, **variables: str) -> Measurement:
    command = [sys.executable, "-m", *arguments.split()]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    done = subprocess.run(command, env={**environment(), **variables}, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - started
    if done.returncode != 0:
        raise RuntimeError(f"{arguments} failed:\n{done.stderr[-4000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Measurement(
        tokens=NUM_ITEMS,
        cpu_seconds=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        wall_seconds=wall,
        peak_bytes=after.ru_maxrss * 1024,
    )


def ours(args: argparse.Namespace) -> Measurement:
    """Our command, in an empty folder: nothing is read back."""
    with tempfile.TemporaryDirectory() as out:
        return _timed(
            f"agpo_bench eval --tasks {TASK} --model {model_path(args.model)} --data embedded --limit {NUM_ITEMS} "
            f"--max-new-tokens {NUM_NEW_TOKENS} --out {out}"
        )


def peer(args: argparse.Namespace) -> Measurement:
    """lm-eval's command with our task files."""
    with tempfile.TemporaryDirectory() as out:
        return _timed(
            f"lm_eval run --model hf --model_args pretrained={model_path(args.model)},dtype=float32 --device cpu "
            f"--batch_size {NUM_ITEMS} --include_path {paths.definitions('tasks')} --tasks agpo_{TASK} "
            f"--limit {NUM_ITEMS} --gen_kwargs max_gen_toks={NUM_NEW_TOKENS} --output_path {out} --log_samples",
            AGPO_BENCH_DATA="embedded",
        )


def compare(args: argparse.Namespace) -> list[Comparison]:
    """End to end."""
    mine, theirs = compared("eval_vs_lm_eval.py", repeats=args.repeats, options=setting.side_options(args))
    return [
        Comparison(
            name=f"eval / lm-eval command line, {NUM_ITEMS} items", ours=mine, peer=theirs, target=3.0, what="seconds"
        )
    ]


if __name__ == "__main__":
    os.environ.update(environment())
    arguments = setting.arguments(__doc__).parse_args()
    if arguments.side:
        report({"ours": ours, "peer": peer}[arguments.side](arguments))
    else:
        print(table(compare(arguments)))
