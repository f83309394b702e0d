from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agpo_bench.cli import app
from agpo_bench.commands.dry_run import own_words
from agpo_bench.planning.checks import check_output, launch_lines
from tests.planning.test_plan import plan_for


def dry(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["train", "--dry-run", *words])
    return result.exit_code, result.output


def line(output: str, what: str) -> str:
    return next(one for one in output.splitlines() if one[6:].startswith(what))


def test_a_run_that_can_start_passes_every_check_and_leaves_nothing_behind(tmp_path: Path) -> None:
    code, output = dry("--gpus", "2", "--gpu-memory", "8", "--out", str(tmp_path / "runs"))
    assert code == 0, output
    assert line(output, "data").startswith("ok    data: 18,000 training problems")
    assert line(output, "memory, agpo").startswith("ok")
    assert "torchrun --standalone --nproc_per_node 2 -m agpo_bench" in output
    assert "export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=" in output
    assert not (tmp_path / "runs").exists()


def test_what_cannot_work_is_one_sentence_each_and_exit_code_1(tmp_path: Path) -> None:
    one_update = ("--set", "minibatches_per_epoch=1", "--set", "epochs_per_batch=1")
    code, output = dry("--data", "nowhere", *one_update, "--out", str(tmp_path / "runs"))
    assert code == 1
    assert line(output, "recipe").startswith("FAIL  recipe: agpo: with 1 update a rollout batch")
    assert line(output, "data") == (
        "FAIL  data: no data folder 'nowhere'; pass a folder of benchmark files, hub, or embedded"
    )
    assert "torchrun" not in output


def test_a_wrong_setting_ends_the_checks_with_its_sentence() -> None:
    code, output = dry("--set", "group_size=0")
    assert code == 1
    assert output.startswith("FAIL  config: group_size = 0")


def test_adapters_are_counted_and_their_package_and_targets_are_looked_at(tmp_path: Path) -> None:
    code, output = dry("--set", "lora_rank=8", "--gpu-memory", "1", "--out", str(tmp_path / "runs"))
    assert code == 0, output
    model = adapted_embedded_model(rank=8)
    assert line(output, "sizes").endswith(f", {model:,} of adapters beside them")
    assert "peft is installed" in output or 'pip install "agpo-bench[lora]"' in output
    code, output = dry("--set", "lora_rank=8", "--set", "lora_targets=c_attn", "--out", str(tmp_path / "runs"))
    assert code == 1
    assert line(output, "sizes").startswith("FAIL  sizes: lora_targets = c_attn: embedded has no such linear layer")


def adapted_embedded_model(*, rank: int) -> int:
    """Numbers of the adapters that training would put into the embedded model."""
    pytest.importorskip("peft")
    from agpo_bench.rollout.adapters import add_adapters, is_adapter_weight
    from agpo_bench.training.model import load_model
    from agpo_bench.training.setup import model_path

    model = load_model(model_path("embedded"), with_modules=True).model
    add_adapters(model, rank=rank, alpha=32.0, targets=["all-linear"], seed=0)
    return sum(weight.numel() for name, weight in model.named_parameters() if is_adapter_weight(name))


def test_memory_that_does_not_suffice_is_a_failed_check(tmp_path: Path) -> None:
    code, output = dry("--gpu-memory", "0.1", "--set", "micro_batch_tokens=100000", "--out", str(tmp_path))
    assert code == 1
    assert "DOES NOT FIT" in line(output, "memory, agpo")


def model_folder(folder: Path, *files: str) -> Path:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 1000,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    for name in files:
        (folder / name).write_bytes(b"x" * 10)
    return folder


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ((), "holds no weights"),
        (("model.safetensors",), "holds no tokenizer"),
        (("model.safetensors", "tokenizer.json"), "a file is missing"),
    ],
)
def test_a_model_directory_that_lacks_something_is_told_so(
    tmp_path: Path, files: tuple[str, ...], sentence: str
) -> None:
    code, output = dry("--model", str(model_folder(tmp_path / "m", *files)), "--out", str(tmp_path / "runs"))
    assert code == 1
    assert line(output, "model").startswith("FAIL")
    assert sentence in line(output, "model")


def test_a_full_disk_is_foreseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_for("qwen2.5-14b", "agpo")
    # 14,770,033,664 parameters x 12 B: weights and two moments in float32 = 165.07 GiB, twice while one is replaced.
    monkeypatch.setattr("shutil.disk_usage", lambda _: _Usage(free=300 * 2**30))
    with pytest.raises(ValueError, match=r"checkpoints take 330\.14 GiB \(165\.07 GiB each"):
        check_output(tmp_path, [plan], num_seeds=1)
    monkeypatch.setattr("shutil.disk_usage", lambda _: _Usage(free=400 * 2**30))
    assert "330.14 GiB in all" in check_output(tmp_path, [plan], num_seeds=1)


def test_a_disk_holds_adapters_and_at_the_end_the_merged_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_for("qwen2.5-14b", "agpo", "lora_rank=16")
    # 68,812,800 numbers x 12 B = 0.77 GiB, twice while one is replaced, and 14,770,033,664 x 4 B = 55.02 GiB.
    monkeypatch.setattr("shutil.disk_usage", lambda _: _Usage(free=56 * 2**30))
    with pytest.raises(ValueError, match=r"checkpoints take 56\.56 GiB"):
        check_output(tmp_path, [plan], num_seeds=1)
    monkeypatch.setattr("shutil.disk_usage", lambda _: _Usage(free=57 * 2**30))
    assert "checkpoints of 0.77 GiB each, 56.56 GiB in all" in check_output(tmp_path, [plan], num_seeds=1)


class _Usage:
    def __init__(self, *, free: int) -> None:
        self.free = free


def test_a_folder_that_is_a_file_cannot_hold_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot write into"):
        check_output(tmp_path / "file" / "runs", [plan_for("embedded", "agpo")], num_seeds=1)


def test_the_launch_line_is_the_command_without_the_dry_run() -> None:
    argv = [
        "train",
        "--dry-run",
        "--gpus",
        "2",
        "--preset",
        "p",
        "--gpu-memory=80",
        "--out",
        "x",
        "--host-memory",
        "900",
        "--set",
        "a=b",
    ]
    assert own_words(argv) == ["train", "--preset", "p", "--out", "x", "--set", "a=b"]
    assert launch_lines(["train"], engine="torch", num_gpus=1, gpus_per_node=None) == ["agpo-bench train"]
    two = launch_lines(["train", "--out", "a b"], engine="deepspeed", num_gpus=2, gpus_per_node=None)
    assert two == [
        "torchrun --standalone --nproc_per_node 2 -m agpo_bench train --out 'a b'",
        "deepspeed --num_gpus 2 --module agpo_bench train --out 'a b'",
    ]
    (many,) = launch_lines(["train"], engine="torch", num_gpus=16, gpus_per_node=8)
    assert many.startswith("torchrun --nnodes 2 --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint HOST:29500 ")
    with pytest.raises(ValueError, match="not whole nodes of 8"):
        launch_lines(["train"], engine="torch", num_gpus=12, gpus_per_node=8)


def test_options_of_the_dry_run_are_refused_without_it() -> None:
    result = CliRunner().invoke(app, ["train", "--gpus", "2"])
    assert isinstance(result.exception, ValueError)
    assert "describe a machine to --dry-run" in str(result.exception)
