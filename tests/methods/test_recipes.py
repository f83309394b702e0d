"""The folder of recipes, and what is refused."""

from importlib.metadata import EntryPoint
from typing import ClassVar, Literal

import pytest
import torch
import yaml

from agpo_bench.methods import slots as slots_module
from agpo_bench.methods.clip import FixedClip
from agpo_bench.methods.describe import describe, diff, method_table, methods_page
from agpo_bench.methods.method import Method
from agpo_bench.methods.recipe import load_method
from agpo_bench.methods.registry import method_names
from agpo_bench.methods.slots import SLOTS, parts_of
from agpo_bench.paths import definitions

EVERY = method_names()


def test_the_methods_of_the_comparison_are_all_here():
    paper = {"ppo", "ppo_adaptive_kl", "dpo", "grpo", "grpo_ats", "agpo_no_ats", "agpo"}
    family = {
        "dr_grpo", "dapo", "gspo_sym", "gspo_asym", "gapo", "gapo_token", "f_grpo", "f_gspo", "cispo", "rloo",
        "reinforce_pp", "reinforce_pp_baseline", "ngrpo", "mc_grpo", "clip_cov", "kl_cov", "ctpo", "p3o", "spo",
        "psr_nsr", "pkpo", "passk", "four_q",
    }  # fmt: skip
    controls = {"grpo_eps05", "grpo_tau_mean", "grpo_g16", "agpo_replay", "agpo_released"}
    ablations = {"agpo_no_sigma", "agpo_no_skew", "agpo_no_vote", "agpo_no_kl", "agpo_mad", "agpo_iqr"}
    assert set(EVERY) == paper | family | controls | ablations


@pytest.mark.parametrize("name", EVERY)
def test_every_recipe_loads_is_named_after_its_file_and_survives_its_own_dump(name, tmp_path):
    method = load_method(name)
    assert method.name == name
    assert method.title and method.source and method.about
    resolved = tmp_path / "recipe.yaml"
    resolved.write_text(yaml.safe_dump(method.model_dump(mode="json"), sort_keys=False))
    assert load_method(resolved) == method


@pytest.mark.parametrize("name", EVERY)
def test_every_recipe_is_short_and_flat(name):
    text = (definitions("trainers") / f"{name}.yaml").read_text()
    assert 6 <= len(text.splitlines()) <= 25
    recipe = yaml.safe_load(text)
    for slot in SLOTS:
        part = recipe.get(slot, {})
        assert isinstance(part, str | dict)
        if isinstance(part, dict):
            assert not any(isinstance(value, dict) for value in part.values())


def test_agpo_and_its_baselines_differ_in_two_slots_only():
    agpo, grpo = load_method("agpo"), load_method("grpo")
    assert [item.where for item in diff(agpo, grpo)] == ["probe", "temperature", "clip"]
    assert [item.where for item in diff(agpo, load_method("grpo_ats"))] == ["clip"]
    assert [item.where for item in diff(agpo, load_method("agpo_no_ats"))] == ["temperature"]
    assert [(i.where, i.first, i.second) for i in diff(agpo, load_method("agpo_no_vote"))] == [
        ("probe.signals_mask", "1111", "1101")
    ]
    assert [item.where for item in diff(load_method("grpo"), load_method("grpo_eps05"))] == ["clip.low", "clip.high"]
    assert [item.where for item in diff(load_method("gspo_asym"), load_method("gapo"))] == ["clip"]
    assert diff(agpo, agpo) == []


def test_a_one_line_edit_of_a_file_is_another_method(tmp_path):
    text = (definitions("trainers") / "grpo.yaml").read_text()
    mine = tmp_path / "mine.yaml"
    mine.write_text(text.replace("name: grpo\n", "").replace("aggregation: sequence_mean", "aggregation: token_mean"))
    method = load_method(mine)
    assert method.name == "mine"
    assert [item.where for item in diff(load_method("grpo"), method)] == ["aggregation"]


