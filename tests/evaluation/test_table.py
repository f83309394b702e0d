from __future__ import annotations

from agpo_bench.evaluation.results import PROTOCOL_VERSION, EvalResult
from agpo_bench.evaluation.table import format_table


def _result(task: str, accuracy: float | None, **changes: object) -> EvalResult:
    fields: dict[str, object] = {
        "task": task, "title": task.upper(), "language": "en", "data_source_kind": "embedded",
        "data_source": "embedded sample", "data_checksum": "0", "split": "test", "num_items": 200, "num_draws": 0,
        "accuracy": accuracy, "score_sum": 200 * (accuracy or 0), "stderr": 0.0354, "parse_rate": 0.99,
        "truncation_rate": 0.01, "error_count": 0, "tokens_eval": 2400, "grading_mode": "official",
        "protocol_version": PROTOCOL_VERSION, "task_version": 1, "num_few_shot": 0, "few_shot_source": "none",
        "max_new_tokens": 40, "temperature": None, "top_p": None, "sampling_seed": 0, "limit": None,
        "is_complete": True, "method": "initial", "title_method": "Initial model", "seed": None, "tokens_used": 0,
        "budget": None, "updates_per_rollout": None, "model": "m", "model_fingerprint": "f", "generation_key": "k",
        "versions": {}, "git_commit": None,
    }  # fmt: skip
    return EvalResult.model_validate({**fields, **changes})


def test_the_table_has_a_row_a_result_and_the_mean_of_each_model() -> None:
    agpo = {"method": "agpo", "title_method": "AGPO", "seed": 42}
    table = format_table([_result("gsm8k", 0.5), _result("math", 0.25), _result("gsm8k", 0.75, maj={4: 0.8}, **agpo)])
    assert table.splitlines() == [
        "model          task           score %  ± se    n  parsed %  cut %  errors  Maj@k %  tokens",
        "-------------  -------------  -------  ----  ---  --------  -----  ------  -------  ------",
        "Initial model  GSM8K             50.0   3.5  200      99.0    1.0       0        –    2400",
        "Initial model  MATH              25.0   3.5  200      99.0    1.0       0        –    2400",
        "Initial model  mean of tasks     37.5",
        "AGPO seed 42   GSM8K             75.0   3.5  200      99.0    1.0       0   4:80.0    2400",
        "",
        "Data: embedded sample.",
    ]


def test_what_limits_a_number_stands_below_the_table() -> None:
    text = format_table(
        [
            _result("gsm8k", 0.5, limit=8, grading_mode="deepseek"),
            _result("ocw", None, error_count=3, is_complete=False, num_leaked=2, alternatives={"without_leaked": 0.1}),
        ]
    )
    assert "Only the first 8 items of each benchmark: not its score." in text
    assert "Graded by the published rule 'deepseek', its defects included." in text
    assert "Initial model, OCW: the few-shot prompt holds 2 of the items asked; without them 10.0 %." in text
    assert "Initial model, OCW: 3 responses could not be graded" in text
    assert "mean of tasks" not in text
