"""Several processes train as one: the same tokens, ledger and controllers, and gradients that add up."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agpo_bench.config import RunConfig
from agpo_bench.methods.recipe import load_method
from agpo_bench.training.run import agreed, train
from agpo_bench.training.shares import balanced_shares
from agpo_bench.training.world import ALONE, World, launched_size, launched_world
from tests.training import launched

Config = Callable[..., RunConfig]


def test_shares_are_contiguous_whole_and_of_nearly_equal_cost() -> None:
    costs = [7, 1, 1, 1, 7, 3, 4, 4, 2, 6]
    for count in (1, 2, 3, 4, 20):
        shares = balanced_shares(costs, count)
        assert len(shares) == count
        assert [position for share in shares for position in share] == list(range(len(costs)))
        spent = [sum(costs[position] for position in share) for share in shares]
        assert max(spent) <= sum(costs) / count + max(costs)
    assert balanced_shares(costs, 2) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]  # 17 and 19 of 36
    assert balanced_shares([], 3) == [[], [], []]


def test_a_world_of_one_exchanges_nothing_and_without_a_launcher_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (ALONE.gather(5), ALONE.join([1, 2]), ALONE.from_main("x"), list(ALONE.share(3))) == (
        [5],
        [1, 2],
        "x",
        [0, 1, 2],
    )
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with launched_world() as world:
        assert world is ALONE
    assert launched_size({"WORLD_SIZE": "4"}) == 1, "a scheduler's variable alone starts no process group"
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not set"), launched_world():
        pass


def in_processes(size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What ``work(world, *arguments)`` returns in each of ``size`` processes that have met over gloo."""
    meeting = {"WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": launched.free_port()}
    places = [meeting | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(size)]
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    workers = [context.Process(target=_work, args=(answers, place, work, arguments)) for place in places]
    for worker in workers:
        worker.start()
    found = dict(answers.get() for _ in workers)
    for worker in workers:
        worker.join(60)
    return [found[rank] for rank in range(size)]


