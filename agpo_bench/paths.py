"""Where the definitions lie, and the names inside a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).resolve().parent


def definitions(kind: Literal["tasks", "trainers", "reports"]) -> Path:
    """The folder of one kind of definition: inside the package in a wheel, beside it in a checkout."""
    inside = _PACKAGE / kind
    return inside if inside.is_dir() else _PACKAGE.parent / kind


def run_directory(out: Path, *, method: str, seed: int) -> Path:
    """``<out>/<method>/seed-<seed>``."""
    return out / method / f"seed-{seed}"


CONFIG_FILE = "config.yaml"
RECIPE_FILE = "recipe.yaml"
METRICS_FILE = "metrics.jsonl"
TIMING_FILE = "timing.jsonl"
"""Wall-clock seconds a step: apart from the metrics, which are the same to the bit for the same seed."""
LEDGER_FILE = "ledger.json"
PROVENANCE_FILE = "provenance.json"
"""Versions, commit, host and hashes of a run: what it takes to tell whether two runs are comparable."""
CONTAMINATION_FILE = "contamination.json"
"""Which training problems were compared with which test items, and what was found and left out."""
ROLLOUTS_DIRECTORY = "rollouts"
CHECKPOINTS_DIRECTORY = "checkpoints"
EVAL_DIRECTORY = "eval"
RESULTS_FILE = "results.json"
SAMPLES_FILE = "samples.jsonl"
ITEMS_FILE = "items.jsonl"
"""The items behind the samples: prompt as asked, and reference answer."""
INITIAL_MODEL = "initial"
"""Stands in the place of a method's name for the model before any training: ``<out>/initial/eval/…``."""
