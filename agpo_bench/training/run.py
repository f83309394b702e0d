"""One training run from an empty or half-filled folder to the end of its budget."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from agpo_bench import paths
from agpo_bench.config import RunConfig, fingerprint
from agpo_bench.files import append_lines, json_line, only_writer, truncate, write_whole
from agpo_bench.training import checkpoint as checkpoints
from agpo_bench.training.disk import require_room, writing
from agpo_bench.training.health import check_health, require_finite_weights
from agpo_bench.training.metrics import StepRecord, StepResult
from agpo_bench.training.provenance import write_provenance
from agpo_bench.training.session import Session
from agpo_bench.training.setup import build_session, check, restore
from agpo_bench.training.stop_requests import stop_requests
from agpo_bench.training.tracker import make_tracker
from agpo_bench.training.world import ALONE, World

if TYPE_CHECKING:
    from agpo_bench.methods.method import Method

LINE_FILES = (paths.METRICS_FILE, paths.TIMING_FILE)


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """How a run ended."""

    directory: Path
    is_finished: bool
    """False when it was stopped from outside."""
    was_skipped: bool
    """True when it had been finished before."""
    num_steps: int
    tokens_used: int
    overshoot: int
    stopped_by: int
    """Number of the signal that asked to stop, be it in the last step; 0 for none."""


OnStart = Callable[[Session], None]
OnStep = Callable[[Session, StepRecord], None]


MACHINE_FIELDS = frozenset(
    {"num_threads", "device", "engine", "zero_stage", "offload", "park_reference", "gradient_checkpointing", "tracker"}
)
"""Fields that say how a machine computes the run and not what: they may change between stopping and resuming."""


def run_fingerprint(config: RunConfig, method: Method) -> str:
    """sha256 of all that decides a run."""
    told = config.model_dump(mode="json", exclude=set(MACHINE_FIELDS))
    return fingerprint({"config": told, "recipe": method.model_dump(mode="json")})


def train(
    config: RunConfig,
    method: Method,
    *,
    directory: Path,
    resume: bool = False,
    on_start: OnStart | None = None,
    on_step: OnStep | None = None,
    world: World = ALONE,
) -> RunOutcome:
    """Train until the budget is spent or a signal asks to stop; leaves a checkpoint in either case.

    ``directory`` is ``<out>/<method>/seed-<seed>``; a method that replays a log finds it beside it, under ``<out>``.
    Every process of ``world`` calls this; the main one writes, the others read the folder from the same file system.
    """
    check(config, method)
    with only_writer(directory) if world.is_main else nullcontext():
        return _train(
            config, method, directory=directory, resume=resume, on_start=on_start, on_step=on_step, world=world
        )


def _train(
    config: RunConfig,
    method: Method,
    *,
    directory: Path,
    resume: bool,
    on_start: OnStart | None,
    on_step: OnStep | None,
    world: World,
) -> RunOutcome:
    fingerprint_of_run = run_fingerprint(config, method)
    folder = None
    if world.is_main:
        _check_directory(directory, config, method, resume=resume)
        folder = checkpoints.newest_checkpoint(directory)
    folder = world.from_main(folder)
    if folder is not None and (state := checkpoints.read_state(folder)).is_finished:
        return _outcome(directory, state, was_skipped=True)
    session = build_session(config, method.with_logs(out=directory.parent.parent, seed=config.seed), world=world)
    if world.is_main:
        require_room(session, directory)
        with writing(directory, "the settings of the run"):
            _write_settings(directory, session, method)
    state_before = restore(session, folder) if folder is not None else None
    if world.is_main:
        _cut_files(directory, state_before)
        if config.keep_best == "reward":  # a kill may have come between a checkpoint and its mark
            checkpoints.mark_best(directory, num_steps=config.keep_best_steps)
    tracker = None
    if world.is_main:
        tracker = make_tracker(
            config,
            directory=directory,
            name=f"{method.name} seed {config.seed}",
            recipe=method.model_dump(mode="json"),
            tokens_used=session.ledger.used,
        )
        if tracker is not None:
            session.resources.callback(tracker.close)
    take_step = _loop(session)
    if on_start is not None:
        on_start(session)
    with session.resources, stop_requests() as asked_by:
        digest, stopped_by = b"", 0
        while not session.is_finished:
            if stopped_by := agreed(world, digest=digest, stopped_by=asked_by(), step=session.step):
                break
            result = take_step()
            if world.is_main:
                with writing(directory, f"what step {result.record.step} did"):
                    _write(directory, session, result)
                    if tracker is not None:
                        tracker.log(result.record.to_json(), tokens_used=session.ledger.used)
            check_health(session, result.record, directory=directory)
            if on_step is not None:
                on_step(session, result.record)
            digest = state_digest(session, result.record)
            is_due = session.step % config.checkpoint_every_steps == 0 and not session.is_finished
            # Amid updates without a gradient the policy may be beyond help: the checkpoint before it stays the newest.
            if is_due and not session.num_skipped_in_a_row:
                _save(directory, session, fingerprint_of_run)
        state = _save(directory, session, fingerprint_of_run)
        stopped_by = stopped_by or max(world.gather(asked_by()))
    return _outcome(directory, state, was_skipped=False, stopped_by=stopped_by)


def _write_settings(directory: Path, session: Session, method: Method) -> None:
    write_whole(directory / paths.RECIPE_FILE, _yaml(method.model_dump(mode="json")))
    write_whole(directory / paths.CONFIG_FILE, _yaml(session.config.model_dump(mode="json")))
    write_whole(directory / paths.CONTAMINATION_FILE, json.dumps(session.contamination.to_json(), indent=1) + "\n")
    write_provenance(directory, session)


def state_digest(session: Session, record: StepRecord) -> bytes:
    """Hash of all that the processes of a run must hold alike after a step: what was decided, spent and measured.

    Empty in a run of one process.
    """
    if session.world.size == 1:
        return b""
    content = [
        record.to_json(),
        session.ledger.to_json(),
        session.method_state.to_json(),
        session.stream.to_json(),
        session.generator.get_state().tolist(),
        session.policy.checksum(),
    ]
    return hashlib.sha256(json.dumps(content).encode()).digest()


def agreed(world: World, *, digest: bytes, stopped_by: int, step: int) -> int:
    """The signal that asked any process to stop, or 0, once all of them are known to hold the same state.

    Raises ValueError when they do not: their controllers would drift apart unseen.
    """
    if world.size == 1:
        return stopped_by
    found = world.gather((digest, stopped_by))
    if odd := [rank for rank, (other, _) in enumerate(found) if other != found[0][0]]:
        raise ValueError(
            f"after {step} steps the processes {', '.join(map(str, odd))} hold another state than process 0; they must "
            "run the same code and versions on the same data: check them and use --resume"
        )
    return max(number for _, number in found)


def _loop(session: Session) -> Callable[[], StepResult]:
    """The loop that the method's kind of data asks for."""
    if session.method.loop == "preference":
        from agpo_bench.training.preference import PreferenceLoop

        return PreferenceLoop(session).step
    from agpo_bench.training.online import OnlineLoop

    return OnlineLoop(session).step


