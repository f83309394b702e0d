"""Everything that flows between the parts of the harness, and nothing else.

A prompt goes to the sampler, which returns a group of rollouts; the grader gives each rollout a verdict. No dict with
string keys crosses a module boundary: these classes do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Phase = Literal["probe", "train", "discarded", "pairs"]
"""Why a token was sampled. Every phase counts against the budget; evaluation is not a phase and never counts."""


@dataclass(frozen=True, kw_only=True)
class ProgramTest:
    """One test of a program: what it reads and what it must print."""

    stdin: str
    expected_stdout: str


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What a grader compares a response with. Never shown to the model or to a program under test."""

    gold: str
    """The answer exactly as the data set gives it (GSM8K: the text after ``####``; choice: letters; program: "")."""
    question: str = ""
    """The bare question, for rules that read it (answer typing, echo checks)."""
    options: tuple[str, ...] = ()
    """Texts of the offered options in order; option i has the letter chr(ord("A") + i). Empty when not a choice."""
    tests: tuple[ProgramTest, ...] = ()
    time_limit_seconds: float | None = None
    """CPU seconds a test may take; None when the data give none."""
    memory_limit_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One question as it is put to a model, before any chat template."""

    prompt_id: str
    """``<task>/<split>/<row>``: stable across runs, part of every sampling seed."""
    task: str
    text: str
    """The rendered user text, instructions included."""
    reference: Reference


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A grader's judgement of one response."""

    score: float
    """In [0, 1]; 0 when nothing was extracted. An infrastructure failure is not a score: see ``is_error``."""
    answer: str | None
    """The extracted answer in canonical form; None when the response states none. This is the vote key."""
    reason: str
    """A short code: ``correct``, ``wrong``, ``no_answer``, ``too_long``, ``timeout``, ``gold_unreadable`` …"""
    seconds: float = 0.0
    is_error: bool = False
    """True when the harness or the data failed, not the model. Such a rollout gets no advantage and leaves the mean."""
    alternatives: Mapping[str, float] = field(default_factory=dict)
    """Scores by other named rules (``strict``, ``math_hendrycks``, ``solved`` …), logged and never used as reward."""


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """One sampled response and what is known of it."""

    sample_index: int
    seed: int
    response_ids: tuple[int, ...]
    """Sampled token ids, the terminator included when one was sampled. These go to the trainer, never re-tokenised."""
    logprobs: tuple[float, ...]
    """Log-probability (nats) of each response token under the sampling policy: full vocabulary, at ``temperature``.

    From a separate engine (``Sampler.is_separate``) at temperature 1.
    """
    entropies: tuple[float, ...] | None
    """Full-vocabulary entropy (nats) at temperature 1 of the distribution each token was drawn from, if asked for.

    None from a separate engine.
    """
    text: str
    """Decoded response without special tokens, cut before the first stop string."""
    is_finished: bool
    """False when the length limit cut the response."""
    temperature: float
    weights_version: int

    @property
    def num_tokens(self) -> int:
        """Tokens this rollout costs: those sampled, the terminator included."""
        return len(self.response_ids)


@dataclass(frozen=True, kw_only=True)
class Group:
    """The rollouts of one prompt."""

    prompt_id: str
    prompt_ids: tuple[int, ...]
    rollouts: tuple[Rollout, ...]

    @property
    def num_tokens(self) -> int:
        """Sampled tokens of the whole group."""
        return sum(rollout.num_tokens for rollout in self.rollouts)
