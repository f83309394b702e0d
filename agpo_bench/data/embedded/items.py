"""Embedded problems by task and split: deterministic, and disjoint by construction."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal, get_args

from agpo_bench.data.embedded.chinese import cmath, gaokao_cloze
from agpo_bench.data.embedded.choices import gaokao_qa, mmlu_stem, sat
from agpo_bench.data.embedded.english import gsm8k, math, ocw
from agpo_bench.data.embedded.problem import Family, Problem
from agpo_bench.data.embedded.programs import codecontests
from agpo_bench.records import Reference

Split = Literal["train", "dev", "test"]

FAMILIES: dict[str, Family] = {
    family.__name__: family
    for family in (gsm8k, math, ocw, sat, mmlu_stem, codecontests, cmath, gaokao_cloze, gaokao_qa)
}
"""The nine families by task name, in the paper's order."""

DEFAULT_COUNTS: dict[Split, int] = {"train": 2000, "dev": 50, "test": 200}
_SEED = 20260
_SHARES: dict[Split, range] = {"train": range(70), "dev": range(70, 76), "test": range(76, 100)}


@dataclass(frozen=True, kw_only=True)
class EmbeddedItem:
    """One embedded problem. Splits never share a ``kind`` and ``parameters``; within one, options may differ."""

    item_id: str
    """``<task>/<split>/<row>``."""
    task: str
    split: Split
    kind: str
    parameters: tuple[int | str, ...]
    prompt: str
    """The whole user text; the model's response follows it directly."""
    reference: Reference
    direct: str
    """Demonstrated response that states the answer at once."""
    worked: str
    """Demonstrated response that first writes the intermediate results."""

    @property
    def solutions(self) -> dict[str, str]:
        """The demonstrated responses by style."""
        return {"direct": self.direct, "worked": self.worked}


def embedded_items(task: str, split: Split, *, count: int | None = None) -> list[EmbeddedItem]:
    """Return the first ``count`` items of a split (default 2000 train, 50 dev, 200 test).

    A smaller count gives a prefix of a larger one. Errors: ValueError for an unknown task or split, a negative count,
    or a count above what the family holds.
    """
    if split not in get_args(Split):
        raise ValueError(f"no split {split!r}; embedded problems have {', '.join(get_args(Split))}")
    count = DEFAULT_COUNTS[split] if count is None else count
    if count < 0:
        raise ValueError(f"{task}/{split}: count {count} is negative; ask for 0 or more")
    items = list(islice(_distinct(task, split), count))
    if len(items) < count:
        raise ValueError(f"{task}/{split}: the embedded sample holds {len(items)} items; ask for at most that many")
    return items


def split_of(task: str, problem: Problem) -> Split:
    """The one split a problem can be in: a hash of what it asks, so that splits cannot overlap."""
    key = "\x1f".join([task, problem.kind, *map(str, problem.parameters)]).encode()
    slot = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") % 100
    return next(split for split, share in _SHARES.items() if slot in share)


def drawn_problems(task: str, split: Split, *, seed: int) -> Iterator[Problem]:
    """Draw problems of one split without end; the same problem may come again with other names."""
    if task not in FAMILIES:
        raise ValueError(f"no embedded problems for task {task!r}; there are {', '.join(FAMILIES)}")
    rng = random.Random(f"{seed}/{task}/{split}")
    while True:
        problem = FAMILIES[task](rng)
        if split_of(task, problem) == split:
            yield problem


def _distinct(task: str, split: Split) -> Iterator[EmbeddedItem]:
    """Each problem of a split once, until 2,000 draws in a row bring nothing new."""
    seen: set[tuple[int | str, ...]] = set()
    repeats = 0
    for problem in drawn_problems(task, split, seed=_SEED):
        key = (problem.kind, *problem.parameters, *problem.reference.options)
        if key in seen:
            repeats += 1
            if repeats == 2000:
                return
            continue
        repeats = 0
        yield EmbeddedItem(
            item_id=f"{task}/{split}/{len(seen)}",
            task=task,
            split=split,
            kind=problem.kind,
            parameters=problem.parameters,
            prompt=problem.prompt,
            reference=problem.reference,
            direct=problem.direct,
            worked=problem.worked,
        )
        seen.add(key)
