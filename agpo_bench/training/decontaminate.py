"""Training problems without those that an evaluation will ask: done before every run, and written beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agpo_bench.config import Dedup, RunConfig
from agpo_bench.data.benchmarks import open_source, task_names
from agpo_bench.data.contamination.check import Report, check_texts
from agpo_bench.data.contamination.gather import evaluation_texts, text_of_prompt

if TYPE_CHECKING:
    from agpo_bench.records import Prompt


@dataclass(frozen=True, kw_only=True)
class RunCheck:
    """What a run was told and found about its training problems."""

    dedup: Dedup
    report: Report | None
    """None when the check was off."""
    not_compared: dict[str, str]
    """Benchmarks whose test items could not be read, and why."""
    num_kept: int

    def to_json(self) -> dict[str, Any]:
        """For ``contamination.json``; ``num_copies`` counts the problems that strict removes and report keeps."""
        return {
            "dedup": self.dedup,
            "summary": self.report.summary if self.report else "not compared with the test items",
            "num_copies": self.report.num_removed if self.report else None,
            "num_kept": self.num_kept,
            "not_compared": self.not_compared,
            "report": self.report.model_dump(mode="json") if self.report else None,
        }


_embedded: dict[tuple[str, ...], tuple[Report, dict[str, str]]] = {}
"""The embedded problems are the same in every run of a process, so they are compared once for each choice of tasks."""


def decontaminate(prompts: Sequence[Prompt], config: RunConfig) -> tuple[list[Prompt], RunCheck]:
    """Compare the prompts with the test items of every benchmark the data source has.

    ``strict`` leaves out what equals or nearly equals a test item, ``report`` only says so, ``off`` does not look.
    """
    if config.dedup == "off":
        return list(prompts), RunCheck(dedup="off", report=None, not_compared={}, num_kept=len(prompts))
    report, missing = _compare(prompts, config)
    removed = report.removed_ids if config.dedup == "strict" else frozenset()
    kept = [prompt for prompt in prompts if prompt.prompt_id not in removed]
    if not kept:
        raise ValueError(
            f"all {len(prompts)} training problems are copies of test items; train on other data, or use --dedup report"
        )
    return kept, RunCheck(dedup=config.dedup, report=report, not_compared=missing, num_kept=len(kept))


def _compare(prompts: Sequence[Prompt], config: RunConfig) -> tuple[Report, dict[str, str]]:
    source = open_source(config.data)
    is_embedded = source.kind == "embedded"
    if is_embedded and config.tasks in _embedded:
        return _embedded[config.tasks]
    tests, missing = evaluation_texts(source, task_names())
    if not tests:
        raise ValueError(
            f"no test items in {source.description} to compare the training problems with; add the test files, or use "
            "--dedup off"
        )
    report = check_texts(
        [text_of_prompt(prompt) for prompt in prompts],
        tests,
        training_name=f"training problems of {source.description}",
        evaluation_name=f"test items of {source.description}",
        max_variants=100,
        align_variants=False,
    )
    if is_embedded:
        _embedded[config.tasks] = report, missing
    return report, missing
