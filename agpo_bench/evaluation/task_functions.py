"""The functions that the task files name: what lm-eval calls, whether from here or from its own command line.

An unmodified ``lm_eval --include_path tasks --tasks agpo_gsm8k`` takes its data from the hub;
``--metadata '{"data": "DIR"}'`` or ``AGPO_BENCH_DATA=DIR`` names a folder of benchmark files or ``embedded``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agpo_bench.data.benchmarks import grader_for, load_task, open_source
from agpo_bench.data.few_shot import Examples
from agpo_bench.data.rows import reference_from_json, reference_to_json
from agpo_bench.records import Verdict

if TYPE_CHECKING:
    import datasets

Doc = Mapping[str, Any]
Graded = Mapping[str, Any]
"""A verdict as plain values: what lm-eval logs among the filtered responses."""

DATA_VARIABLE = "AGPO_BENCH_DATA"


def dataset(
    *,
    name: str,
    data: str | None = None,
    split: str = "test",
    num_few_shot: int = 0,
    few_shot_source: str | None = None,
    grading: str = "official",
    **other: Any,
) -> dict[str, datasets.Dataset]:
    """The items asked, as lm-eval's split ``eval``; ``info.description`` tells where they come from, as JSON.

    lm-eval passes everything under ``metadata:`` of the task file and of its own ``--metadata``; ``other`` is the rest.
    """
    import datasets

    del other
    task = load_task(name)
    source = open_source(data or os.environ.get(DATA_VARIABLE) or "hub")
    loaded = source.load(task, split)  # type: ignore[arg-type]
    examples = Examples.find(loaded, num_few_shot=num_few_shot, source_name=few_shot_source)
    docs = [
        {
            "prompt_id": item.prompt_id,
            "task": task.name,
            "prompt": examples.prompt(item) if examples else loaded.render(item),
            "target": item.reference.gold,
            "reference": reference_to_json(item.reference),
            "grading": grading,
            "num_few_shot": num_few_shot,
            "is_leaked": examples is not None and examples.leaks(item),
        }
        for item in loaded.items
    ]
    origin = {
        "kind": source.kind,
        "description": source.description,
        "checksum": loaded.checksum,
        "files": dict(loaded.files),
        "split": split,
        "few_shot_source": examples.source_name if examples else "none",
    }
    info = datasets.DatasetInfo(description=json.dumps(origin, ensure_ascii=False))
    return {"eval": datasets.Dataset.from_list(docs, info=info)}


def grade(resps: Iterable[Sequence[str]], docs: Iterable[Doc]) -> list[list[Graded]]:
    """lm-eval filter: every response of every item graded at once, so that graders can work in parallel."""
    docs, responses = list(docs), [list(draws) for draws in resps]
    if not docs:
        return []
    pairs = [
        (text, reference)
        for doc, draws in zip(docs, responses, strict=True)
        for reference in [reference_from_json(doc["reference"])]
        for text in draws
    ]
    first = docs[0]
    grader = grader_for(first["task"], first["grading"], num_few_shot=first["num_few_shot"])
    verdicts = iter(grader.grade_many(pairs))
    return [[_graded(next(verdicts)) for _ in draws] for draws in responses]


def count(doc: Doc, results: Sequence[Sequence[Graded]]) -> dict[str, float]:
    """lm-eval ``process_results``: the metrics of one item from its first response.

    A response that could not be graded by no fault of the model gives no score: it leaves the mean and is counted.
    """
    del doc
    first = results[0][0]
    if first["is_error"]:
        return {"failed": 1.0}
    return {
        "score": first["score"],
        "parsed": float(first["answer"] is not None),
        "failed": 0.0,
        **first["alternatives"],
    }


def _graded(verdict: Verdict) -> Graded:
    return {
        "score": verdict.score,
        "answer": verdict.answer,
        "reason": verdict.reason,
        "is_error": verdict.is_error,
        "alternatives": dict(verdict.alternatives),
    }
