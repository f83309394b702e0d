from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from agpo_bench.data.benchmarks import load_prompts, load_task, open_source, task_names
from agpo_bench.data.few_shot import Examples
from agpo_bench.data.rows import read_row, reference_from_json, reference_to_json
from agpo_bench.data.sources import LoadedSplit, question_key


def _module() -> ModuleType:
    path = Path(__file__).with_name("benchmark_files.py")
    spec = importlib.util.spec_from_file_location("benchmark_files", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


files = _module()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    written: Path = files.write_files(tmp_path / "data")
    return written


def _load(folder: Path, name: str, split: str = "test") -> LoadedSplit:
    return open_source(folder).load(load_task(name), split)  # type: ignore[arg-type]


def _manifest(folder: Path) -> None:
    content: dict[str, list[dict[str, str]]] = {}
    for path in sorted(folder.glob("*/*.jsonl")):
        entry = {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        content.setdefault(path.parent.name, []).append(entry)
    (folder / "MANIFEST.json").write_text(json.dumps(content))


def test_gsm8k_gold_is_what_follows_the_marker_and_solutions_lose_calculator_notes(folder: Path) -> None:
    test = _load(folder, "gsm8k")
    assert [item.reference.gold for item in test.items] == ["2,400", "-3", "12", "18"]
    first = _load(folder, "gsm8k", "train").items[0]
    assert "<<" not in first.solution
    assert first.solution.endswith(f"The answer is \\boxed{{{first.reference.gold}}}.")


def test_a_line_separator_inside_a_question_does_not_cut_the_row(folder: Path) -> None:
    assert "\u2028" in _load(folder, "gsm8k").items[2].question


def test_math_gold_is_the_last_balanced_box_and_files_join_in_order_of_name(folder: Path) -> None:
    assert [item.reference.gold for item in _load(folder, "math").items] == ["\\frac{1}{2}", "-1"]
    train = _load(folder, "math", "train")
    assert [item.question for item in train.items] == ["Solve $x-1=0$.", "Side of a unit square?"]
    assert [item.prompt_id for item in train.items] == ["math/train/0", "math/train/1"]


def test_braces_and_template_words_of_a_question_stay_as_they_are(folder: Path) -> None:
    (prompt, _) = load_prompts("math", split="test", source=open_source(folder))
    assert prompt.text.startswith("Write $\\{1,2\\}$ {question} {options}\n")


def test_sat_options_are_cut_at_their_markers_in_order(folder: Path) -> None:
    first, second = _load(folder, "sat").items
    assert first.reference.options == ("$f(-6)$", "set A) is", "3.", "$D$")
    assert second.reference.options == ("1,190", "1,900", "2,900", "19,000")


def test_options_of_any_json_type_become_text_and_are_listed_with_letters(folder: Path) -> None:
    (prompt,) = load_prompts("mmlu_stem", split="test", source=open_source(folder))
    assert prompt.reference.options == ("True", "False", "1", "No")
    assert "\n(A) True\n(B) False\n(C) 1\n(D) No\n" in prompt.text


def test_letter_sets_are_sorted_and_written_prefixes_taken_off(folder: Path) -> None:
    (item,) = _load(folder, "gaokao_qa").items
    assert item.reference.gold == "AC"
    assert item.reference.options == ("$1$", "$2$", "$3$", "$4$")


@pytest.mark.parametrize(
    ("name", "row", "gold"),
    [
        ("mmlu_stem", {"question": "q", "choices": ["a", "b", "c", "d"], "answer": 3, "subject": "s"}, "D"),
        ("sat", {"Question": "q", "Possible Answers": "A) 1 B) 2 C) 3 D) 4", "Answer": "D"}, "D"),
        (
            "gaokao_qa",
            {"query": "问题：q 选项：(A)1 (B)2\n答案：从A到B", "choices": ["(A)1", "(B)2"], "gold": [0, 1]},
            "AB",
        ),
        ("gaokao_cloze", {"query": "问题：q\n答案：", "answer": "$5$"}, "$5$"),
        ("cmath", {"question": "q", "golden": "1/5", "grade": 1}, "1/5"),
    ],
)
def test_hub_columns_are_read_as_the_files_are(name: str, row: dict[str, object], gold: str) -> None:
    # Column names: PROTOCOLS sections 4, 5, 7, 8, 9.
    item = read_row(load_task(name), row, prompt_id="x")
    assert item.question == "q"
    assert item.reference.gold == gold


def test_program_tests_keep_the_order_of_pools_and_the_limits(folder: Path) -> None:
    (item,) = _load(folder, "codecontests").items
    assert [test.stdin for test in item.reference.tests] == ["1\n", "2\n"]
    assert item.reference.time_limit_seconds == 2.5
    assert item.reference.memory_limit_bytes == 64_000_000
    assert reference_from_json(reference_to_json(item.reference)) == item.reference


def test_a_problem_about_named_files_leaves_training_and_is_refused_in_a_test_split(folder: Path) -> None:
    train = _load(folder, "codecontests", "train")
    assert [item.question for item in train.items] == ["Echo."]
    assert train.num_unreadable == 1
    rows = files.FILES["codecontests/train.jsonl"]
    files.write_files(folder, {"codecontests/test.jsonl": rows})
    with pytest.raises(ValueError, match=r"codecontests/test/1: .*named file"):
        _load(folder, "codecontests")


def test_a_missing_column_names_the_row_and_the_columns(folder: Path) -> None:
    files.write_files(folder, {"cmath/test.jsonl": [{"question": "q", "golden": "1"}, {"question": "q", "label": "1"}]})
    with pytest.raises(ValueError, match=r"cmath/test/1: .*golden.*it has question, label"):
        _load(folder, "cmath")


def test_a_broken_line_is_named(folder: Path) -> None:
    (folder / "ocw/test.jsonl").write_text('{"problem": "a", "answer": "1"}\n{"problem": \n')
    with pytest.raises(ValueError, match=r"ocw/test\.jsonl, line 2: not JSON"):
        _load(folder, "ocw")


def test_gsm8k_dev_is_a_fixed_part_of_train_whatever_the_order_of_rows(folder: Path) -> None:
    train, dev = _load(folder, "gsm8k", "train"), _load(folder, "gsm8k", "dev")
    questions = {item.question for item in dev.items}
    assert dev.items
    assert len(train.items) + len(dev.items) == len(files.GSM8K)
    assert not questions & {item.question for item in train.items}
    files.write_files(folder, {"gsm8k/train.jsonl": files.GSM8K[::-1]})
    assert {item.question for item in _load(folder, "gsm8k", "dev").items} == questions


def test_training_questions_that_the_test_split_asks_are_left_out(folder: Path) -> None:
    train = _load(folder, "cmath", "train")
    assert [item.question for item in train.items] == ["5+5=?", "半个的一半？"]
    assert train.num_removed == 1


def test_signs_survive_the_comparison_of_questions() -> None:
    # Dropping all non-word characters calls $x-1$ and $x+1$ the same (PROTOCOLS section 0).
    assert question_key("Solve $x - 1=0$") == question_key("Solve  $x-1=0$\n")
    assert question_key("Solve $x-1=0$") != question_key("Solve $x+1=0$")


@pytest.mark.parametrize("name", ["ocw", "sat", "gaokao_cloze", "gaokao_qa", "mmlu_stem"])
def test_a_task_without_a_train_split_refuses_it_in_one_sentence(folder: Path, name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} has no train split in .*; it has .*test$"):
        _load(folder, name, "train")


def test_checksums_of_the_manifest_are_verified(folder: Path) -> None:
    _manifest(folder)
    assert "verified" in open_source(folder).description
    assert (
        _load(folder, "sat").files["sat/test.jsonl"]
        == hashlib.sha256((folder / "sat/test.jsonl").read_bytes()).hexdigest()
    )
    (folder / "sat/test.jsonl").write_text((folder / "sat/test.jsonl").read_text().replace("1,900", "1,901"))
    with pytest.raises(ValueError, match=r"sat/test\.jsonl: SHA-256 .* differs from .* in MANIFEST\.json; restore"):
        _load(folder, "sat")


def test_a_file_that_the_manifest_lists_must_be_there(folder: Path) -> None:
    _manifest(folder)
    (folder / "math/train_geometry.jsonl").unlink()
    with pytest.raises(ValueError, match=r"train_geometry\.jsonl is listed in MANIFEST\.json but missing"):
        _load(folder, "math", "train")


def test_a_folder_that_is_not_there_or_has_nothing_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no data folder .*nowhere.*; pass a folder of benchmark files"):
        open_source(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"gsm8k: no file gsm8k/test\.jsonl in .*, or --data hub"):
        _load(tmp_path, "gsm8k")


def test_the_hub_path_reads_a_mirror_and_gives_the_same_items_as_a_folder(folder: Path, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    target = mirror / "openai/gsm8k"
    files.write_files(target, {f"{split}.jsonl": files.FILES[f"gsm8k/{split}.jsonl"] for split in ("train", "test")})
    (target / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n"
        "  - {split: train, path: train.jsonl}\n  - {split: test, path: test.jsonl}\n---\n"
    )
    hub = open_source(f"hub:{mirror}")
    task = load_task("gsm8k")
    for split in ("train", "dev", "test"):
        assert hub.load(task, split).checksum == _load(folder, "gsm8k", split).checksum  # type: ignore[arg-type]
    assert list(hub.load(task, "test").files) == ["openai/gsm8k/main/test@main"]


def test_the_hub_path_joins_the_configurations_in_the_order_of_the_task_file(tmp_path: Path) -> None:
    task = load_task("math")
    target = tmp_path / "EleutherAI/hendrycks_math"
    lines = ["---", "configs:"]
    for number, config in enumerate(reversed(task.hub.configs)):
        rows = [{"problem": f"{config} {number}", "solution": f"\\boxed{{{number}}}"}]
        files.write_files(target, {f"{config}/test.jsonl": rows, f"{config}/train.jsonl": rows})
        lines += [f"- config_name: {config}", "  data_files:"]
        lines += [f"  - {{split: {split}, path: {config}/{split}.jsonl}}" for split in ("train", "test")]
    (target / "README.md").write_text("\n".join([*lines, "---", ""]))
    loaded = open_source(f"hub:{tmp_path}").load(task, "test")
    assert [item.question.split()[0] for item in loaded.items] == list(task.hub.configs)


def test_an_unreachable_hub_is_one_sentence_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        ValueError, match=r"cmath: the hub data set weitianwen/cmath cannot be loaded .*--data DIR"
    ) as caught:
        open_source("hub").load(load_task("cmath"), "test")
    assert "\n" not in str(caught.value)


def test_few_shot_examples_come_from_train_and_never_ask_the_same_question(folder: Path) -> None:
    train = _load(folder, "gsm8k", "train")
    examples = Examples.find(train, num_few_shot=4)
    assert examples is not None
    for item in train.items:
        prompt = examples.prompt(item)
        assert prompt.count("\n\nQuestion: ") == 4
        assert prompt.count(item.question) == 1
        assert prompt.endswith(f"Question: {item.question}\nAnswer:")


@pytest.mark.parametrize(("name", "count"), [("gsm8k", 8), ("math", 4)])
def test_the_examples_that_lm_eval_ships_are_found(folder: Path, name: str, count: int) -> None:
    # Eight of Wei et al. for GSM8K, four of Minerva for MATH (PROTOCOLS sections 1 and 2).
    prompts = load_prompts(
        name, split="test", source=open_source(folder), num_few_shot=count, few_shot_source="lm_eval"
    )
    assert prompts[0].text.count("\nAnswer: ") == count
    with pytest.raises(ValueError, match=rf"lm_eval has {count} few-shot examples, fewer than {count + 1}"):
        load_prompts(name, split="test", source=open_source(folder), num_few_shot=count + 1, few_shot_source="lm_eval")


@pytest.mark.parametrize("name", ["ocw", "sat", "gaokao_cloze", "gaokao_qa", "codecontests"])
def test_a_task_without_examples_says_what_it_offers(folder: Path, name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} has no split to take few-shot examples from; it offers deepseek"):
        load_prompts(name, split="test", source=open_source(folder), num_few_shot=2)


def test_the_test_split_is_never_a_source_of_examples(folder: Path) -> None:
    with pytest.raises(ValueError, match="gsm8k has no few-shot examples from 'test'; it offers train, lm_eval"):
        load_prompts("gsm8k", split="test", source=open_source(folder), num_few_shot=2, few_shot_source="test")


def test_the_embedded_sample_has_no_few_shot_prompt() -> None:
    with pytest.raises(ValueError, match="embedded sample has no few-shot prompt"):
        load_prompts("gsm8k", split="test", source=open_source("embedded"), num_few_shot=2)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "split", "count"),
    [
        # PROTOCOLS sections 1-9; train counts are without the questions of test (2 in MATH, 3 in CMATH)
        # and without the two MATH rows whose box is empty.
        ("gsm8k", "test", 1319), ("math", "test", 5000), ("math", "train", 7496), ("ocw", "test", 272),
        ("sat", "test", 32),
        ("mmlu_stem", "test", 3018), ("mmlu_stem", "dev", 90), ("codecontests", "test", 1),
        ("codecontests", "train", 300),
        ("cmath", "test", 1098), ("cmath", "train", 597), ("gaokao_cloze", "test", 118), ("gaokao_qa", "test", 351),
    ],
)  # fmt: skip
def test_real_files_have_the_published_number_of_items(shared: Path, name: str, split: str, count: int) -> None:
    assert len(_load(shared / "data", name, split).items) == count


