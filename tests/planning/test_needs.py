import pytest
import yaml

from agpo_bench.methods.method import Method
from agpo_bench.methods.recipe import load_method
from agpo_bench.methods.registry import method_names
from agpo_bench.methods.slots import _OWN_PARTS
from agpo_bench.planning.needs import (
    DEFAULT_PARTS,
    EXTRA_ROLLOUTS,
    NEEDS_MINIBATCH_STATISTICS,
    NEEDS_REFERENCE,
    needs_of,
    read_needs,
)


@pytest.mark.parametrize("name", method_names())
def test_needs_read_from_the_file_are_those_of_the_method(name: str) -> None:
    method = load_method(name)
    needs = read_needs(name)
    assert needs == needs_of(method)
    for size in (4, 8):
        assert needs.rollouts_per_prompt(size) == method.rollouts_per_prompt(size)
        assert needs.probe_size(size) == method.probe_size(size)


def test_the_tables_hold_what_the_parts_declare() -> None:
    parts = {(slot, str(part.model_fields["use"].default)): part for slot, own in _OWN_PARTS.items() for part in own}
    assert {key for key, part in parts.items() if part.needs_reference} == NEEDS_REFERENCE
    assert {key for key, part in parts.items() if part.needs_minibatch_statistics} == NEEDS_MINIBATCH_STATISTICS
    assert {key: part.extra_rollouts for key, part in parts.items() if part.extra_rollouts} == EXTRA_ROLLOUTS
    assert {slot: Method.model_fields[slot].default.use for slot in _OWN_PARTS} == DEFAULT_PARTS


def test_a_changed_recipe_has_the_changed_needs() -> None:
    assert read_needs("ppo").critic_trunk == "separate"
    assert read_needs("ppo", {"critic.trunk": "shared"}).critic_trunk == "shared"
    assert read_needs("agpo", {"probe.size": 4}).probe_size(8) == 4


def test_a_recipe_of_ones_own_is_read_by_its_path(tmp_path) -> None:  # type: ignore[no-untyped-def]
    recipe = load_method("grpo").model_dump(mode="json") | {"name": "mine", "group_size": 6}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(recipe))
    assert read_needs(str(path)).rollouts_per_prompt(8) == 6


def test_an_unknown_method_is_told_what_there_is() -> None:
    with pytest.raises(ValueError, match="no method 'nope'; trainers/ has agpo, "):
        read_needs("nope")