def _work(answers: Any, place: dict[str, Any], work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ.update({name: str(value) for name, value in place.items()})
    torch.set_num_threads(1)
    with launched_world(device="cpu") as world:
        answers.put((world.rank, work(world, *arguments)))


def _after_one_update(world: World, config: RunConfig, names: list[str]) -> list[tuple[list[float], float]]:
    """For each method the optimiser's first moment after one update, which is 0.1 of the gradient, and its norm."""
    from agpo_bench.training.online import OnlineLoop
    from agpo_bench.training.setup import build_session

    found = []
    for name in names:
        session = build_session(config, load_method(name), world=world)
        norm = OnlineLoop(session).step().record.values["grad/norm"]
        assert isinstance(norm, float)
        # As lists: tensors would travel through shared memory, which ends with the process.
        moments = [entry["exp_avg"].flatten().tolist() for entry in session.engine.state_dict()["state"].values()]
        found.append(([value for moment in moments for value in moment], norm))
    return found


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_gradient_of_an_update_is_the_same_for_one_two_and_three_processes(small_config: Config) -> None:
    # Seven prompts: no number of processes divides them.
    one_update = {"epochs_per_batch": 1, "minibatches_per_epoch": 1, "max_grad_norm": 1e9}
    config, names = small_config(**one_update, prompts_per_batch=7, micro_batch_tokens=256), ["agpo", "ppo"]
    alone = _after_one_update(ALONE, config, names)
    for size in (2, 3):
        found = in_processes(size, _after_one_update, config, names)
        assert all(other == found[0] for other in found), "the processes hold the same bits"
        for (moment, norm), (expected, expected_norm) in zip(found[0], alone, strict=True):
            whole = torch.tensor(expected, dtype=torch.float64)
            assert float(whole.norm()) == pytest.approx(0.1 * expected_norm, rel=1e-5)
            # Measured for ppo: 6e-7 of the gradient's norm with two processes, 8e-7 with three.
            assert float((torch.tensor(moment, dtype=torch.float64) - whole).norm() / whole.norm()) < 3e-6
            assert norm == pytest.approx(expected_norm, rel=3e-6)


def _told(world: World, digests: list[bytes], stops: list[int]) -> str | int:
    try:
        return agreed(world, digest=digests[world.rank], stopped_by=stops[world.rank], step=3)
    except ValueError as error:
        return str(error)


@pytest.mark.slow
def test_one_process_that_is_asked_to_stop_stops_all_and_one_that_drifted_is_named() -> None:
    assert in_processes(2, _told, [b"a", b"a"], [0, signal.SIGTERM]) == [signal.SIGTERM] * 2
    said = in_processes(3, _told, [b"a", b"a", b"b"], [0, 0, 0])
    assert len(set(said)) == 1 and "after 3 steps the processes 2 hold another state than process 0" in said[0]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_processes_follow_the_run_of_one(tmp_path: Path) -> None:
    names = ["agpo", "grpo", "ppo_adaptive_kl", "dpo", "clip_cov", "dapo"]
    said = launched.run(tmp_path / "two", "--method", ",".join(names), processes=2)
    config = launched.config()
    for name in names:
        one, two = tmp_path / "one" / name, tmp_path / "two" / name / "seed-42"
        train(config, load_method(name), directory=one)
        launched.assert_alike(two, one, rel=3e-4, absolute=3e-6)
        for exact in ("tokens/used", "reward/mean", "learning_rate", "epoch"):
            assert [line[exact] for line in launched.metrics(two)] == [line[exact] for line in launched.metrics(one)]
        assert said.count(f" -> {two}") == 1, "one process talks"


def _train_part(world: World, config: RunConfig, directory: Path, steps: int) -> int:
    def stop(session: Any, record: Any) -> None:
        if session.step == steps and world.is_main:
            os.kill(os.getpid(), signal.SIGTERM)

    return train(config, load_method("ppo"), directory=directory, resume=True, on_step=stop, world=world).num_steps


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_goes_on_with_another_number_of_processes(small_config: Config, tmp_path: Path) -> None:
    config = small_config(budget=2400, checkpoint_every_steps=100)
    whole = train(config, load_method("ppo"), directory=tmp_path / "whole")
    middle, end = whole.num_steps // 2, whole.num_steps
    assert in_processes(2, _train_part, config, tmp_path / "fewer", middle) == [middle] * 2
    assert _train_part(ALONE, config, tmp_path / "fewer", -1) == end
    assert _train_part(ALONE, config, tmp_path / "more", middle) == middle
    assert in_processes(2, _train_part, config, tmp_path / "more", -1) == [end] * 2
    for parts in ("fewer", "more"):
        launched.assert_alike(tmp_path / parts, tmp_path / "whole", rel=3e-4, absolute=3e-6)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_killed_process_ends_the_run_with_one_sentence_and_it_goes_on(tmp_path: Path) -> None:
    settings = {"processes": 2, "budget": 8000}
    launched.run(tmp_path / "whole", "--method", "agpo", **settings)
    process = launched.start(tmp_path / "killed", "--method", "agpo", **settings)
    said = launched.kill_after(process, tmp_path / "killed" / "agpo" / "seed-42", rank=1)
    sentences = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(sentences) == 1 and sentences[0].startswith("error: process 0 of 2 lost the others"), said
    assert "goes on from its last checkpoint with --resume" in sentences[0]
    launched.run(tmp_path / "killed", "--method", "agpo", "--resume", **settings)
    killed, whole = (tmp_path / part / "agpo" / "seed-42" for part in ("killed", "whole"))
    for name in ("metrics.jsonl", "ledger.json"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name


@pytest.mark.slow
def test_a_mistake_is_told_once_whichever_process_makes_it(tmp_path: Path) -> None:
    process = launched.start(tmp_path, "--method", "agpo", "--jobs", "2", processes=2)
    said = process.communicate(timeout=120)[0]
    assert said.count("error: --jobs 2: the 2 processes of a launcher share one run at a time") == 1
    launched.run(tmp_path, "--method", "grpo", processes=2, budget=1600)
    said = launched.start(tmp_path, "--method", "grpo", processes=2, budget=1600).communicate(timeout=120)[0]
    assert said.count("already holds a run; add --resume") == 1 and said.count("error: ") == 1