def test_a_changed_recipe_says_so_in_its_title(tmp_path):
    copy = tmp_path / "mine.yaml"
    text = (definitions("trainers") / "grpo.yaml").read_text(encoding="utf-8")
    copy.write_text(text, encoding="utf-8")
    assert load_method(copy).title == "GRPO"
    assert load_method("grpo", {"clip.high": "0.28"}).title == "GRPO (clip.high=0.28)"
    copy.write_text(text.replace("low: 0.2", "low: 0.1"), encoding="utf-8")
    assert load_method(copy).title == "GRPO (mine)"
    copy.write_text(text.replace("title: GRPO", "title: My GRPO"), encoding="utf-8")
    assert load_method(copy).title == "My GRPO"


def test_overrides_read_text_as_yaml_and_a_new_part_forgets_the_old_fields():
    method = load_method("agpo", {"clip.base": "0.1", "group_size": "4", "probe.signals_mask": "'1011'"})
    assert (method.clip.base, method.group_size, method.probe.signals_mask) == (0.1, 4, "1011")
    fixed = load_method("agpo", {"clip.low": 0.3, "clip.use": "fixed"})
    assert (fixed.clip.use, fixed.clip.low, fixed.clip.high) == ("fixed", 0.3, 0.2)
    assert load_method("grpo", {"kl": "none"}).kl.use == "none"


SENTENCES = [
    ("nonesuch", {}, "no method 'nonesuch'; trainers/ has agpo, "),
    ("agpo", {"clip.radius": 1}, "clip 'adaptive' has no field 'radius'; it has base, minimum"),
    ("agpo", {"clips.base": 1}, "no slot 'clips' to set .*; slots are probe, temperature"),
    ("agpo", {"colour": 1}, "no field 'colour' to set; a recipe has name, title"),
    ("agpo", {"clip.use": "wide"}, "clip has no part 'wide'; use one of none, fixed, adaptive"),
    ("agpo", {"clip.base": -1}, "base = -1: input should be greater than 0"),
    ("agpo", {"clip.base": ".nan"}, "base = nan"),
    ("agpo", {"clip.base": "abc"}, "base = 'abc'"),
    ("agpo", {"clip.minimum": 0.5}, "clip minimum 0.5 exceeds maximum 0.4"),
    ("agpo", {"probe.signals_mask": "'11'"}, "signals_mask = '11'"),
    ("agpo", {"temperature.base": 2.0}, r"temperature base 2.0 lies outside \[0.5, 1.5\]"),
    ("agpo", {"probe.use": "none"}, "temperature 'adaptive' reads a probe; set probe to"),
    ("grpo", {"probe.use": "group"}, "no part reads the probe"),
    ("grpo", {"temperature.value": 0}, "value = 0: input should be greater than 0"),
    ("grpo", {"ratio.use": "sequence", "aggregation.use": "token_mean"}, "ratio 'sequence' with aggregation"),
    ("grpo", {"clip.use": "none"}, "surrogate 'clipped' needs a clip"),
    ("grpo", {"surrogate.use": "unclipped"}, "surrogate 'unclipped' ignores the clip; remove clip 'fixed'"),
    ("cispo", {"ratio.use": "sequence_mean"}, "surrogate 'cispo' weighs tokens"),
    ("grpo", {"clip.use": "position"}, "clip 'position' bounds a cumulative ratio"),
    ("grpo", {"kl.coefficient": 0}, "coefficient = 0"),
    ("grpo", {"critic.use": "value_head"}, "advantage 'group_zscore' and critic 'value_head' do not fit"),
    ("ppo", {"critic.use": "none"}, "advantage 'gae' and critic 'none' do not fit"),
    ("ppo", {"shaping.use": "focal"}, "shaping 'focal' changes rollout advantages"),
    ("grpo", {"group_size": 1}, "group size 1 gives no spread for this method; use 2 or more"),
    ("dpo", {"clip.use": "fixed"}, "a preference loss has no clip; remove clip 'fixed'"),
    ("dpo", {"kl.use": "loss"}, "a preference loss has no kl"),
    ("dpo", {"groups.use": "drop_degenerate"}, "a preference loss chooses pairs, not groups"),
    ("dpo", {"loop": "online"}, "preference 'dpo' needs loop: preference"),
    ("grpo", {"loop": "preference"}, "loop 'preference' trains on pairs"),
    ("agpo_released", {"groups.use": "drop_degenerate"}, "probe scope 'prompt' ties a group to its probe"),
    ("gapo", {"clip.high_max": 0.001}, "clip high_max 0.001 is below low 0.003"),
    ("passk", {"kl.use": "reward"}, "advantage 'pass_k' counts right answers"),
]