@pytest.mark.shared
def test_real_gsm8k_train_and_dev_make_up_the_published_train_set(shared: Path) -> None:
    assert [len(_load(shared / "data", "gsm8k", split).items) for split in ("train", "dev")] == [7002, 471]


@pytest.mark.shared
def test_real_gaokao_qa_has_seven_items_with_several_letters(shared: Path) -> None:
    # PROTOCOLS section 9.
    golds = [item.reference.gold for item in _load(shared / "data", "gaokao_qa").items]
    assert sorted(gold for gold in golds if len(gold) > 1) == ["ABD", "AC", "AC", "ACD", "AD", "BCD", "CD"]


@pytest.mark.shared
def test_the_published_ocw_prompt_gives_away_test_rows_103_and_124(shared: Path) -> None:
    # PROTOCOLS section 0, "The few-shot prompts leak".
    loaded = _load(shared / "data", "ocw")
    examples = Examples.find(loaded, num_few_shot=4, source_name="deepseek")
    assert examples is not None
    assert [item.prompt_id for item in loaded.items if examples.leaks(item)] == ["ocw/test/103", "ocw/test/124"]


@pytest.mark.shared
@pytest.mark.parametrize("name", [name for name in task_names() if name != "codecontests"])
def test_published_deepseek_prompts_end_with_the_question_in_their_own_frame(shared: Path, name: str) -> None:
    source = open_source(shared / "data")
    shots = {"gsm8k": 8, "math": 4, "ocw": 4, "sat": 4, "mmlu_stem": 4, "cmath": 6}.get(name, 5)
    (prompt,) = load_prompts(name, split="test", source=source, num_few_shot=shots, few_shot_source="deepseek", limit=1)
    assert prompt.reference.question in prompt.text
    assert prompt.text.endswith(("\nA:", "\nSolution:", "\n\nSolution:", "\n答案：", "的解析:"))
    with pytest.raises(ValueError, match=f"one text of {shots} examples, not {shots - 1}"):
        load_prompts(name, split="test", source=source, num_few_shot=shots - 1, few_shot_source="deepseek")
