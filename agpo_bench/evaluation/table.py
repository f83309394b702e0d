"""The results of an evaluation as plain rows, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from agpo_bench.evaluation.results import EvalResult

HEADERS = ("model", "task", "score %", "± se", "n", "parsed %", "cut %", "errors", "Maj@k %", "tokens")


def result_rows(results: Sequence[EvalResult]) -> list[tuple[str, ...]]:
    """One row a result, in the order given; the mean over tasks after each model that has several."""
    rows: list[tuple[str, ...]] = []
    for position, result in enumerate(results):
        rows.append(_row(result))
        following = results[position + 1] if position + 1 < len(results) else None
        if following is None or _label(following) != _label(result):
            of_model = [other for other in results if _label(other) == _label(result)]
            scores = [other.accuracy for other in of_model if other.accuracy is not None]
            if len(of_model) > 1 and len(scores) == len(of_model):
                mean = f"{100 * sum(scores) / len(scores):.1f}"
                rows.append((_label(result), "mean of tasks", mean, *[""] * (len(HEADERS) - 3)))
    return rows


def format_table(results: Sequence[EvalResult]) -> str:
    """Aligned text with what the numbers stand on below it."""
    rows = [HEADERS, *result_rows(results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADERS))]
    lines = [
        "  ".join(cell.ljust(width) if column < 2 else cell.rjust(width) for column, (cell, width) in pairs).rstrip()
        for pairs in (list(enumerate(zip(row, widths, strict=True))) for row in rows)
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*lines, "", *_notes(results)])


def _row(result: EvalResult) -> tuple[str, ...]:
    return (
        _label(result),
        result.title,
        _percent(result.accuracy) + ("" if result.is_complete else " (incomplete)"),
        _percent(result.stderr),
        str(result.num_items),
        _percent(result.parse_rate),
        _percent(result.truncation_rate),
        str(result.error_count),
        " ".join(f"{k}:{100 * value:.1f}" for k, value in sorted(result.maj.items())) or "–",
        str(result.tokens_eval),
    )


def _label(result: EvalResult) -> str:
    return result.title_method if result.seed is None else f"{result.title_method} seed {result.seed}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _notes(results: Sequence[EvalResult]) -> list[str]:
    notes = [f"Data: {source}." for source in dict.fromkeys(result.data_source for result in results)]
    limits = sorted({result.limit for result in results if result.limit is not None})
    if limits:
        notes.append(f"Only the first {limits[0]} items of each benchmark: not its score.")
    modes = sorted({result.grading_mode for result in results} - {"official"})
    notes += [f"Graded by the published rule {mode!r}, its defects included." for mode in modes]
    for result in results:
        if result.num_leaked:
            without = result.alternatives.get("without_leaked")
            notes.append(
                f"{_label(result)}, {result.title}: the few-shot prompt holds {result.num_leaked} of the items asked; "
                f"without them {_percent(without)} %."
            )
        if not result.is_complete:
            notes.append(
                f"{_label(result)}, {result.title}: {result.error_count} responses could not be graded by no fault of "
                "the model; they are left out. Evaluate again to retry."
            )
    return notes
