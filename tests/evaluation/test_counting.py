from __future__ import annotations

from math import sqrt

import pytest

from agpo_bench.evaluation.counting import summarise, with_votes
from agpo_bench.evaluation.results import PROTOCOL_VERSION, EvalResult, Sample

BLANK = EvalResult.model_validate(
    {
        "task": "gsm8k", "title": "GSM8K", "language": "en", "data_source_kind": "folder", "data_source": "s",
        "data_checksum": "0", "split": "test", "num_items": 0, "num_draws": 2, "accuracy": None, "score_sum": 0,
        "stderr": None, "parse_rate": None, "truncation_rate": 0, "error_count": 0, "tokens_eval": 0,
        "grading_mode": "official", "protocol_version": PROTOCOL_VERSION, "task_version": 1, "num_few_shot": 0,
        "few_shot_source": "none", "max_new_tokens": 8, "temperature": 1.0, "top_p": 1.0, "sampling_seed": 0,
        "limit": None, "is_complete": False, "method": "initial", "title_method": "Initial model", "seed": None,
        "tokens_used": 0, "budget": None, "updates_per_rollout": None, "model": "m", "model_fingerprint": "f",
        "generation_key": "k", "versions": {}, "git_commit": None,
    }
)  # fmt: skip


def _sample(item: int, draw: int, answer: str | None, score: float, **changes: object) -> Sample:
    fields: dict[str, object] = {
        "doc_id": item, "prompt_id": f"gsm8k/test/{item}", "doc_hash": "", "prompt_hash": "", "draw": draw,
        "draw_key": f"{item}-{draw}", "text": "", "answer": answer, "score": score, "reason": "", "is_error": False,
        "is_truncated": False, "is_leaked": False, "num_tokens": 3, "alternatives": {},
    }  # fmt: skip
    return Sample.model_validate({**fields, **changes})


def test_the_mean_leaves_out_what_could_not_be_graded() -> None:
    samples = [
        _sample(0, 0, "1", 1.0),
        _sample(1, 0, None, 0.0, is_truncated=True),
        _sample(2, 0, "2", 0.0),
        _sample(3, 0, None, 0.0, is_error=True, reason="harness_error"),
    ]
    result = summarise(samples, blank=BLANK)
    # Three graded items, one right: 1/3; two of three stated an answer; one of four ran into the limit.
    assert result.accuracy == pytest.approx(1 / 3)
    assert result.score_sum == 1.0
    assert result.parse_rate == pytest.approx(2 / 3)
    assert result.truncation_rate == 0.25
    # Deviations 2/3, -1/3, -1/3: variance (4/9 + 1/9 + 1/9) / 2 = 1/3, error sqrt(1/3/3) = 1/3.
    assert result.stderr == pytest.approx(1 / 3)
    assert (result.num_items, result.error_count, result.is_complete) == (4, 1, False)
    assert result.tokens_eval == 12


def test_votes_are_over_the_sampled_draws_and_not_the_greedy_one() -> None:
    samples = [
        _sample(0, 0, "9", 0.0), _sample(0, 1, "7", 1.0), _sample(0, 2, "7.0", 1.0), _sample(0, 3, "9", 0.0),
        _sample(1, 0, "5", 1.0), _sample(1, 1, None, 0.0), _sample(1, 2, "4", 0.0), _sample(1, 3, "5", 1.0),
    ]  # fmt: skip
    result = summarise(with_votes(samples, BLANK.task), blank=BLANK, ks=[1, 3])
    assert result.accuracy == 0.5
    # Item 0: 7 and 7.0 are one vote, two against one: 1. Item 1: 4 and 5 tie, worth 1/2. Mean 3/4.
    assert result.maj[3] == pytest.approx(0.75)
    # Maj@1 is one draw: 2/3 and 1/3 right, mean 1/2; so is avg over the draws.
    assert result.maj[1] == pytest.approx(0.5)
    assert result.avg_sampled == pytest.approx(0.5)
    assert result.pass_at == {1: pytest.approx(0.5), 3: 1.0}


def test_an_item_with_a_failed_draw_has_no_vote() -> None:
    samples = [
        _sample(0, 0, "1", 1.0), _sample(0, 1, "1", 1.0), _sample(0, 2, "1", 1.0),
        _sample(1, 0, "1", 1.0), _sample(1, 1, None, 0.0, is_error=True), _sample(1, 2, "2", 0.0),
    ]  # fmt: skip
    result = summarise(with_votes(samples, BLANK.task), blank=BLANK, ks=[2])
    assert result.maj == {2: 1.0}
    assert result.error_count == 1
    assert not result.is_complete


def test_programs_have_pass_at_k_and_no_vote() -> None:
    blank = BLANK.model_copy(update={"task": "codecontests"})
    samples = [_sample(0, 0, "p", 0.5), _sample(0, 1, "p", 0.5), _sample(0, 2, "q", 1.0)]
    result = summarise(with_votes(samples, blank.task), blank=blank, ks=[1, 2])
    assert result.maj == {}
    # A part of the tests is no pass: one of two draws.
    assert result.pass_at == {1: 0.5, 2: 1.0}
    assert result.accuracy == 0.5


def test_alternatives_are_means_over_the_items_that_have_them() -> None:
    samples = [
        _sample(0, 0, "1", 1.0, alternatives={"strict": 1.0, "single": 1.0}),
        _sample(1, 0, "1", 0.0, alternatives={"strict": 0.0}),
        _sample(2, 0, None, 0.0, is_error=True, alternatives={"strict": 0.0}),
    ]
    result = summarise(samples, blank=BLANK)
    assert result.alternatives == {"strict": 0.5, "single": 1.0}
    assert result.alternative_counts == {"strict": 2, "single": 1}


def test_leaked_items_are_left_out_of_a_second_mean() -> None:
    samples = [_sample(0, 0, "1", 1.0, is_leaked=True), _sample(1, 0, "1", 0.0), _sample(2, 0, "1", 1.0)]
    result = summarise(samples, blank=BLANK)
    assert result.accuracy == pytest.approx(2 / 3)
    assert result.alternatives["without_leaked"] == 0.5
    assert result.num_leaked == 1


def test_a_single_item_has_no_standard_error() -> None:
    assert summarise([_sample(0, 0, "1", 1.0)], blank=BLANK).stderr is None
    many = [_sample(item, 0, "1", float(item % 2)) for item in range(10)]
    # Five of ten: deviation 1/2, sample variance 10/4/9, error sqrt(10/36/10) = 1/6.
    assert summarise(many, blank=BLANK).stderr == pytest.approx(sqrt(10 / 36 / 10))
