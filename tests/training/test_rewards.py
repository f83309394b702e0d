"""Rewards come from the grader of each prompt's own task, and votes from its equivalence."""

from __future__ import annotations

from agpo_bench.records import Group, Prompt, Reference, Rollout, Verdict
from agpo_bench.training.rewards import Graded, grade_groups, vote_keys


def group(prompt_id: str, *texts: str) -> Group:
    rollouts = tuple(
        Rollout(
            sample_index=i,
            seed=i,
            response_ids=(1,),
            logprobs=(0.0,),
            entropies=None,
            text=text,
            is_finished=True,
            temperature=1.0,
            weights_version=0,
        )
        for i, text in enumerate(texts)
    )
    return Group(prompt_id=prompt_id, prompt_ids=(1,), rollouts=rollouts)


def prompt(prompt_id: str, task: str, gold: str) -> Prompt:
    return Prompt(prompt_id=prompt_id, task=task, text="", reference=Reference(gold=gold))


def test_each_prompt_is_graded_by_its_own_task_and_verdicts_stay_in_place() -> None:
    prompts = [prompt("a", "gsm8k", "12"), prompt("b", "math", "\\frac{1}{2}"), prompt("c", "gsm8k", "7")]
    groups = [
        group("a", "#### 12", "#### 13"),
        group("b", "\\boxed{\\frac{1}{2}}", "\\boxed{2}"),
        group("c", "#### 12", "#### 7"),
    ]
    graded = grade_groups(prompts, groups)
    assert graded.reward_PG.tolist() == [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    assert bool(graded.is_valid_PG.all())


def test_equal_answers_are_one_vote_and_missing_ones_have_no_key() -> None:
    prompts = [prompt("a", "gsm8k", "12")]
    graded = grade_groups(prompts, [group("a", "#### 12", "#### 12.0", "#### 13", "no idea at all")])
    first, second, third, fourth = vote_keys(prompts, graded)[0]
    assert first == second != third
    assert fourth is None


def test_a_failure_of_the_harness_is_no_score() -> None:
    failed = Verdict(score=0.0, answer=None, reason="timeout", is_error=True)
    graded = Graded.of([[failed, Verdict(score=1.0, answer="1", reason="correct")]])
    assert graded.is_valid_PG.tolist() == [[False, True]]
