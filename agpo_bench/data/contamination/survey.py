"""What the benchmarks hold of one another before any training set is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agpo_bench.data.benchmarks import Split, load_task
from agpo_bench.data.contamination.batch import Text
from agpo_bench.data.contamination.check import Finding, Report, check_texts, duplicates
from agpo_bench.data.contamination.gather import few_shot_texts, split_texts
from agpo_bench.data.sources import DataSource


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Leaks inside a data source, by benchmark."""

    splits: dict[str, Report]
    """``task/split`` -> that split against the benchmark's own test items."""
    repeated: dict[str, list[Finding]]
    """Test items that repeat an earlier one."""
    few_shot: dict[str, list[Finding]]
    """``task/prompt`` -> test items that the few-shot prompt shows."""


def survey(source: DataSource, tests: Sequence[Text]) -> Survey:
    """Compare the other splits and the few-shot prompts of each benchmark with its own test items."""
    by_task: dict[str, list[Text]] = {}
    for text in tests:
        by_task.setdefault(text.text_id.split("/")[0], []).append(text)
    splits: dict[str, Report] = {}
    few_shot: dict[str, list[Finding]] = {}
    for task, items in by_task.items():
        for split in _other_splits(source, task):
            splits[f"{task}/{split}"] = check_texts(split_texts(source, task, split), items)
        for name in _few_shot_names(task):
            try:
                shown = few_shot_texts(source, task, name)
            except ValueError:
                continue
            if shown:
                found = check_texts(shown, items).findings
                few_shot[f"{task}/{shown[0].text_id.split('/')[2]}"] = [one for one in found if one.stage != "variant"]
    return Survey(
        splits=splits,
        repeated={task: duplicates(items) for task, items in by_task.items()},
        few_shot=few_shot,
    )


def _other_splits(source: DataSource, task: str) -> list[Split]:
    return [split for split in source.splits(load_task(task)) if split != "test"]


def _few_shot_names(task: str) -> list[str | None]:
    spec = load_task(task).few_shot
    return [
        *([None] if spec.source else []),
        *(["lm_eval"] if spec.lm_eval else []),
        "deepseek",
    ]
