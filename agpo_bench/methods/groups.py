"""Which groups are trained on. Shapes: P prompts, G rollouts a prompt."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from agpo_bench.methods.part import Part
from agpo_bench.methods.probe import is_constant


class GroupsPart(Part):
    """A filter over whole groups, read from the grader's scores."""

    slot: ClassVar[str] = "groups"

    @property
    def max_sampling_rounds(self) -> int:
        """Rounds of sampling with which the batch may be filled up; 1 means that dropped groups are not replaced."""
        return 1

    def __call__(self, scores_PG: Tensor, is_valid_PG: Tensor) -> Tensor:
        """True for groups that stay; (P,) bool."""
        return torch.ones(len(scores_PG), dtype=torch.bool, device=scores_PG.device)


class AllGroups(GroupsPart):
    """Every group stays.

    Groups of equal rewards add 0 to the surrogate, count in its denominator, and are pulled to the reference like all.
    """

    use: Literal["all"] = "all"


class DropDegenerate(GroupsPart):
    """Groups whose scores are all equal are dropped, and replaced by sampling more prompts (DAPO Sect. 3.2).

    At most ``max_rounds`` rounds are sampled for a batch; then it trains on what there is. The tokens of dropped groups
    are charged to the budget as ``discarded``.
    """

    use: Literal["drop_degenerate"] = "drop_degenerate"
    max_rounds: int = Field(default=10, ge=1)
    min_group_size: ClassVar[int] = 2

    @property
    def max_sampling_rounds(self) -> int:
        """As the field says."""
        return self.max_rounds

    def __call__(self, scores_PG: Tensor, is_valid_PG: Tensor) -> Tensor:
        """True where the scores differ."""
        return ~is_constant(scores_PG, is_valid_PG)


class DropAllRight(GroupsPart):
    """Groups whose every score is 1 are dropped; groups that are all wrong stay (NGRPO)."""

    use: Literal["drop_all_right"] = "drop_all_right"

    def __call__(self, scores_PG: Tensor, is_valid_PG: Tensor) -> Tensor:
        """True where some score is below 1."""
        return ((scores_PG < 1.0 - 1e-9) & is_valid_PG).any(dim=1)


PARTS: tuple[type[GroupsPart], ...] = (AllGroups, DropDegenerate, DropAllRight)
