from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from agpo_bench import paths
from agpo_bench.data import benchmarks
from agpo_bench.data.benchmarks import load_prompts, load_task, open_source, select_tasks, task_names

NINE = ("gsm8k", "math", "ocw", "sat", "mmlu_stem", "codecontests", "cmath", "gaokao_cloze", "gaokao_qa")


def test_the_nine_benchmarks_come_in_the_column_order_of_the_paper() -> None:
    # AGPO paper, Table 1; PROTOCOLS section 0.
    assert task_names() == NINE


@pytest.mark.parametrize("name", NINE)
def test_every_task_file_loads_and_is_complete(name: str) -> None:
    spec = load_task(name)
    assert spec.name == name
    assert spec.lm_eval_name == f"agpo_{name}"
    assert spec.language == ("zh" if name in NINE[6:] else "en")
    assert "{question}" in spec.prompt
    assert ("{options}" in spec.prompt) == (spec.row == "choice")
    assert ("\\boxed{}" in spec.prompt) == (spec.grader.kind != "program")
    assert spec.max_new_tokens == 1024  # the paper's limit, read as new tokens
    assert "test" in spec.files
    assert "test" in spec.hub.splits
    assert spec.licence


def test_no_file_of_the_folder_is_left_out_of_the_group() -> None:
    files = {path.stem for path in paths.definitions("tasks").glob("*.yaml")} - {"_generate", "agpo_all"}
    assert files == set(NINE)


def test_mmlu_stem_is_the_eighteen_subjects_of_its_authors() -> None:
    # hendrycks/test: 18 subjects; lm-eval's own mmlu_stem adds anatomy (PROTOCOLS section 5).
    configs = load_task("mmlu_stem").hub.configs
    assert len(set(configs)) == 18
    assert "anatomy" not in configs


def test_an_unknown_task_is_named_with_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"no task 'gsm9k'; tasks/ has gsm8k, math, ocw"):
        load_task("gsm9k")
    with pytest.raises(ValueError, match="no task '_generate'"):
        load_task("_generate")
    with pytest.raises(ValueError, match="no task"):
        load_task("../reports/main_results")


def test_task_lists_take_all_names_and_lm_eval_names_without_doubles() -> None:
    assert select_tasks("all") == list(NINE)
    assert select_tasks("cmath, agpo_gsm8k,cmath") == ["cmath", "gsm8k"]
    with pytest.raises(ValueError, match="no task"):
        select_tasks(" , ")


def test_a_wrong_field_of_a_task_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = paths.definitions("tasks")
    for file in folder.glob("*.yaml"):
        (tmp_path / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    text = (tmp_path / "sat.yaml").read_text(encoding="utf-8")
    (tmp_path / "sat.yaml").write_text(text.replace("language: en", "language: fr"), encoding="utf-8")
    monkeypatch.setattr(paths, "definitions", lambda kind: tmp_path)
    benchmarks.load_task.cache_clear()
    try:
        with pytest.raises(ValueError, match=r"sat\.yaml: metadata\.language: .*'fr'"):
            load_task("sat")
    finally:
        benchmarks.load_task.cache_clear()


def test_task_files_have_only_keys_that_lm_eval_knows() -> None:
    from lm_eval.config.task import TaskConfig

    known = set(TaskConfig.__dataclass_fields__) | {"include"}
    for name in (*NINE, "_generate"):
        text = (paths.definitions("tasks") / f"{name}.yaml").read_text(encoding="utf-8")
        content = yaml.load(text, Loader=benchmarks._PlainLoader)
        assert set(content) <= known, name


@pytest.mark.parametrize("name", NINE)
def test_embedded_prompts_are_the_items_own_text_and_say_what_they_are(name: str) -> None:
    source = open_source("embedded")
    assert "embedded sample" in source.description
    train = load_prompts(name, split="train", source=source, limit=20)
    test = load_prompts(name, split="test", source=source, limit=20)
    assert len(train) == len(test) == 20
    assert not {prompt.text for prompt in train} & {prompt.text for prompt in test}
    assert all("step by step" not in prompt.text and "逐步推理" not in prompt.text for prompt in train + test)
    assert [prompt.prompt_id for prompt in train][:2] == [f"{name}/train/0", f"{name}/train/1"]
