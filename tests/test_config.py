"""Defaults are the paper's, presets are visible, and a mistake is one sentence."""

from __future__ import annotations

import pytest

from agpo_bench.config import PAPER_SEEDS, PRESETS, RunConfig, config_from, fingerprint, load_config, parse_token_count


def test_defaults_are_those_of_the_papers_section_4_1() -> None:
    config = RunConfig()
    assert config.group_size == 8
    assert config.top_p == 0.95
    assert config.max_length == 1024
    assert config.budget == 300_000_000
    assert (config.adam_beta1, config.adam_beta2, config.weight_decay) == (0.9, 0.95, 0.1)
    assert config.learning_rate == 1.5e-5
    assert config.learning_rate_schedule == "cosine"
    assert config.max_grad_norm == 1.0
    assert PAPER_SEEDS == (42, 1337, 2026)
    assert config.updates_per_rollout >= 4


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("300M", 300_000_000), ("150k", 150_000), ("6k", 6_000), ("6000", 6000), ("1.5M", 1_500_000), (7, 7)],
)
def test_budgets_are_read_as_people_write_them(text: object, tokens: int) -> None:
    assert parse_token_count(text) == tokens


@pytest.mark.parametrize("text", ["", "many", "-3", "1.0001k2", "k", "0.5"])
def test_a_budget_that_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="budget"):
        load_config("embedded", budget=text)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_is_a_valid_configuration(preset: str) -> None:
    assert load_config(preset).updates_per_rollout >= 4


def test_an_unknown_field_is_named_with_the_valid_ones() -> None:
    with pytest.raises(ValueError, match=r"no config field 'learning_rte'.*learning_rate"):
        config_from({"learning_rte": 1})


def test_an_unknown_preset_is_named_with_the_valid_ones() -> None:
    with pytest.raises(ValueError, match=r"no preset 'tiny'.*embedded"):
        load_config("tiny")


def test_a_value_out_of_range_names_the_field_and_the_value() -> None:
    with pytest.raises(ValueError, match=r"top_p = 1.5: .*less than or equal to 1"):
        load_config("embedded", top_p=1.5)


def test_a_minibatch_smaller_than_a_group_is_refused() -> None:
    with pytest.raises(ValueError, match="minibatches_per_epoch 8 is more than prompts_per_batch 4"):
        load_config("embedded", prompts_per_batch=4, minibatches_per_epoch=8)


def test_a_response_limit_beyond_the_length_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="max_new_tokens 600 is more than max_length 512"):
        load_config("embedded", max_new_tokens=600)


def test_tasks_are_read_from_a_list_with_commas() -> None:
    assert load_config("embedded", tasks="gsm8k, math").tasks == ("gsm8k", "math")


def test_a_configuration_survives_yaml_and_keeps_its_fingerprint() -> None:
    config = load_config("embedded", seed=7)
    plain = config.model_dump(mode="json")
    assert config_from(plain) == config
    assert fingerprint(plain) == fingerprint(dict(reversed(plain.items())))
    assert fingerprint(plain) != fingerprint(load_config("embedded", seed=8).model_dump(mode="json"))
