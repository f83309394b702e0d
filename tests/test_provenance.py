from __future__ import annotations

import subprocess
from pathlib import Path

from agpo_bench import provenance
from agpo_bench.records import Prompt, Reference
from agpo_bench.training.provenance import _checksums

CHECKOUT = Path(__file__).resolve().parents[1]


def test_the_commit_is_the_one_git_names() -> None:
    expected = None
    if (CHECKOUT / ".git").exists():
        command = ["git", "-C", str(CHECKOUT), "log", "-1", "--format=%H"]
        expected = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert provenance.git_commit() == expected


def test_versions_and_host_say_what_decides_numbers() -> None:
    assert {"agpo-bench", "torch", "transformers", "lm-eval"} <= set(provenance.versions())
    assert provenance.host()["cores"]


def test_the_checksum_of_training_problems_changes_with_text_answer_and_order() -> None:
    def problem(number: int, text: str = "q", gold: str = "1") -> Prompt:
        return Prompt(prompt_id=f"gsm8k/train/{number}", task="gsm8k", text=text, reference=Reference(gold=gold))

    base = _checksums([problem(0), problem(1)])["gsm8k"]
    assert base == _checksums([problem(0), problem(1)])["gsm8k"]
    others = [[problem(1), problem(0)], [problem(0), problem(1, text="Q")], [problem(0), problem(1, gold="2")]]
    assert len({base, *(_checksums(other)["gsm8k"] for other in others)}) == 4
