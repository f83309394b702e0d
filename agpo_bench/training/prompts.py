"""The order in which a run sees its prompts: a seeded permutation an epoch, and a cursor that a checkpoint can hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agpo_bench.records import Prompt
from agpo_bench.rollout.sampler import sampling_seed


class PromptStream:
    """Endless batches of distinct prompts; every epoch shows each prompt once, in an order drawn from (seed, epoch).

    A batch that crosses the end of an epoch takes the remainder and then the new epoch's prompts; those of the new
    epoch that it already holds are put off to the next batch, so no batch holds a prompt twice and none is left out.
    """

    def __init__(self, prompts: Sequence[Prompt], *, seed: int) -> None:
        self.prompts = tuple(prompts)
        self._seed = seed
        self._epoch = -1
        self._order: list[int] = []
        self._num_draws = 0

    @property
    def epoch(self) -> int:
        """Number of the epoch the cursor stands in, from 0."""
        return max(0, self._epoch)

    def take(self, count: int) -> list[Prompt]:
        """The next ``count`` prompts, all different."""
        self._check(count)
        taken = [self._order.pop(0) for _ in range(min(count, len(self._order)))]
        if len(taken) < count:
            self._epoch += 1
            key = sampling_seed(self._seed, step=self._epoch, prompt_id="order", sample_index=0, phase="prompts")
            order = [int(index) for index in np.random.default_rng(key).permutation(len(self.prompts))]
            held = set(taken)
            fresh = [index for index in order if index not in held]
            need = count - len(taken)
            taken += fresh[:need]
            used = set(fresh[:need])
            self._order = [index for index in order if index not in used]
        return [self.prompts[index] for index in taken]

    def draw(self, count: int, *, weights: Sequence[float]) -> list[Prompt]:
        """``count`` different prompts drawn with probability proportional to ``weights``, one weight a prompt.

        Successive draws without replacement (Efraimidis and Spirakis: the largest log(u) / weight), seeded by the
        number of the draw. The epoch order is left alone.
        """
        self._check(count)
        key = sampling_seed(self._seed, step=self._num_draws, prompt_id="draw", sample_index=0, phase="prompts")
        self._num_draws += 1
        uniform = np.random.default_rng(key).random(len(self.prompts))
        keys = np.log(np.maximum(uniform, 1e-300)) / np.maximum(np.asarray(weights, dtype=np.float64), 1e-300)
        return [self.prompts[int(index)] for index in np.argsort(-keys, kind="stable")[:count]]

    def _check(self, count: int) -> None:
        if count > len(self.prompts):
            raise ValueError(
                f"a batch of {count} prompts needs at least as many training problems, and there are "
                f"{len(self.prompts)}; lower prompts_per_batch or add tasks"
            )

    def to_json(self) -> dict[str, Any]:
        """Epoch, the indices still to come in it, and the number of weighted draws."""
        return {
            "epoch": self._epoch,
            "order": list(self._order),
            "num_draws": self._num_draws,
            "num_prompts": len(self.prompts),
        }

    def restore(self, content: Mapping[str, Any]) -> None:
        """Put the cursor where ``to_json`` found it."""
        if content["num_prompts"] != len(self.prompts):
            raise ValueError(
                f"the checkpoint was made with {content['num_prompts']} training problems and the data now hold "
                f"{len(self.prompts)}; resume with the data it was trained on"
            )
        self._epoch, self._order = content["epoch"], list(content["order"])
        self._num_draws = content["num_draws"]
