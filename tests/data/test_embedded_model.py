from __future__ import annotations

import json

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from agpo_bench.config import PRESETS
from agpo_bench.data.embedded import embedded_items, embedded_model_directory
from agpo_bench.data.embedded.items import FAMILIES
from agpo_bench.data.embedded.tokenizer import build_tokenizer
from agpo_bench.training.model import load_model


@pytest.mark.parametrize("task", FAMILIES)
def test_every_text_comes_back_whole_from_the_shipped_tokenizer(task: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(embedded_model_directory()))
    items = [*embedded_items(task, "test"), *embedded_items(task, "dev"), *embedded_items(task, "train", count=200)]
    texts = [text for item in items for text in (item.prompt, item.direct, item.worked)]
    ids = tokenizer(texts)["input_ids"]
    assert tokenizer.unk_token_id not in {token for row in ids for token in row}
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == texts


@pytest.mark.parametrize("task", FAMILIES)
def test_a_response_starts_on_a_token_border_and_fits_the_presets_length(task: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(embedded_model_directory()))
    items = embedded_items(task, "train", count=300)
    pairs = [(item.prompt, response) for item in items for response in item.solutions.values()]
    prompt_ids = tokenizer([prompt for prompt, _ in pairs])["input_ids"]
    response_ids = tokenizer([response for _, response in pairs], add_special_tokens=False)["input_ids"]
    joined_ids = tokenizer([prompt + response for prompt, response in pairs])["input_ids"]
    assert [prompt + response for prompt, response in zip(prompt_ids, response_ids, strict=True)] == joined_ids
    assert max(len(row) for row in response_ids) + 1 <= PRESETS["embedded"]["max_new_tokens"]


def test_unknown_text_becomes_unknown_tokens_and_never_an_error() -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(embedded_model_directory()))
    ids = tokenizer("Wörld π \t\u0000 🎲 人口 <s> 12")["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.unk_token_id in ids
    assert tokenizer.decode(ids, skip_special_tokens=True).endswith("12")
    assert tokenizer("")["input_ids"] == [tokenizer.bos_token_id]


def test_a_prompt_opens_with_one_first_token_and_stays_open() -> None:
    tokenizer = build_tokenizer()
    ids = tokenizer(embedded_items("gsm8k", "test", count=1)[0].prompt)["input_ids"]
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids[-1] != tokenizer.eos_token_id


def test_the_shipped_model_is_small_loads_anywhere_and_matches_its_card() -> None:
    directory = embedded_model_directory()
    assert sum(path.stat().st_size for path in directory.iterdir()) < 3_000_000
    model = AutoModelForCausalLM.from_pretrained(str(directory))
    loaded = load_model(directory)
    card = json.loads((directory / "model_card.json").read_text(encoding="utf-8"))
    assert model.num_parameters() == card["num_parameters"] < 200_000
    assert loaded.fingerprint == card["fingerprint"]
    assert loaded.terminators == {loaded.tokenizer.eos_token_id}
    assert "embedded sample" in card["model"]


def test_the_shipped_tokenizer_is_the_one_the_generator_needs_now() -> None:
    shipped = AutoTokenizer.from_pretrained(str(embedded_model_directory()))
    assert shipped.get_vocab() == build_tokenizer().get_vocab()


def test_the_shipped_model_met_every_bound_of_its_gate() -> None:
    card = json.loads((embedded_model_directory() / "model_card.json").read_text(encoding="utf-8"))
    assert card["gate"]["missed"] == []
