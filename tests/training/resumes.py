"""Runs that share their weights out, each whole and resumed from its first checkpoint; started by a launcher.

``python -m torch.distributed.run --standalone --nproc_per_node 2 -m tests.training.resumes FOLDER`` fills FOLDER with
``<case>/whole`` and ``<case>/resumed``. All in one start: that of two processes takes longer than the runs.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from agpo_bench.methods.recipe import load_method
from agpo_bench.training.checkpoint import checkpoints
from agpo_bench.training.run import train
from agpo_bench.training.world import World, launched_world
from tests.training import launched

SHARED: dict[str, Any] = {
    "engine": "deepspeed",
    "zero_stage": 3,
    "checkpoint_every_steps": 1,
    "keep_checkpoints": 9,
    "prompts_per_batch": 4,
    "minibatches_per_epoch": 1,
    "budget": 500,
    "learning_rate": 1e-3,  # so large that the first steps' weights sample other tokens than the start's
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    # Its value head has a bias of one element, which two processes cannot share equally.
    "critic": ("ppo", {}),
    "bfloat16": ("agpo", {"dtype": "bfloat16", "budget": 800}),
    "adapters-offloaded": ("ppo", {"dtype": "bfloat16", "offload": "optimizer", "lora_rank": 4}),
}


def main(folder: Path, world: World) -> None:
    """Run every case."""
    for case, (method, settings) in CASES.items():
        config = launched.config(**SHARED | settings)
        whole, resumed = folder / case / "whole", folder / case / "resumed"
        train(config, load_method(method), directory=whole, world=world)
        if world.is_main:
            shutil.copytree(whole, resumed)
            for newer in checkpoints(resumed)[1:]:
                shutil.rmtree(newer)
        world.wait()
        train(config, load_method(method), directory=resumed, resume=True, world=world)


if __name__ == "__main__":
    with launched_world(device="cpu") as everyone:
        main(Path(sys.argv[1]), everyone)
