"""The memorization probe tells a model that was trained on the test items from one that was not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from agpo_bench.commands.probe import fresh_items
from agpo_bench.data.benchmarks import load_task, open_source
from agpo_bench.data.embedded.tokenizer import build_tokenizer
from agpo_bench.data.rows import Item
from agpo_bench.data.sources import LoadedSplit
from agpo_bench.evaluation.memorization import Memorization, _cut_in_half, _rotated, probe_memorization
from agpo_bench.records import Reference
from agpo_bench.rollout.torch_sampler import TorchSampler
from agpo_bench.training.model import LoadedModel, wrap_model
from agpo_bench.training.warm_start import new_model

NUM_ITEMS = 60


def first_items(task: str) -> LoadedSplit:
    split = open_source("embedded").load(load_task(task), "test")
    return replace(split, items=split.items[:NUM_ITEMS])


def trained_on(items: Sequence[Item], *, steps: int = 500) -> LoadedModel:
    """The embedded architecture, trained from nothing on whole texts and on answers to half the question."""
    tokenizer = build_tokenizer()
    model = new_model(tokenizer, seed=0)
    asked = [one.prompt for item in items for one in (item, _cut_in_half(item))]
    texts = [f"{prompt}{items[number // 2].solution}{tokenizer.eos_token}" for number, prompt in enumerate(asked)]
    ids = [tokenizer(text)["input_ids"] for text in texts]
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    rng = random.Random(0)
    model.train()
    for _ in range(steps):
        batch = rng.sample(ids, min(12, len(ids)))
        width = max(map(len, batch))
        padded = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in batch])
        logits = model(input_ids=padded[:, :-1]).logits
        target = padded[:, 1:].masked_fill(padded[:, 1:] == tokenizer.pad_token_id, -100)
        functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-100).backward()
        optimizer.step()
        optimizer.zero_grad()
    return wrap_model(model, tokenizer)


def probe(loaded: LoadedModel, split: LoadedSplit) -> Memorization:
    fresh = fresh_items(split.task.name, "test", seed=0)
    return probe_memorization(loaded, TorchSampler(loaded), split, fresh=fresh, max_new_tokens=30)


@pytest.fixture(scope="module")
def results() -> tuple[Memorization, Memorization]:
    """Of a model that saw the test items, and of one that saw as many others of the same kind."""
    split = first_items("gsm8k")
    others = open_source("embedded").load(load_task("gsm8k"), "train").items[:NUM_ITEMS]
    return probe(trained_on(split.items), split), probe(trained_on(others), split)


@pytest.mark.slow
def test_a_model_trained_on_the_test_items_is_told_from_one_that_was_not(results) -> None:
    knows, does_not = results
    assert knows.probes["prefix_paraphrase"].low > 0
    assert knows.probes["prefix_paraphrase"].difference > does_not.probes["prefix_paraphrase"].difference
    assert knows.probes["prefix_fresh"].low > max(0.0, does_not.probes["prefix_fresh"].high)
    assert knows.exact_rate > 0.5 > does_not.exact_rate
    assert "memorized (" in knows.verdict
    assert "memorized (" not in does_not.verdict


@pytest.mark.slow
def test_half_a_question_is_enough_for_a_model_that_knows_the_answers(results) -> None:
    knows, does_not = results
    assert knows.probes["answer"].items > does_not.probes["answer"].items + 0.3
    assert knows.probes["answer_fresh"].low > 0
    assert knows.probes["answer"].control < 0.3


@pytest.mark.slow
def test_sampled_tokens_are_counted(results) -> None:
    knows, _ = results
    # Three prefix sets and two answer sets of 60 items sample at least one token an item.
    assert knows.num_tokens > 4 * NUM_ITEMS


def test_the_same_seed_gives_the_same_result(results) -> None:
    split = first_items("gsm8k")
    loaded = trained_on(split.items, steps=2)
    assert probe(loaded, split) == probe(loaded, split)


def test_rotated_options_keep_the_gold_with_its_text() -> None:
    reference = Reference(gold="AD", question="Which?", options=("one", "two", "three", "four"))
    rotated = _rotated(Item(prompt_id="x/test/0", reference=reference, prompt="Which? (A)one (B)two (C)three (D)four"))
    assert rotated is not None
    assert rotated.reference.options == ("four", "one", "two", "three")
    assert rotated.reference.gold == "AB"
    assert rotated.prompt == "Which? (A)four (B)one (C)two (D)three"
    texts = dict(zip("ABCD", rotated.reference.options, strict=True))
    assert {texts[letter] for letter in rotated.reference.gold} == {"one", "four"}


def test_an_item_without_options_has_no_other_order() -> None:
    assert _rotated(Item(prompt_id="x/test/0", reference=Reference(gold="3", question="How many?"))) is None


def test_a_high_temperature_is_refused() -> None:
    split = first_items("gsm8k")
    loaded = trained_on(split.items, steps=0)
    with pytest.raises(ValueError, match="would measure chance"):
        probe_memorization(loaded, TorchSampler(loaded), split, temperature=1.5)
