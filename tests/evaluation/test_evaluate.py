from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from agpo_bench.evaluation.draws import DRAWS_FILE
from agpo_bench.evaluation.evaluate import EvalOptions, evaluate_runs
from agpo_bench.evaluation.results import EvalResult, Sample, read_items, read_result, read_samples
from agpo_bench.evaluation.table import format_table


class Watch:
    """Counts what was drawn anew: the progress reports begin with what exists."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, int, int]] = []

    def __call__(self, label: str, task: str, done: int, total: int) -> None:
        self.reports.append((task, done, total))

    @property
    def num_found(self) -> int:
        return self.reports[0][1] if self.reports else -1


def _options(folder: Path, **changes: object) -> EvalOptions:
    options = EvalOptions(tasks=("gsm8k",), source=str(folder), maj=(4,), max_new_tokens=8)
    return replace(options, **changes)  # type: ignore[arg-type]


def _run(out: Path, model: Path, options: EvalOptions, watch: Watch | None = None) -> tuple[EvalResult, list[Sample]]:
    (result,) = evaluate_runs(out, options=options, model=str(model), progress=watch)
    return result, list(read_samples(out / "initial/eval" / result.task / "samples.jsonl"))


def test_every_item_has_one_greedy_and_k_sampled_draws_that_differ(
    tmp_path: Path, random_model: Path, benchmark_folder: Path
) -> None:
    result, samples = _run(tmp_path / "out", random_model, _options(benchmark_folder))
    assert (result.num_items, result.num_draws, len(samples)) == (12, 4, 60)
    assert Counter(sample.draw for sample in samples) == dict.fromkeys(range(5), 12)
    assert len({sample.draw_key for sample in samples}) == 60
    # Repeats of a document are identical with some backends and Maj@k collapses (MEASURED section 4): ours are not.
    for item in {sample.doc_id for sample in samples}:
        texts = [sample.text for sample in samples if sample.doc_id == item and sample.draw > 0]
        assert len(set(texts)) > 1
    assert result.tokens_eval == sum(sample.num_tokens for sample in samples)
    assert all(sample.num_tokens <= 8 for sample in samples)
    assert result.accuracy == pytest.approx(sum(sample.score for sample in samples if sample.draw == 0) / 12)
    assert result.data_files.keys() == {"gsm8k/test.jsonl"}
    assert not (tmp_path / "out/initial/eval/gsm8k" / DRAWS_FILE).exists()


def test_two_evaluations_give_the_same_samples_whatever_is_asked_beside(
    tmp_path: Path, random_model: Path, benchmark_folder: Path
) -> None:
    _, first = _run(tmp_path / "a", random_model, _options(benchmark_folder))
    _, second = _run(tmp_path / "b", random_model, _options(benchmark_folder))
    assert first == second
    _, fewer = _run(tmp_path / "c", random_model, _options(benchmark_folder, limit=3, maj=(2,)))
    wanted = {(sample.doc_id, sample.draw): sample for sample in first}
    assert [wanted[sample.doc_id, sample.draw] for sample in fewer] == fewer
    _, other = _run(tmp_path / "d", random_model, _options(benchmark_folder, seed=1))
    assert [sample.text for sample in other if sample.draw == 0] == [s.text for s in first if s.draw == 0]
    assert [sample.text for sample in other if sample.draw > 0] != [s.text for s in first if s.draw > 0]


def test_draws_do_not_depend_on_how_the_sampler_splits_its_batches(
    tmp_path: Path, random_model: Path, benchmark_folder: Path
) -> None:
    from agpo_bench.evaluation.draws import DrawFile
    from agpo_bench.evaluation.harness import Asking, Decoding, PreparedTask, SamplerLM
    from agpo_bench.rollout.encoding import PromptEncoder
    from agpo_bench.rollout.torch_sampler import TorchSampler
    from agpo_bench.training.model import load_model

    loaded = load_model(random_model)
    decoding = Decoding(max_new_tokens=8, num_draws=3)
    texts = []
    for rows in (1, 5, 64):
        task = PreparedTask("gsm8k", asking=Asking(source=str(benchmark_folder)), decoding=decoding)
        lm = SamplerLM(
            TorchSampler(loaded, max_rows=rows),
            PromptEncoder(loaded.tokenizer),
            model_key="k",
            decoding=decoding,
            draws=DrawFile(tmp_path / f"{rows}.jsonl"),
        )
        texts.append([sample.text for sample in task.ask(lm).samples])
    assert texts[0] == texts[1] == texts[2]


def test_a_finished_result_is_read_back(tmp_path: Path, random_model: Path, benchmark_folder: Path) -> None:
    first, _ = _run(tmp_path, random_model, _options(benchmark_folder))
    path = tmp_path / "initial/eval/gsm8k/results.json"
    before = path.stat().st_mtime_ns
    watch = Watch()
    again, _ = _run(tmp_path, random_model, _options(benchmark_folder), watch)
    assert again == first == read_result(path)
    assert watch.reports == []
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize("changes", [{"limit": 5}, {"maj": (2,)}, {"grading": "lm_eval"}, {"maj": (1, 4)}])
def test_another_request_for_the_same_weights_draws_nothing_it_has(
    tmp_path: Path, random_model: Path, benchmark_folder: Path, changes: dict[str, object]
) -> None:
    _run(tmp_path, random_model, _options(benchmark_folder))
    watch = Watch()
    result, _ = _run(tmp_path, random_model, _options(benchmark_folder, **changes), watch)
    assert watch.reports[0][1] == watch.reports[0][2]
    assert result.grading_mode == changes.get("grading", "official")


def test_a_smaller_request_in_between_costs_no_draw(tmp_path: Path, random_model: Path, benchmark_folder: Path) -> None:
    whole, samples = _run(tmp_path, random_model, _options(benchmark_folder))
    fewer, _ = _run(tmp_path, random_model, _options(benchmark_folder, limit=2, maj=()))
    assert fewer.num_items == 2
    watch = Watch()
    again, once_more = _run(tmp_path, random_model, _options(benchmark_folder), watch)
    assert watch.reports[0][1:] == (60, 60)
    assert (again, once_more) == (whole, samples)
    assert not (tmp_path / "initial/eval/gsm8k" / DRAWS_FILE).exists()


def test_an_evaluation_cut_off_goes_on_from_the_draws_it_has(
    tmp_path: Path, random_model: Path, benchmark_folder: Path
) -> None:
    whole, samples = _run(tmp_path / "whole", random_model, _options(benchmark_folder))
    folder = tmp_path / "cut/initial/eval/gsm8k"
    folder.mkdir(parents=True)
    kept = ("draw_key", "text", "is_truncated", "num_tokens")
    lines = [json.dumps({name: getattr(sample, name) for name in kept}) for sample in samples[:20]]
    # Killed while writing: the last line is torn, and bytes of it may be half a character.
    (folder / DRAWS_FILE).write_bytes(("\n".join(lines) + '\n{"draw_key": "ab').encode() + "半".encode()[:2])
    watch = Watch()
    resumed, again = _run(tmp_path / "cut", random_model, _options(benchmark_folder), watch)
    assert watch.reports[0] == ("gsm8k", 20, 60)
    assert again == samples
    assert resumed.model_copy(update={"model": whole.model}) == whole


def test_other_weights_share_no_draw(tmp_path: Path, random_model: Path, benchmark_folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    other = tmp_path / "other"
    other.mkdir()
    for file in random_model.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    weights = {name: tensor * 1.25 for name, tensor in load_file(random_model / "model.safetensors").items()}
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    first, _ = _run(tmp_path / "out", random_model, _options(benchmark_folder))
    watch = Watch()
    (second,) = evaluate_runs(tmp_path / "out", options=_options(benchmark_folder), model=str(other), progress=watch)
    assert watch.num_found == 0
    assert second.model_fingerprint != first.model_fingerprint
    # The folder `initial` keeps the model that has it.
    assert read_result(tmp_path / "out/initial/eval/gsm8k/results.json") == first
    named = tmp_path / f"out/initial-{second.model_fingerprint[:8]}/eval/gsm8k/results.json"
    assert read_result(named) == second


def test_changed_data_are_asked_again(tmp_path: Path, random_model: Path, benchmark_folder: Path) -> None:
    first, _ = _run(tmp_path, random_model, _options(benchmark_folder))
    path = benchmark_folder / "gsm8k/test.jsonl"
    path.write_text(path.read_text().replace("#### 3", "#### 2"))
    watch = Watch()
    second, _ = _run(tmp_path, random_model, _options(benchmark_folder), watch)
    assert second.data_checksum != first.data_checksum
    assert watch.num_found == 60  # the questions are the same: graded anew, not drawn anew


def test_what_cannot_be_graded_is_counted_and_is_no_wrong_answer(
    tmp_path: Path, random_model: Path, benchmark_folder: Path
) -> None:
    result, (sample,) = _run(tmp_path, random_model, _options(benchmark_folder, tasks=("codecontests",), maj=()))
    details = result.grader_details
    assert (details["floor_seconds"], details["time_factor"], details["max_tests"]) == (0.25, 4.0, None)
    assert "seccomp" in str(details["isolation"])
    assert sample.is_error
    assert result.accuracy is None
    assert result.parse_rate is None
    assert (result.num_items, result.error_count, result.is_complete) == (1, 1, False)
    assert "incomplete" in format_table([result])
    assert "could not be graded by no fault of the model" in format_table([result])


def test_samples_carry_lm_evals_own_hashes(tmp_path: Path, random_model: Path, benchmark_folder: Path) -> None:
    from lm_eval.utils import hash_string

    from agpo_bench.data.benchmarks import load_prompts, open_source

    _, samples = _run(tmp_path, random_model, _options(benchmark_folder, maj=()))
    prompts = load_prompts("gsm8k", split="test", source=open_source(benchmark_folder))
    assert [sample.prompt_hash for sample in samples] == [hash_string(prompt.text) for prompt in prompts]
    assert [sample.prompt_id for sample in samples] == [prompt.prompt_id for prompt in prompts]
    assert len({sample.doc_hash for sample in samples}) == len(samples)


def test_the_items_stand_beside_their_samples(tmp_path: Path, random_model: Path, benchmark_folder: Path) -> None:
    out = tmp_path / "out"
    _, samples = _run(out, random_model, _options(benchmark_folder, maj=()))
    items = list(read_items(out / "initial/eval/gsm8k/items.jsonl"))
    assert [(item.doc_id, item.prompt_id) for item in items] == [(s.doc_id, s.prompt_id) for s in samples]
    assert "What is 3 4 5" in items[3].prompt  # the fourth row of the folder, whose answer is 3 % 4
    assert items[3].gold == "3"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tasks": ("gsm9k",)}, "no task 'gsm9k'"),
        ({"maj": (0,)}, "Maj@0 needs at least one draw"),
        ({"temperature": 0.0}, "temperature 0 makes every draw of Maj@k the same"),
        ({"top_p": 1.5}, "top_p 1.5 is not in"),
        ({"limit": 0}, "limit 0 asks no item"),
    ],
)
def test_options_without_meaning_are_refused(tmp_path: Path, changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        _options(tmp_path, **changes)


def test_a_folder_without_runs_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no finished run in .* \(none at all\); train first, or pass"):
        evaluate_runs(tmp_path, options=EvalOptions(source="embedded"))


def test_results_import_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, agpo_bench.evaluation.results, agpo_bench.evaluation.table; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.shared
def test_all_nine_benchmarks_run_on_real_items(shared: Path, tmp_path: Path, random_model: Path) -> None:
    options = EvalOptions(source=str(shared / "data"), limit=4, maj=(2,), max_new_tokens=8)
    results = evaluate_runs(tmp_path, options=options, model=str(random_model))
    assert [result.num_items for result in results] == [4, 4, 4, 4, 4, 1, 4, 4, 4]
    assert [result.error_count for result in results] == [0] * 9
    assert all(result.is_complete and result.data_source_kind == "folder" for result in results)
    assert all("checksums verified" in result.data_source and result.data_files for result in results)


@pytest.mark.shared
def test_ocw_is_also_given_without_the_rows_that_the_published_prompt_holds(
    shared: Path, tmp_path: Path, random_model: Path
) -> None:
    # PROTOCOLS section 0: rows 103 and 124.
    options = EvalOptions(
        tasks=("ocw",), source=str(shared / "data"), num_few_shot=4, few_shot_source="deepseek", max_new_tokens=2
    )
    result, samples = _run(tmp_path, random_model, options)
    assert [sample.doc_id for sample in samples if sample.is_leaked] == [103, 124]
    assert result.num_leaked == 2
    assert result.alternative_counts["without_leaked"] == 270
    assert "holds 2 of the items asked" in format_table([result])