def _check_directory(directory: Path, config: RunConfig, method: Method, *, resume: bool) -> None:
    """Refuse to mix two runs in one folder."""
    config_file, recipe_file = directory / paths.CONFIG_FILE, directory / paths.RECIPE_FILE
    if not config_file.exists():
        return
    if not resume:
        raise ValueError(f"{directory} already holds a run; add --resume to continue it, or choose another --out")
    _refuse_difference(config_file, config.model_dump(mode="json"), ignored=MACHINE_FIELDS)
    _refuse_difference(recipe_file, method.model_dump(mode="json"), ignored=set())


def _refuse_difference(file: Path, wanted: Mapping[str, Any], *, ignored: Collection[str]) -> None:
    found = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    for name in sorted((found.keys() | wanted.keys()) - set(ignored)):
        if (difference := _first_difference(name, found.get(name), wanted.get(name))) is not None:
            where, old, new = difference
            raise ValueError(
                f"{file} was made with {where} = {old!r} and this run has {new!r}; resume with the same settings, or "
                "choose another --out"
            )


def _first_difference(name: str, found: Any, wanted: Any) -> tuple[str, Any, Any] | None:
    """The field, as ``--set`` names it, in which two values differ, with both."""
    is_same_part = isinstance(found, dict) and isinstance(wanted, dict) and found.get("use") == wanted.get("use")
    if not is_same_part:
        return None if found == wanted else (name, found, wanted)
    inner = (_first_difference(f"{name}.{key}", found.get(key), wanted.get(key)) for key in {**found, **wanted})
    return next((difference for difference in inner if difference is not None), None)


