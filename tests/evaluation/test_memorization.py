"""The memorization probe tells a model that was trained on the test items from one that was not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from agpo_bench.commands.probe import fresh_items
from agpo_bench.data.benchmarks import load_task, open_source
from agpo_bench.data.embedded.tokenizer import build_tokenizer
from agpo_bench.data.rows import Item
from agpo_bench.data.sources import LoadedSplit
from agpo_bench.evaluation.memorization import Memorization, Probe, probe_memorization
from agpo_bench.evaluation.memorization_controls import Paraphraser, cut_in_half, recalled_values, rotated, skeleton
from agpo_bench.evaluation.memorization_intervals import Scored, paired, unpaired
from agpo_bench.records import Reference
from agpo_bench.rollout.torch_sampler import TorchSampler
from agpo_bench.training.model import LoadedModel, wrap_model
from agpo_bench.training.warm_start import new_model

NUM_ITEMS = 60


def first_items(task: str) -> LoadedSplit:
    split = open_source("embedded").load(load_task(task), "test")
    return replace(split, items=split.items[:NUM_ITEMS])


def trained_on(items: Sequence[Item], *, steps: int = 500, seed: int = 0) -> LoadedModel:
    """The embedded architecture, trained from nothing on whole texts and on answers to half the question."""
    tokenizer = build_tokenizer()
    model = new_model(tokenizer, seed=seed)
    asked = [one.prompt for item in items for one in (item, cut_in_half(item))]
    texts = [f"{prompt}{items[number // 2].solution}{tokenizer.eos_token}" for number, prompt in enumerate(asked)]
    ids = [tokenizer(text)["input_ids"] for text in texts]
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    rng = random.Random(seed)
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


@pytest.fixture(scope="module", params=[0, 1])
def results(request: pytest.FixtureRequest) -> tuple[Memorization, Memorization]:
    """Of a model that saw the test items, and of one that saw as many others of the same kind; two seeds."""
    split = first_items("gsm8k")
    others = open_source("embedded").load(load_task("gsm8k"), "train").items[:NUM_ITEMS]
    return tuple(probe(trained_on(items, seed=request.param), split) for items in (split.items, others))


@pytest.mark.slow
@pytest.mark.parametrize("control", ["prefix_paraphrase", "prefix_fresh"])
def test_a_model_trained_on_the_test_items_is_told_from_one_that_was_not(results, control: Probe) -> None:
    """Against both controls, the two intervals do not meet."""
    knows, does_not = (result.probes[control] for result in results)
    assert knows.low > max(0.0, does_not.high)
    assert does_not.low <= 0


@pytest.mark.slow
def test_the_verdict_says_which_model_knows_the_items(results) -> None:
    knows, does_not = results
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
    # Items, four paraphrases and fresh items are continued, items and fresh items answered: a token each at least.
    assert knows.num_tokens > 8 * NUM_ITEMS


def test_the_same_seed_gives_the_same_result() -> None:
    split = first_items("gsm8k")
    loaded = trained_on(split.items, steps=2)
    assert probe(loaded, split) == probe(loaded, split)


def test_rotated_options_keep_the_gold_with_its_text() -> None:
    reference = Reference(gold="AD", question="Which?", options=("one", "two", "three", "four"))
    moved = rotated(Item(prompt_id="x/test/0", reference=reference, prompt="Which? (A)one (B)two (C)three (D)four"))
    assert moved is not None
    assert moved.reference.options == ("four", "one", "two", "three")
    assert moved.reference.gold == "AB"
    assert moved.prompt == "Which? (A)four (B)one (C)two (D)three"
    texts = dict(zip("ABCD", moved.reference.options, strict=True))
    assert {texts[letter] for letter in moved.reference.gold} == {"one", "four"}


def test_an_item_without_options_has_no_other_order() -> None:
    assert rotated(Item(prompt_id="x/test/0", reference=Reference(gold="3", question="How many?"))) is None


def test_a_high_temperature_is_refused() -> None:
    split = first_items("gsm8k")
    loaded = trained_on(split.items, steps=0)
    with pytest.raises(ValueError, match="would measure chance"):
        probe_memorization(loaded, TorchSampler(loaded), split, temperature=1.5)


def items_asking(*questions: str) -> list[Item]:
    return [Item(prompt_id=f"x/test/{n}", reference=Reference(gold="1", question=q)) for n, q in enumerate(questions)]


def test_a_paraphrase_has_the_values_of_other_items() -> None:
    """Numbers with as many digits, other people, the same where the item repeats one; and never an item itself."""
    items = items_asking(
        "Today Ada has 41 pens and gives 5 of 41.",
        "Now Bob has 37 pens and gives Cleo 8 of 37.",
        "Then Dora gets 37 more, and Egon gets 8.",
    )
    found = Paraphraser(items, seed=0).paraphrases(items[0], count=4)
    assert len(found) > 1
    for one in found:
        words = one.split()
        assert words[3] == words[-1].rstrip(".") == "37"
        assert words[1] in {"Bob", "Cleo", "Dora", "Egon"}
        assert words[7] == "8"
        assert skeleton(one) == skeleton(items[0].question)
    assert Paraphraser(items, seed=0).paraphrases(items[0], count=4) == found


def test_a_paraphrase_that_is_an_item_is_no_control() -> None:
    items = items_asking("What is 12 and 3?", "What is 34 and 5?", "What is 34 and 3?", "What is 12 and 5?")
    assert Paraphraser(items, seed=0).paraphrases(items[0], count=4) == []
    assert Paraphraser(items[:2], seed=0).paraphrases(items[0], count=4) == []


def test_items_of_one_template_count_once() -> None:
    """Two templates, one all right and one all wrong: resamples give -1, 0 or 1 a quarter, a half and a quarter."""
    pairs = [Scored(1.0, 0.0, "a")] * 50 + [Scored(0.0, 1.0, "b")] * 50
    found = paired(pairs, np.random.default_rng(0))
    assert found is not None
    assert (found.low, found.difference, found.high) == (-1.0, 0.0, 1.0)
    assert (found.num_items, found.num_templates) == (100, 2)
    alone = [Scored(one.score, one.control, str(n)) for n, one in enumerate(pairs)]
    apart = paired(alone, np.random.default_rng(0))
    assert apart is not None
    # A normal interval: 2.576 standard errors of 0.1.
    assert apart.high == pytest.approx(0.26, abs=0.02)
    assert paired(pairs[:50], np.random.default_rng(0)) is None
    assert unpaired(pairs, pairs[:50], np.random.default_rng(0)) is None


def test_values_of_the_prefix_and_words_do_not_count_as_recalled() -> None:
    rest = "gives Bob 5 of 37 pens. How many has Ada now?"
    assert recalled_values("Now Ada has 37 pens and", rest, "gives Bob 5 of 37 pens. How many has Ada now?") == 1.0
    assert recalled_values("Now Ada has 37 pens and", rest, "gives Bob 6 of 37 pens. How many has Ada now?") == 0.5
    assert recalled_values("Now Ada has 37 pens and", rest, "gives Tim 6 of 37 pens. How many has Ada now?") == 0.0
    assert recalled_values("Now Ada has 37 pens and", "has Ada now?", "has Ada now?") is None
