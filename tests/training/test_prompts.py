"""Every epoch shows each prompt once, no batch holds one twice, and the cursor can be put back."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from agpo_bench.records import Prompt, Reference
from agpo_bench.training.prompts import PromptStream


def some_prompts(count: int) -> list[Prompt]:
    return [Prompt(prompt_id=f"t/train/{i}", task="t", text=str(i), reference=Reference(gold="")) for i in range(count)]


def names(prompts: list[Prompt]) -> list[str]:
    return [prompt.prompt_id for prompt in prompts]


def test_an_epoch_shows_every_prompt_once_even_when_batches_do_not_divide_it() -> None:
    stream = PromptStream(some_prompts(10), seed=1)
    seen = [name for _ in range(30) for name in names(stream.take(4))]
    assert all(count == 12 for count in Counter(seen).values())


@pytest.mark.parametrize("size", [1, 3, 4, 7, 9, 10])
def test_no_batch_holds_a_prompt_twice(size: int) -> None:
    stream = PromptStream(some_prompts(10), seed=3)
    for _ in range(50):
        batch = names(stream.take(size))
        assert len(set(batch)) == size


def test_epochs_and_seeds_have_different_orders() -> None:
    stream = PromptStream(some_prompts(20), seed=5)
    first, second = names(stream.take(20)), names(stream.take(20))
    assert sorted(first) == sorted(second)
    assert first != second
    assert first != names(PromptStream(some_prompts(20), seed=6).take(20))
    assert first == names(PromptStream(some_prompts(20), seed=5).take(20))


def test_a_restored_cursor_goes_on_with_the_same_prompts() -> None:
    stream = PromptStream(some_prompts(11), seed=2)
    for _ in range(4):
        stream.take(3)
    stream.draw(2, weights=[1.0] * 11)
    saved = json.loads(json.dumps(stream.to_json()))
    expected = [names(stream.take(3)) for _ in range(10)] + [names(stream.draw(3, weights=[1.0] * 11))]
    other = PromptStream(some_prompts(11), seed=2)
    other.restore(saved)
    assert [names(other.take(3)) for _ in range(10)] + [names(other.draw(3, weights=[1.0] * 11))] == expected


def test_data_of_another_size_cannot_be_resumed() -> None:
    saved = PromptStream(some_prompts(5), seed=1).to_json()
    with pytest.raises(ValueError, match="5 training problems and the data now hold 6"):
        PromptStream(some_prompts(6), seed=1).restore(saved)


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch of 6 prompts"):
        PromptStream(some_prompts(5), seed=1).take(6)


def test_prompts_are_drawn_in_proportion_to_their_weights() -> None:
    stream = PromptStream(some_prompts(3), seed=9)
    counts = Counter(stream.draw(1, weights=[1.0, 2.0, 5.0])[0].prompt_id for _ in range(8000))
    for index, share in enumerate((1 / 8, 2 / 8, 5 / 8)):
        # Four standard errors of a binomial share over 8,000 draws.
        assert counts[f"t/train/{index}"] / 8000 == pytest.approx(share, abs=4 * (share * (1 - share) / 8000) ** 0.5)


def test_a_weighted_batch_holds_different_prompts() -> None:
    stream = PromptStream(some_prompts(6), seed=9)
    for _ in range(20):
        assert len(set(names(stream.draw(6, weights=[1e-6, 1, 1, 1, 1, 100])))) == 6