def _yaml(content: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)


def _cut_files(directory: Path, state: checkpoints.CheckpointState | None) -> None:
    """Drop what was written after the checkpoint: those steps are taken again."""
    for name in LINE_FILES:
        truncate(directory / name, state.file_sizes[name] if state else 0)
    for file in (directory / paths.ROLLOUTS_DIRECTORY).glob("*.jsonl"):
        if state is None or int(file.stem) >= state.step:
            file.unlink()
    for torn in (directory / paths.CHECKPOINTS_DIRECTORY).glob(".tmp-*"):
        shutil.rmtree(torn)


def _require_folder(directory: Path) -> None:
    """OSError where the run's folder is gone: made anew, it would pass for a run without its first steps."""
    if not (directory / paths.CONFIG_FILE).is_file():
        raise OSError("the folder was removed or moved away while the run was writing into it")


def _write(directory: Path, session: Session, result: StepResult) -> None:
    _require_folder(directory)
    rollouts = directory / paths.ROLLOUTS_DIRECTORY / f"{checkpoints.step_name(result.record.step)}.jsonl"
    write_whole(rollouts, "".join(json_line(line) for line in result.rollouts))
    append_lines(directory / paths.METRICS_FILE, [result.record.to_json()])
    append_lines(directory / paths.TIMING_FILE, [{"step": result.record.step, **result.seconds}])
    write_whole(directory / paths.LEDGER_FILE, json.dumps(session.ledger.to_json(), indent=2) + "\n")


def _save(directory: Path, session: Session, fingerprint_of_run: str) -> checkpoints.CheckpointState:
    sizes = {name: (directory / name).stat().st_size if (directory / name).exists() else 0 for name in LINE_FILES}
    state = checkpoints.CheckpointState(
        step=session.step,
        weights_version=session.sampler.weights_version,
        num_updates=session.num_updates,
        num_skipped_updates=session.engine.num_skipped_updates,
        num_skipped_in_a_row=session.num_skipped_in_a_row,
        ledger=session.ledger.to_json(),
        method_state=session.method_state.to_json(),
        prompts=session.stream.to_json(),
        gradient_norms=session.gradient_norms,
        reference_fingerprint=session.reference_fingerprint,
        run_fingerprint=fingerprint_of_run,
        file_sizes=sizes,
        is_finished=session.is_finished,
    )
    weights = session.engine.master_weights()
    tensors = session.tensors(weights)
    # What adapters are merged with at the end may lie on other processes.
    with session.engine.whole_weights() if session.policy.is_adapted and state.is_finished else nullcontext():
        if session.world.is_main:
            _write_checkpoint(directory, session, state, weights=weights, tensors=tensors)
    session.world.wait()
    return state


def _write_checkpoint(
    directory: Path,
    session: Session,
    state: checkpoints.CheckpointState,
    *,
    weights: Mapping[str, Any] | None,
    tensors: dict[str, Any],
) -> None:
    require_finite_weights(session.policy.state_dict() if weights is None else weights, directory=directory)
    config = session.config
    with writing(directory, f"the checkpoint after {session.step} steps"):
        _require_folder(directory)
        checkpoints.save_checkpoint(
            directory,
            state,
            policy=session.policy,
            weights=weights,
            tensors=tensors,
            keep=config.keep_checkpoints,
            best_of_steps=config.keep_best_steps if config.keep_best == "reward" else None,
        )


def _outcome(
    directory: Path, state: checkpoints.CheckpointState, *, was_skipped: bool, stopped_by: int = 0
) -> RunOutcome:
    return RunOutcome(
        directory=directory,
        is_finished=state.is_finished,
        was_skipped=was_skipped,
        num_steps=state.step,
        tokens_used=state.ledger["used"],
        overshoot=state.ledger["overshoot"],
        stopped_by=stopped_by,
    )