@pytest.mark.parametrize(("name", "overrides", "sentence"), SENTENCES)
def test_what_cannot_work_is_refused_with_one_sentence(name, overrides, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        load_method(name, overrides)
    message = str(caught.value)
    assert "\n" not in message
    assert "pydantic" not in message


def test_a_broken_file_is_refused_with_one_sentence(tmp_path):
    for text, sentence in (
        ("clip: {use: [", "is not readable YAML"),
        ("- a\n", "must be a mapping"),
        ("title: t\nsource: s\nclipp: none\n", "no field 'clipp' in a recipe; it has name, title"),
        ("source: s\n", "title: Field required"),
    ):
        path = tmp_path / "broken.yaml"
        path.write_text(text)
        with pytest.raises(ValueError, match=sentence) as caught:
            load_method(path)
        assert "\n" not in str(caught.value)
        assert "broken.yaml" in str(caught.value)


def test_run_settings_under_which_a_method_means_nothing_are_refused():
    load_method("agpo").check_run(group_size=8, updates_per_rollout=4)
    load_method("grpo").check_run(group_size=2, updates_per_rollout=1)
    load_method("grpo_g16").check_run(group_size=1, updates_per_rollout=1)
    with pytest.raises(ValueError, match="agpo: with 1 update a rollout batch the ratio is 1 and clip 'adaptive'"):
        load_method("agpo").check_run(group_size=8, updates_per_rollout=1)
    with pytest.raises(ValueError, match="grpo: group size 1 gives no spread; use 2 or more"):
        load_method("grpo").check_run(group_size=1, updates_per_rollout=4)
    # Nine rollouts are sampled, one of them leaves: the group size meant is the run's.
    with pytest.raises(ValueError, match="mc_grpo: group size 1"):
        load_method("mc_grpo").check_run(group_size=1, updates_per_rollout=4)


def test_needs_are_the_union_of_the_parts():
    def needing(field):
        return {name for name in EVERY if getattr(load_method(name).needs, field)}

    assert needing("critic") == {"ppo", "ppo_adaptive_kl"}
    assert needing("pairs") == {"dpo"}
    assert needing("minibatch_statistics") == {"clip_cov", "kl_cov", "p3o"}
    assert needing("token_entropy") == {"four_q"}
    assert needing("prompt_weights") == {"spo"}
    assert needing("step_kl") == needing("entropy")
    assert needing("probe") == {name for name in EVERY if name.startswith("agpo")} | {"grpo_ats"}
    assert "dapo" not in needing("reference") and "grpo" in needing("reference")
    assert load_method("mc_grpo").rollouts_per_prompt(8) == 9
    assert load_method("grpo_g16").rollouts_per_prompt(8) == 16
    assert load_method("agpo").probe_size(8) == 8 and load_method("grpo").probe_size(8) == 0
    assert load_method("agpo").needs.min_updates_per_rollout == 2
    assert load_method("dapo").max_sampling_rounds == 10 and load_method("grpo").max_sampling_rounds == 1


def test_only_the_reconstruction_says_that_it_is_one():
    assert [name for name in EVERY if load_method(name).is_reconstruction] == ["four_q"]
    assert "reconstruction" in load_method("four_q").title
    with pytest.raises(ValueError, match="a reconstruction needs a caption that says what was assumed"):
        load_method("four_q", {"caption": "''"})


def test_every_reconstruction_tells_its_assumptions_in_captions_in_the_page_and_in_its_description():
    method = load_method("four_q")
    assert "assumed" in method.caption and "slope 1" in method.caption
    assert method.model_dump(mode="json")["caption"] == method.caption
    assert method.caption in methods_page() and method.caption in describe(method)


def test_every_part_says_its_formula_and_has_a_name_of_its_own():
    for slot in SLOTS:
        for use, part in parts_of(slot).items():
            assert part.slot == slot
            assert len(part.__doc__ or "") > 10, (slot, use)


def test_a_method_cannot_be_changed_in_place():
    method = load_method("grpo")
    with pytest.raises(ValueError, match="frozen"):
        method.clip.low = 0.5
    with pytest.raises(ValueError, match="frozen"):
        method.group_size = 3


class HalvingClip(FixedClip):
    """Half the fixed bounds; stands for a part that another package installs."""

    use: Literal["halving"] = "halving"
    slot: ClassVar[str] = "clip"


def test_parts_of_other_packages_join_their_slot(monkeypatch, request):
    entry = EntryPoint(name="halving", value=f"{__name__}:HalvingClip", group="agpo_bench.parts")
    monkeypatch.setattr(EntryPoint, "load", lambda self: HalvingClip)
    monkeypatch.setattr(slots_module, "entry_points", lambda group: [entry] if group == entry.group else [])
    slots_module.installed_parts.cache_clear()
    request.addfinalizer(slots_module.installed_parts.cache_clear)
    method = load_method("grpo", {"clip.use": "halving", "clip.low": 0.1})
    assert isinstance(method.clip, HalvingClip)
    assert method.model_dump()["clip"] == {"use": "halving", "low": 0.1, "high": 0.2}
    assert "halving" not in parts_of("ratio")


def test_the_listing_has_one_row_a_method_and_one_column_a_slot():
    rows = method_table()
    assert [row.name for row in rows] == EVERY
    assert all(tuple(row.parts) == SLOTS for row in rows)
    assert next(row for row in rows if row.name == "gapo").parts["clip"] == "group"
    dpo = next(row for row in rows if row.name == "dpo").parts
    assert {slot: use for slot, use in dpo.items() if use != "-"} == {"temperature": "fixed", "preference": "dpo"}
    assert ("clip", "-") in [(item.where, item.first) for item in diff(load_method("dpo"), load_method("grpo"))]


def test_a_description_shows_the_resolved_recipe_with_its_equations():
    text = describe(load_method("agpo", {"clip.base": 0.123}))
    assert "eps_t = clip(base H (1 + delta E) / (1 + alpha sigma + zeta |kappa| + gamma D), minimum, maximum)" in text
    assert "base 0.123" in text and "signals_mask 1111" in text
    assert "critic" not in text
    assert "RECONSTRUCTION" in describe(load_method("four_q"))
    assert "log sigmoid" in describe(load_method("dpo"))


def test_the_page_has_every_method_its_source_and_every_part_in_use():
    page = methods_page({"grpo": "mean accuracy 0.5"})
    for name in EVERY:
        method = load_method(name)
        assert f"## {method.title} (`{name}`)" in page
        assert method.source in page
        for sentence in method.departures:
            assert sentence in page
    assert "Measured: mean accuracy 0.5" in page
    assert "Group-adaptive upper bound (GAPO, arXiv 2609.00444" in page


def test_method_defaults_alone_are_the_plain_policy_gradient():
    method = Method(name="plain", title="Plain", source="none")
    assert {slot: part.use for slot, part in method.parts.items() if part.use not in ("none", "all", "score")} == {
        "temperature": "fixed",
        "advantage": "raw",
        "ratio": "token",
        "surrogate": "unclipped",
        "aggregation": "token_mean",
    }
    assert torch.tensor(method.needs.min_group_size) == 1
