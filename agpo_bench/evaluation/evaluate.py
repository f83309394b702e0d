"""Evaluate runs and the model they started from: lm-eval's evaluator, our task files, sampler and graders."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agpo_bench import paths
from agpo_bench.config import Backend
from agpo_bench.data.benchmarks import Split, grader_for, load_task, task_names
from agpo_bench.evaluation.counting import summarise, with_votes
from agpo_bench.evaluation.draws import DRAWS_FILE, DrawFile, draw_key
from agpo_bench.evaluation.results import (
    PROTOCOL_VERSION,
    EvalResult,
    read_result,
    write_items,
    write_result,
    write_samples,
)
from agpo_bench.grading.answer import GradingMode
from agpo_bench.provenance import git_commit, versions

# lm-eval draws a progress bar a task around work that takes milliseconds; tqdm reads this when it is first imported.
os.environ.setdefault("TQDM_DISABLE", "1")

if TYPE_CHECKING:
    from agpo_bench.evaluation.backends import SamplerPool
    from agpo_bench.evaluation.harness import Asking, Decoding
    from agpo_bench.evaluation.targets import Target, Wanted
    from agpo_bench.rollout.sampler import Sampler
    from agpo_bench.training.model import LoadedModel

EMBEDDED_MAX_NEW_TOKENS = 64
"""For embedded problems, whose answers are a dozen tokens, where no run says otherwise."""

Progress = Callable[[str, str, int, int], None]
"""Called with the model's label, the task's name, the draws that exist, and the draws wanted."""


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """What to ask and how; equal for every model of one evaluation."""

    tasks: tuple[str, ...] = ()
    """Short names; empty for all nine."""
    source: str | None = None
    """``embedded``, ``hub`` or a folder; None takes what the first run was trained on, else the hub."""
    split: Split = "test"
    limit: int | None = None
    maj: tuple[int, ...] = ()
    temperature: float = 1.0
    top_p: float = 0.95
    seed: int = 0
    """Of the sampled draws; they depend on nothing else."""
    grading: GradingMode = "official"
    num_few_shot: int = 0
    few_shot_source: str | None = None
    max_new_tokens: int | None = None
    """None takes the largest limit a run was trained with, else the task file's."""
    sampler: Backend = "torch"
    """What draws the responses."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        for name in self.tasks:
            load_task(name)
        if any(k < 1 for k in self.maj):
            raise ValueError(f"Maj@{min(self.maj)} needs at least one draw; use k of 1 or more")
        if self.maj and not self.temperature > 0:
            raise ValueError(f"temperature {self.temperature:g} makes every draw of Maj@k the same; use more than 0")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p {self.top_p:g} is not in (0, 1]")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit {self.limit} asks no item; use 1 or more")
        if self.sampler == "vllm":
            from agpo_bench.rollout.vllm_engine import require_vllm

            require_vllm()


def evaluate_runs(
    out: Path,
    *,
    options: EvalOptions,
    run: Path | None = None,
    model: str | None = None,
    checkpoint: Wanted = "newest",
    progress: Progress | None = None,
) -> list[EvalResult]:
    """Evaluate the initial model and every finished run under ``out`` (or one ``run``, or one ``model``).

    Results that answer the same request for the same weights are read back; a task that was cut off goes on from the
    draws it has. Returns one result a model and task, the initial model first.
    """
    from agpo_bench.evaluation.backends import SamplerPool
    from agpo_bench.evaluation.targets import find_targets, max_new_tokens_of

    targets = find_targets(out, run=run, model=model, checkpoint=checkpoint)
    configs = [target.config for target in targets if target.config]
    options = replace(
        options,
        source=options.source or (configs[0].data if configs else "hub"),
        max_new_tokens=options.max_new_tokens or max_new_tokens_of(targets),
    )
    with closing(SamplerPool(options.sampler)) as pool:
        return [
            result
            for target in targets
            for result in evaluate_target(target, pool=pool, options=options, progress=progress)
        ]


def evaluate_target(
    target: Target, *, pool: SamplerPool, options: EvalOptions, progress: Progress | None = None
) -> list[EvalResult]:
    """Evaluate one model on every task asked for."""
    from agpo_bench.training.model import load_model
    from agpo_bench.training.setup import model_path

    config = target.config
    loaded = load_model(
        model_path(target.model),
        dtype=config.dtype if config else "float32",
        revision=config.revision if config and target.is_initial else None,
        # A vLLM engine has the GPU to itself.
        device="cpu" if options.sampler == "vllm" else _device(config.device if config else "auto"),
    )
    if target.is_initial:
        target = replace(target, directory=_initial_directory(target.directory, loaded.fingerprint))
    sampler = pool.sampler_for(loaded, config)
    return [
        _evaluate_task(name, target, loaded, sampler=sampler, options=options, progress=progress)
        for name in options.tasks or task_names()
    ]


def _evaluate_task(
    name: str,
    target: Target,
    loaded: LoadedModel,
    *,
    sampler: Sampler,
    options: EvalOptions,
    progress: Progress | None,
) -> EvalResult:
    from agpo_bench.evaluation.harness import Asking, PreparedTask, SamplerLM
    from agpo_bench.rollout.encoding import PromptEncoder

    assert options.source is not None
    decoding = _decoding(name, options)
    asking = Asking(
        source=options.source,
        split=options.split,
        limit=options.limit,
        num_few_shot=options.num_few_shot,
        few_shot_source=options.few_shot_source,
        grading=options.grading,
    )
    task = PreparedTask(name, asking=asking, decoding=decoding)
    folder = target.directory / paths.EVAL_DIRECTORY / name
    results, samples, items = (folder / name for name in (paths.RESULTS_FILE, paths.SAMPLES_FILE, paths.ITEMS_FILE))
    # Backends round differently, and draw other tokens from one seed.
    backend = () if options.sampler == "torch" else (options.sampler,)
    model_key = draw_key(loaded.fingerprint, str(loaded.tokenizer.chat_template), *backend)
    blank = _blank_result(name, target, loaded, options, asking=asking, decoding=decoding, model_key=model_key)
    blank = blank.with_origin(task.origin)
    found = read_result(results)
    # A result with failures is graded anew, from the draws it has: the failure may be gone.
    if (
        found is not None
        and found.is_complete
        and found.stands_for == blank.stands_for
        and samples.is_file()
        and items.is_file()
    ):
        return found
    draws = DrawFile(folder / DRAWS_FILE, model=model_key, earlier=[samples])
    label = target.title if target.seed is None else f"{target.title} seed {target.seed}"
    lm = SamplerLM(
        sampler,
        PromptEncoder(loaded.tokenizer),
        model_key=model_key,
        decoding=decoding,
        draws=draws,
        progress=None if progress is None else lambda task, done, total: progress(label, task, done, total),
    )
    answered = task.ask(lm)
    blank = blank.model_copy(update={"grader_details": _grader_details(name, options.grading)})
    voted = with_votes(answered.samples, name) if options.maj else list(answered.samples)
    result = summarise(voted, blank=blank, ks=options.maj)
    assert result.accuracy is None or answered.score is None or abs(result.accuracy - answered.score) < 1e-9
    taken = {sample.draw_key for sample in voted}
    if found is not None and found.model_fingerprint == loaded.fingerprint:
        draws.take_over(but=taken)  # a larger request's, which this one's files replace
    write_items(items, answered.items)
    write_samples(samples, voted)
    write_result(results, result)
    draws.close(taken=taken)
    return result


def _decoding(name: str, options: EvalOptions) -> Decoding:
    from agpo_bench.evaluation.harness import Decoding

    spec = load_task(name)
    default = EMBEDDED_MAX_NEW_TOKENS if options.source == "embedded" else spec.max_new_tokens
    return Decoding(
        max_new_tokens=options.max_new_tokens or default,
        num_draws=max(options.maj, default=0),
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
    )


def _blank_result(
    name: str,
    target: Target,
    loaded: LoadedModel,
    options: EvalOptions,
    *,
    asking: Asking,
    decoding: Decoding,
    model_key: str,
) -> EvalResult:
    """Everything of a result that is known before the first draw."""
    spec = load_task(name)
    return EvalResult(
        task=name,
        title=spec.title,
        language=spec.language,
        data_source_kind="",
        data_source="",
        data_checksum="",
        split=asking.split,
        num_items=0,
        num_draws=decoding.num_draws,
        accuracy=None,
        score_sum=0.0,
        stderr=None,
        parse_rate=None,
        truncation_rate=0.0,
        error_count=0,
        ks=tuple(sorted(options.maj)),
        tokens_eval=0,
        grading_mode=options.grading,
        protocol_version=PROTOCOL_VERSION,
        task_version=spec.version,
        num_few_shot=options.num_few_shot,
        few_shot_source="none",
        max_new_tokens=decoding.max_new_tokens,
        temperature=decoding.temperature if decoding.num_draws else None,
        top_p=decoding.top_p if decoding.num_draws else None,
        sampling_seed=options.seed,
        limit=options.limit,
        is_complete=False,
        method=target.method,
        title_method=target.title,
        seed=target.seed,
        tokens_used=target.tokens_used,
        budget=target.budget,
        updates_per_rollout=target.updates_per_rollout,
        model=target.model if target.is_initial else f"{target.directory.name}/{Path(target.model).parent.name}",
        model_fingerprint=loaded.fingerprint,
        generation_key=draw_key(
            model_key,
            spec.prompt,
            spec.stop,
            decoding.max_new_tokens,
            options.num_few_shot,
            options.few_shot_source,
            *((decoding.temperature, decoding.top_p, decoding.seed) if decoding.num_draws else ()),
        ),
        versions=versions(),
        git_commit=git_commit(),
    )


def _grader_details(name: str, mode: GradingMode) -> dict[str, str | float | int | None]:
    from agpo_bench.grading.program import ProgramGrader

    grader = grader_for(name, mode)
    return grader.describe() if isinstance(grader, ProgramGrader) else {}


def _initial_directory(directory: Path, fingerprint: str) -> Path:
    """``initial``, or ``initial-<weights>`` when another model's results are in it."""
    for file in sorted((directory / paths.EVAL_DIRECTORY).glob(f"*/{paths.RESULTS_FILE}")):
        found = read_result(file)
        if found is not None and found.model_fingerprint != fingerprint:
            return directory.with_name(f"{directory.name}-{fingerprint[:8]}")
    return directory


def _device(name: str) -> str:
    import torch

    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"
