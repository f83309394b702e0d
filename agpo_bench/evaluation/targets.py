"""Which models an evaluation looks at: the initial one, and the newest checkpoint of each run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from agpo_bench import paths
from agpo_bench.config import RunConfig, config_from
from agpo_bench.ledger import TokenLedger
from agpo_bench.training.checkpoint import best_checkpoint, loadable_model, newest_checkpoint, read_state

Wanted = Literal["newest", "best"]
BEST_DIRECTORY = "best"
"""Inside a run: results of its best checkpoint, apart from those of the last one, by which runs compare."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One model to evaluate, and what its results are labelled with."""

    directory: Path
    """Results go to ``<directory>/eval/<task>/``."""
    model: str
    """What ``load_model`` takes."""
    method: str
    title: str
    seed: int | None = None
    tokens_used: int = 0
    budget: int | None = None
    updates_per_rollout: int | None = None
    config: RunConfig | None = None
    """Of the run; for an initial model, of the first run that started from it; None without any run."""

    @property
    def is_initial(self) -> bool:
        """Whether this is the model before any training."""
        return self.seed is None


def find_targets(
    out: Path, *, run: Path | None = None, model: str | None = None, checkpoint: Wanted = "newest"
) -> list[Target]:
    """The initial model of every run, then the runs; with ``model`` that model alone.

    ``checkpoint`` chooses among those of a ``run``: the best is the one that ``keep_best`` marked.
    A run counts when its newest checkpoint is finished; a run named by ``run`` counts from its first checkpoint on.
    """
    if model is not None:
        return [initial_target(out, model, config=None)]
    if run is None and checkpoint != "newest":
        raise ValueError(f"--checkpoint {checkpoint} goes with --run DIR: runs compare by their last checkpoints")
    runs = [trained_target(run, may_be_unfinished=True, wanted=checkpoint)] if run is not None else _finished_runs(out)
    if run is not None:
        out = run.resolve().parent.parent
    configs = {target.config.model: target.config for target in reversed(runs) if target.config}
    return [*(initial_target(out, name, config=config) for name, config in configs.items()), *runs]


def initial_target(out: Path, model: str, *, config: RunConfig | None) -> Target:
    """The model before training. Its folder is ``<out>/initial`` until the weights say that another model has it."""
    return Target(
        directory=out / paths.INITIAL_MODEL,
        model=model,
        method=paths.INITIAL_MODEL,
        title="Initial model",
        config=config,
    )


def trained_target(run: Path, *, may_be_unfinished: bool = False, wanted: Wanted = "newest") -> Target:
    """A run as its newest or best checkpoint has it."""
    checkpoint = best_checkpoint(run) if wanted == "best" else newest_checkpoint(run)
    if checkpoint is None and wanted == "best":
        raise ValueError(f"no best checkpoint in {run}: train with --set keep_best=reward, for keep_best_steps or more")
    if checkpoint is None:
        raise ValueError(f"no checkpoint in {run}: train first, or pass --run with a run directory")
    state = read_state(checkpoint)
    if not state.is_finished and not may_be_unfinished:
        raise ValueError(f"the run {run} is not finished; continue it with --resume, or name it with --run")
    config = config_from(yaml.safe_load((run / paths.CONFIG_FILE).read_text(encoding="utf-8")))
    recipe: dict[str, Any] = yaml.safe_load((run / paths.RECIPE_FILE).read_text(encoding="utf-8"))
    return Target(
        directory=run / BEST_DIRECTORY if wanted == "best" else run,
        model=str(loadable_model(checkpoint)),
        method=recipe["name"],
        title=recipe.get("title") or recipe["name"],
        seed=config.seed,
        tokens_used=TokenLedger.from_json(state.ledger).used,
        budget=config.budget,
        updates_per_rollout=config.updates_per_rollout,
        config=config,
    )


def max_new_tokens_of(targets: Iterable[Target]) -> int | None:
    """The largest response limit any of the runs was trained with; None without runs."""
    return max((target.config.max_new_tokens for target in targets if target.config), default=None)


def _finished_runs(out: Path) -> list[Target]:
    found: Sequence[Path] = sorted(path.parent for path in out.glob(f"*/seed-*/{paths.CONFIG_FILE}"))
    finished = [run for run in found if (newest := newest_checkpoint(run)) and read_state(newest).is_finished]
    if not finished:
        reason = f"{len(found)} unfinished" if found else "none at all"
        raise ValueError(f"no finished run in {out} ({reason}); train first, or pass --run DIR or --model DIR")
    return [trained_target(run) for run in finished]
